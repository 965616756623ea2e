"""Text for language models: a row a line, a row a document, or documents packed into rows of one length.

A file becomes one stream of UTF-8 in which END_BYTE stands between documents; rows are cut out of it, so that packed
rows, put together again, are the stream byte for byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile
from paddlewheel.data.tables.encoded import read_utf8
from paddlewheel.recipe_data import ColumnType

if TYPE_CHECKING:
    import polars as pl

# What a row offers. file: the path in the landing folder; document: 1-based number in its file of the document that the
# row begins in (or line); offset: where in that document's UTF-8 it begins.
COLUMNS: Final[Mapping[str, ColumnType]] = {"text": "string", "file": "string", "document": "int64", "offset": "int64"}
UNITS: Final = ("document", "line")
END_BYTE: Final = b"\x1e"  # ASCII's record separator
SHORTEST: Final = 4  # bytes: a character of UTF-8 has room
LONGEST_DOCUMENT: Final = 64 << 20  # bytes of a row that `length` does not cut
TOLD_CHARACTERS: Final = 1000  # of a refused row
PIECE_BYTES: Final = 1 << 20  # read at once
CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True, kw_only=True)
class TextParams:
    """Of a source of text. unit: what a row is, or what is packed; separator: what stands between documents of a file
    (None: a file is one); length: bytes of UTF-8 of a packed row at the most (None: rows are not packed)."""

    unit: str = "document"
    separator: str | None = None
    length: int | None = None


class _Row(NamedTuple):
    """A packed row: its UTF-8, and the document and the place in it that it begins in."""

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
    number = 1
    for columns in _packed(stream, params.length) if params.length else _documents(stream):
        yield _chunk(job, columns, number, by_line=params.unit == "line" and not params.length)
        number += len(columns)
    if number == 1:
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


def _documents(stream: Iterator[bytes]) -> Iterator[pl.DataFrame]:
    """Text, document and offset of the documents that hold anything, some at once.

    Of one that is longer than LONGEST_DOCUMENT not all is kept, but always more than that.
    """
    import polars as pl

    first, held = 1, bytearray()
    for piece in itertools.chain(stream, [None]):
        if piece is not None:
            *ended, rest = piece.rsplit(END_BYTE, 1)
            if not ended:
                held += rest[: LONGEST_DOCUMENT + 1 - len(held)]
                continue
            held += ended[0]
        else:
            rest = b""
        texts = pl.Series("text", [held.decode(errors="replace")])  # of what was cut off, the last character
        texts = texts.str.split(END_BYTE.decode()).explode()
        numbers = pl.int_range(first, first + len(texts), dtype=pl.Int64, eager=True)
        first, held = first + len(texts), bytearray(rest)
        frame = pl.DataFrame([texts, numbers.alias("document")]).filter(pl.col("text") != "")
        if len(frame):
            yield frame.with_columns(offset=pl.lit(0, dtype=pl.Int64))


def _packed(stream: Iterator[bytes], length: int) -> Iterator[pl.DataFrame]:
    """Text, document and offset of packed rows, CHUNK_BYTES at once."""
    rows: list[_Row] = []
    for row in _cut_packed(stream, length):
        rows.append(row)
        if len(rows) * length >= CHUNK_BYTES:
            yield _frame(rows)
            rows = []
    if rows:
        yield _frame(rows)


def _frame(rows: Sequence[_Row]) -> pl.DataFrame:
    import polars as pl

    texts, documents, offsets = zip(*rows, strict=True)
    return pl.DataFrame(
        [
            pl.Series("text", [text.decode() for text in texts], dtype=pl.String),
            pl.Series("document", documents, dtype=pl.Int64),
            pl.Series("offset", offsets, dtype=pl.Int64),
        ]
    )


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


def _chunk(job: ReadJob, columns: pl.DataFrame, number: int, *, by_line: bool) -> Chunk:
    import polars as pl

    texts = columns["text"]
    reason = f"a document of more than {LONGEST_DOCUMENT >> 20} MiB; give params a length, or unit: line"
    broken = dict.fromkeys((texts.str.len_bytes() > LONGEST_DOCUMENT).arg_true().to_list(), reason)
    columns = columns.with_columns(file=pl.lit(job.name))
    names = [column.name for column in job.source.columns if column.name in COLUMNS]
    places = pl.int_range(number, number + len(columns), dtype=pl.Int64, eager=True)
    return Chunk(
        frame=columns.select(names),
        places=columns["document"] if by_line else places,
        raws=lambda picked: [texts[row][:TOLD_CHARACTERS] for row in picked],
        broken=broken,
        unit="line" if by_line else "row",
        nulls_set=True,
    )
