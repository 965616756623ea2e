"""Pictures as rows; those that are cut off or are none."""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from paddlewheel.data.readers import ReadJob, UnreadableFile, images
from paddlewheel.data.tables.group import GroupFile, GroupJob, read_group
from paddlewheel.data.tables.isolate import Readers
from paddlewheel.errors import DataError
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source

COLUMNS = tuple(Column(name=name, type=kind) for name, kind in images.COLUMNS.items())


def picture(kind: str, *, width: int = 48, height: int = 32, **options: Any) -> bytes:
    pixels_HWC = np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels_HWC).save(stream, kind, **options)
    return stream.getvalue()


def row_of(folder: Path, content: bytes, *, name: str = "2013-11-01/cat/a.jpg", **params: Any) -> dict[str, Any]:
    path = folder / "cached"
    path.write_bytes(content)
    source = Source(name="photos", path="x", format="images", columns=COLUMNS, params=params)
    (chunk,) = images.read(ReadJob(name=name, source=source, path=path))
    row: dict[str, Any] = chunk.frame.row(0, named=True)
    return row


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_picture_is_a_row_of_its_class_bytes_and_size(tmp_path: Path, kind: str) -> None:
    content = picture(kind)
    assert row_of(tmp_path, content) == {
        "path": "2013-11-01/cat/a.jpg", "class": "cat", "image": content, "width": 48, "height": 32, "format": kind,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("JPEG", "the JPEG is cut off after {} bytes"),
        ("PNG", "the PNG is cut off after {} bytes"),
        ("WEBP", "the WebP is cut off after {} of {whole} bytes"),
    ],
)
def test_a_picture_that_is_cut_off_is_unreadable_without_decoding_it(tmp_path: Path, kind: str, told: str) -> None:
    content = picture(kind)
    half = len(content) // 2
    with pytest.raises(UnreadableFile, match=f"2013-11-01/cat/a.jpg: {told.format(half, whole=len(content))}"):
        row_of(tmp_path, content[:half])


def test_a_cut_off_jpeg_is_noticed_when_its_thumbnail_is_whole(tmp_path: Path) -> None:
    thumbnail = picture("JPEG", width=8, height=8)
    exif = b"Exif\0\0" + thumbnail  # enough for the search for an end mark
    content = picture("JPEG", exif=exif)
    assert row_of(tmp_path, content)["width"] == 48
    with pytest.raises(UnreadableFile, match="no end mark"):
        row_of(tmp_path, content[:-100])


