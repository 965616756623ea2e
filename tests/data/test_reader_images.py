"""Pictures as rows; those that are cut off or are none."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paddlewheel.data.readers import ReadJob, UnreadableFile, images
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
