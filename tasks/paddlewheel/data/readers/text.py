"""Text for language models: a row a line, a row a document, or documents packed into rows of one length.

A file becomes one stream of UTF-8 in which END_BYTE stands between documents; rows are cut out of
it, so that packed rows, put together again, are the stream byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from paddlewheel.data.encoded import read_utf8
from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile
from paddlewheel.recipe_data import ColumnType

# What a row offers. file: the path in the landing folder; document: 1-based number in its file of the document that the
# row begins in (or line); offset: where in that document's UTF-8 it begins.
COLUMNS: Final[Mapping[str, ColumnType]] = {"text": "string", "file": "string", "document": "int64", "offset": "int64"}
UNITS: Final = ("document", "line")
END_BYTE: Final = b"\x1e"  # ASCII's record separator
SHORTEST: Final = 4  # bytes: a character of UTF-8 has room
LONGEST_DOCUMENT: Final = 64 << 20  # bytes of a row that `length` does not cut
PIECE_BYTES: Final = 1 << 20  # read at once
CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True, kw_only=True)
class TextParams:
    """Of a source of text. unit: what a row is, or what is packed; separator: what stands between documents of a file
    (None: a file is one); length: bytes of UTF-8 of a packed row at the most (None: rows are not packed)."""

    unit: str = "document"
    separator: str | None = None
    length: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Row:
    text: bytes
    document: int
    offset: int


def faults_of_params(params: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """(name, value, what is allowed) of params that a source of text does not take."""
    for name, value in params.items():
        if name == "unit":
            if value not in UNITS:
                yield name, value, f"must be {' or '.join(UNITS)}"
            elif value == "line" and "separator" in params:
                yield "separator", params["separator"], "is between documents; unit: line has line ends"
        elif name == "separator":
            if not isinstance(value, str) or not value:
                yield name, value, "must be a text, as <|endoftext|>"
        elif name == "length":
            if isinstance(value, bool) or not isinstance(value, int) or value < SHORTEST:
                yield name, value, f"must be a whole number of bytes from {SHORTEST} on"
        else:
            yield name, value, "text takes unit, separator, length"


def read(job: ReadJob) -> Iterator[Chunk]:
    """Rows of a file of text, decompressed and decoded as the source says.

    Raises UnreadableFile for a file that is empty, cut off, or not of the declared encoding.
    """
    params = TextParams(**job.source.params)
    separator = b"\n" if params.unit == "line" else (params.separator or "").encode()
    stream = _separated(read_utf8(job, PIECE_BYTES), separator, lines=params.unit == "line")
    rows = _cut_packed(stream, params.length) if params.length else _cut_documents(stream)
    some: list[_Row] = []
    size, number = 0, 1
    for row in rows:
        some.append(row)
        size += len(row.text)
        if size >= CHUNK_BYTES:
            yield _chunk(job, some, number)
            number += len(some)
            some, size = [], 0
    if some:
        yield _chunk(job, some, number)
    elif number == 1:
        raise UnreadableFile(f"{job.name}: the file is empty; deliver it again")


def _separated(pieces: Iterator[bytes], separator: bytes, *, lines: bool) -> Iterator[bytes]:
    """UTF-8 with END_BYTE for each separator, but for one at the very end. `lines`: CRLF ends a line too."""
    held, owed = b"", False  # what may be the beginning of a separator; a separator that another document must follow
    for piece in pieces:
        content, held = held + piece, b""
        if lines:
            if content.endswith(b"\r"):
                content, held = content[:-1], b"\r"
            content = content.replace(b"\r\n", b"\n")
        if separator:
            *whole, last = content.split(separator)
            if not held:
                kept = _overlap(last, separator)
                last, held = last[: len(last) - kept], last[len(last) - kept :]
            content = END_BYTE.join([*whole, last])
        if owed and content:
            yield END_BYTE
            owed = False
        if separator and content.endswith(END_BYTE):
            content, owed = content[:-1], True
        if content:
            yield content
    if held:
        yield (END_BYTE if owed else b"") + held


def _overlap(content: bytes, separator: bytes) -> int:
    """How many bytes at the end of `content` may begin a separator."""
    return next((size for size in range(len(separator) - 1, 0, -1) if content.endswith(separator[:size])), 0)


def _cut_documents(stream: Iterator[bytes]) -> Iterator[_Row]:
    """A row a document that holds anything. What is longer than LONGEST_DOCUMENT is cut off one byte after it."""
    document, parts = 1, bytearray()
    for piece in stream:
        *ended, last = piece.split(END_BYTE)
        for part in ended:
            parts += part[: LONGEST_DOCUMENT + 1 - len(parts)]
            if parts:
                yield _Row(text=bytes(parts), document=document, offset=0)
            document, parts = document + 1, bytearray()
        parts += last[: LONGEST_DOCUMENT + 1 - len(parts)]
    if parts:
        yield _Row(text=bytes(parts), document=document, offset=0)


def _cut_packed(stream: Iterator[bytes], length: int) -> Iterator[_Row]:
    """Rows of at most `length` bytes that end where a character does."""
    buffer = bytearray()
    document, offset = 1, 0
    for piece in stream:
        buffer += piece
        start = 0
        while len(buffer) - start > length:
            end = start + length
            while buffer[end] & 0xC0 == 0x80:  # in the middle of a character
                end -= 1
            text = bytes(buffer[start:end])
            yield _Row(text=text, document=document, offset=offset)
            ends = text.count(END_BYTE)
            document += ends
            offset = len(text) - text.rfind(END_BYTE) - 1 if ends else offset + len(text)
            start = end
        del buffer[:start]
    if buffer:
        yield _Row(text=bytes(buffer), document=document, offset=offset)


def _chunk(job: ReadJob, rows: Sequence[_Row], number: int) -> Chunk:
    import polars as pl

    broken = {}
    texts: list[str | None] = []
    for index, row in enumerate(rows):
        if len(row.text) > LONGEST_DOCUMENT and not job.source.params.get("length"):
            broken[index] = f"a document of more than {LONGEST_DOCUMENT >> 20} MiB; give params a length, or unit: line"
            texts.append(None)
        else:
            texts.append(row.text.decode())
    columns: dict[str, Any] = {
        "text": texts,
        "file": [job.name] * len(rows),
        "document": [row.document for row in rows],
        "offset": [row.offset for row in rows],
    }
    types = {"string": pl.String, "int64": pl.Int64}
    names = [column.name for column in job.source.columns if column.name in columns]
    frame = pl.DataFrame([pl.Series(name, columns[name], dtype=types[COLUMNS[name]]) for name in names])
    by_line = job.source.params.get("unit") == "line" and not job.source.params.get("length")
    if by_line:
        places = pl.Series(columns["document"], dtype=pl.Int64)
    else:
        places = pl.int_range(number, number + len(rows), dtype=pl.Int64, eager=True)
    return Chunk(
        frame=frame, places=places, raws=lambda picked: [texts[row] or "" for row in picked], broken=broken,
        unit="line" if by_line else "row", nulls_set=True,
    )  # fmt: skip
