"""Text as rows: by line, by document, packed to a length; real files, compressed and cut off."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from paddlewheel.data.readers import ReadJob, UnreadableFile
from paddlewheel.data.readers import text as reader
from paddlewheel.recipe_data import Column, Source

COLUMNS = tuple(Column(name=name, type=kind) for name, kind in reader.COLUMNS.items())
END = "\x1e"


def rows_of(path: Path, *, encoding: str = "utf-8", **params: Any) -> list[tuple[str, int, int]]:
    """(text, document, offset) of each row."""
    source = Source(name="corpus", path="x", format="text", columns=COLUMNS, params=params, encoding=encoding)
    frames = [chunk.frame for chunk in reader.read(ReadJob(name=f"corpus/{path.name}", source=source, path=path))]
    frame = pl.concat(frames)
    assert frame["file"].unique().to_list() == [f"corpus/{path.name}"]
    return frame.select("text", "document", "offset").rows()


def write(folder: Path, content: bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_a_line_is_a_row_when_the_unit_is_line(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffone\r\n\r\nthree ü\nlast".encode())
    assert rows_of(path, unit="line") == [("one", 1, 0), ("three ü", 3, 0), ("last", 4, 0)]


def test_a_file_is_a_row_when_nothing_is_said(tmp_path: Path) -> None:
    assert rows_of(write(tmp_path, b"one\ntwo\n")) == [("one\ntwo\n", 1, 0)]


def test_documents_are_told_apart_by_the_separator(tmp_path: Path) -> None:
    path = write(tmp_path, b"first\ndoc<|end|>second<|en d|><|end|>")
    assert rows_of(path, separator="<|end|>") == [("first\ndoc", 1, 0), ("second<|en d|>", 2, 0)]


def test_documents_are_packed_into_rows_of_a_length_cut_at_characters(tmp_path: Path) -> None:
    # a, two bytes of é, three of €, four of an emoji: 8 bytes would end in the middle of the emoji.
    path = write(tmp_path, "aé€😀b\nxyz\n".encode())
    assert rows_of(path, unit="line", length=8) == [("aé€", 1, 0), (f"😀b{END}xy", 1, 6), ("z", 2, 2)]


def test_offset_counts_from_the_document_that_a_row_begins_in(tmp_path: Path) -> None:
    path = write(tmp_path, b"0123456789|abcdefghij")
    assert rows_of(path, separator="|", length=6) == [
        ("012345", 1, 0),
        (f"6789{END}a", 1, 6),
        ("bcdefg", 2, 1),
        ("hij", 2, 7),
    ]


@given(
    documents=st.lists(st.text(alphabet="aé€😀\r", min_size=0, max_size=30), min_size=1, max_size=8),
    length=st.integers(4, 17),
    piece_bytes=st.integers(1, 9),
)
def test_packed_rows_are_the_stream_whatever_the_pieces_that_were_read(
    documents: list[str], length: int, piece_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = "<|>".join(documents)
    path = write(tmp_path_factory.mktemp("packed"), raw.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paddlewheel.data.readers.text.PIECE_BYTES", piece_bytes)
        if not raw:
            with pytest.raises(UnreadableFile):
                rows_of(path, separator="<|>", length=length)
            return
        rows = rows_of(path, separator="<|>", length=length) if raw != "<|>" else []
    expected = END.join(documents)
    expected = expected[:-1] if documents[-1] == "" else expected
    assert "".join(text for text, _, _ in rows) == expected
    assert all(len(text.encode()) <= length for text, _, _ in rows)
    assert all(len(text.encode()) > length - 4 for text, _, _ in rows[:-1])


def test_other_encodings_are_decoded_when_declared(tmp_path: Path) -> None:
    assert rows_of(write(tmp_path, "Grüße".encode("latin-1")), encoding="latin-1") == [("Grüße", 1, 0)]


def test_a_file_that_is_not_of_its_encoding_is_unreadable_and_says_where(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"corpus/a\.txt: line 1 is not UTF-8 text \(byte 3\)"):
        rows_of(write(tmp_path, b"abc\xffdef"))


def test_compressed_files_are_read_when_they_have_two_members(tmp_path: Path) -> None:
    members = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    assert rows_of(write(tmp_path, members, "a.txt.gz"), unit="line") == [("one", 1, 0), ("two", 2, 0)]
    frames = zstandard.compress(b"one\n") + zstandard.compress(b"two\n")
    assert rows_of(write(tmp_path, frames, "a.txt.zst"), unit="line") == [("one", 1, 0), ("two", 2, 0)]


@pytest.mark.parametrize(("name", "pack"), [("a.txt.gz", gzip.compress), ("a.txt.zst", zstandard.compress)])
def test_a_compressed_file_that_is_cut_off_is_unreadable(tmp_path: Path, name: str, pack: Any) -> None:
    packed = pack(b"".join(b"%d " % (number * number) for number in range(5000)))
    with pytest.raises(UnreadableFile, match=f"corpus/{name}: the .* file is cut off after {len(packed) // 2} bytes"):
        rows_of(write(tmp_path, packed[: len(packed) // 2], name))


def test_a_file_under_a_wrong_name_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="not a sound gzip file"):
        rows_of(write(tmp_path, b"plain text", "a.txt.gz"))


def test_a_document_beyond_memory_is_refused_when_no_length_cuts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LONGEST_DOCUMENT", 1 << 20)
    source = Source(name="corpus", path="x", format="text", columns=COLUMNS, params={"separator": "|"})
    path = write(tmp_path, b"a" * ((1 << 20) + 2) + b"|short")
    chunks = list(reader.read(ReadJob(name="a.txt", source=source, path=path)))
    assert [chunk.frame["text"].str.len_bytes().to_list() for chunk in chunks] == [[(1 << 20) + 2], [5]]
    assert chunks[0].broken == {0: "a document of more than 1 MiB; give params a length, or unit: line"}