def test_damage_inside_a_picture_is_noticed_when_it_is_verified(tmp_path: Path) -> None:
    content = bytearray(picture("PNG", width=200, height=200))
    content[len(content) // 2] ^= 0xFF
    assert row_of(tmp_path, bytes(content))["width"] == 200
    with pytest.raises(UnreadableFile, match="cannot be decoded"):
        row_of(tmp_path, bytes(content), verify=True)


@pytest.mark.parametrize(
    ("content", "told"), [(b"", "empty"), (b"GIF? no", "not a picture"), (b"\xff\xd8\xff", "cut off after 3 bytes")]
)
def test_what_is_no_picture_is_unreadable(tmp_path: Path, content: bytes, told: str) -> None:
    with pytest.raises(UnreadableFile, match=told):
        row_of(tmp_path, content)


def test_a_picture_of_absurd_size_is_unreadable(tmp_path: Path) -> None:
    content = bytearray(picture("PNG"))
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    with pytest.raises(UnreadableFile, match="cannot be decoded: Image size"):
        row_of(tmp_path, bytes(content))


def table_job(folder: Path, table: str, files: dict[str, bytes], *, name: str = "labels.csv") -> GroupJob:
    """A day of pictures below `folder`, and the table of them."""
    listed = []
    for path, content in ({name: table.encode()} | files).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        listed.append(GroupFile(name=f"2013-11-01/{path}", path=str(folder / path)))
    columns = (*(column for column in COLUMNS if column.name != "format"), Column(name="label", type="int64"))
    source = Source(name="photos", path="{partition}/**", format="images", columns=columns, params={"table": name})
    return GroupJob(source=dump(source), partition="2013-11-01", files=tuple(listed))


def test_a_table_names_pictures_and_their_labels_in_its_order(tmp_path: Path) -> None:
    cat, dog = picture("JPEG"), picture("PNG", width=10)
    table = 'label,path,by\r\n1,b/dog.png,x\r\n0,"a, cat.jpg",y\r\n'
    job = table_job(tmp_path / "day", table, {"a, cat.jpg": cat, "b/dog.png": dog, "unnamed.jpg": b"not looked at"})
    (tmp_path / "out").mkdir()
    result = read_group(job, tmp_path / "out")
    assert (result.rows, result.refused, result.unreadable) == (2, 0, {})
    assert pl.read_parquet(tmp_path / "out" / "rows.parquet").rows() == [
        ("2013-11-01/b/dog.png", "1", dog, 10, 32, 1),
        ("2013-11-01/a, cat.jpg", "0", cat, 48, 32, 0),
    ]


def test_a_line_whose_picture_is_missing_or_broken_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    lines = [{"path": "a.jpg", "label": 1}, {"path": "gone.jpg", "label": 0}, {"path": "cut.jpg", "label": 0}]
    lines += [{"path": "../other-day/a.jpg", "label": 0}, {"path": None}, {"path": "a.jpg", "label": "cat"}]
    whole = picture("JPEG")
    table = "\n".join(json.dumps(line) for line in lines)
    job = table_job(tmp_path / "day", table, {"a.jpg": whole, "cut.jpg": whole[:500]}, name="labels.jsonl")
    (tmp_path / "out").mkdir()
    result = read_group(job, tmp_path / "out")
    assert (result.rows, result.refused) == (1, 5)
    refused = [json.loads(line) for line in (tmp_path / "out" / "refused.jsonl").read_text().splitlines()]
    assert [(entry["file"], entry["line"], entry["reasons"][0]["reason"]) for entry in refused] == [
        ("2013-11-01/labels.jsonl", 2, "there is no such picture among the source's files"),
        ("2013-11-01/labels.jsonl", 3, "the JPEG is cut off after 500 bytes: it has no end mark; deliver it again"),
        ("2013-11-01/labels.jsonl", 4, "there is no such picture among the source's files"),
        ("2013-11-01/labels.jsonl", 5, "the line names no picture"),
        ("2013-11-01/labels.jsonl", 6, "not a whole number of 64 bits (int64)"),
    ]


@pytest.mark.parametrize(
    ("table", "told"),
    [("path\na.jpg\n", "the header lacks label"), ('path,label\n"a.jpg,1\n', "unexpected end of data")],
)
def test_a_table_that_is_none_is_unreadable(tmp_path: Path, table: str, told: str) -> None:
    (tmp_path / "out").mkdir()
    result = read_group(table_job(tmp_path / "day", table, {"a.jpg": picture("JPEG")}), tmp_path / "out")
    assert told in result.unreadable["2013-11-01/labels.csv"]


def test_a_day_without_its_table_is_an_error(tmp_path: Path) -> None:
    job = table_job(tmp_path / "day", "path,label\n", {"a.jpg": picture("JPEG")})
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=r"photos of 2013-11-01: there is no table 'labels\.csv' among its 1 files"):
        read_group(replace(job, files=job.files[1:]), tmp_path / "out")


def test_a_picture_that_crashes_its_decoder_costs_its_line_and_not_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No decoder here is known to crash: one in the child's path does, on the bytes "crash".
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(
        "import ctypes, io\n"
        "from PIL import Image\n"
        "real = Image.open\n"
        "def opened(stream, **options):\n"
        "    return ctypes.string_at(0) if stream.getvalue() == b'crash' else real(stream, **options)\n"
        "Image.open = opened\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    files = {"a.jpg": picture("JPEG"), "b.jpg": b"crash", "c.jpg": picture("JPEG")}
    job = table_job(tmp_path / "day", "path,label\na.jpg,1\nb.jpg,2\nc.jpg,3\n", files)
    (tmp_path / "out").mkdir()
    with Readers(1) as readers:
        result = readers.read(job, tmp_path / "out")
    assert result.unreadable == {"2013-11-01/b.jpg": "its reader crashed in native code (SIGSEGV)"}
    assert (result.rows, result.refused) == (2, 1)
