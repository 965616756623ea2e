"""CSV and TSV: plain, gzip or Zstandard, in any encoding, with a header or by position.

A file passes in pieces; a record across two of them is taken apart when its end is there. Line ends are LF or CRLF,
quotes as in RFC 4180; a quote that is out of place spoils its own line only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile
from paddlewheel.data.readers.columns import column_faults
from paddlewheel.data.readers.lent import Lender
from paddlewheel.data.readers.window import Window
from paddlewheel.data.tables import fields
from paddlewheel.data.tables.encoded import read_utf8
from paddlewheel.recipe_data import Source

BUFFER_BYTES = 8 << 20
PIECE_BYTES = 1 << 20
MAX_RECORD_BYTES = 16 << 20
MAX_ROWS = 1 << 15
TOLD_BYTES = 200
DELIMITERS = "\t;|,"  # that other systems write


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a file's columns are. names: of all of its fields; taken: those that the source declares."""

    names: tuple[str, ...]
    taken: tuple[str, ...]
    delimiter: str
    header: bool

    @property
    def extra(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.taken)


def read(
    job: ReadJob,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    max_rows: int = MAX_ROWS,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Iterator[Chunk]:
    """The file's records, at most `max_rows` a chunk, as texts of the declared columns.

    Raises UnreadableFile for one that is cut off, empty, not of its encoding, without a header or a required column, or
    has a line longer than `max_record_bytes`; a quote that is not closed within so many is out of place.
    """
    source = job.source
    piece_bytes = min(buffer_bytes, PIECE_BYTES)
    window = Window(read_utf8(job, piece_bytes), buffer_bytes, piece_bytes)
    window.move(0)
    head = window.data[: window.size].tobytes()
    if not head or head.isspace():
        raise UnreadableFile(f"{job.name}: the file is empty, not even a header stands in it; deliver it again")
    delimiter = source.delimiter or ("\t" if source.format == "tsv" else ",")
    begin, line = 0, 1
    names = tuple(column.name for column in source.columns)
    if source.header:
        while (end := _header_end(head, final=window.final)) is None and len(head) <= max_record_bytes:
            window.move(0)
            head = window.data[: window.size].tobytes()
        names, begin = _header(job.name, head, end, delimiter)
        line += head.count(b"\n", 0, begin)
    else:
        _check_line_ends(job.name, head[: max(head.find(b"\n"), 0) or len(head)], whole=b"\n" not in head)
    del head
    layout = _layout(job, names, delimiter)
    splitter = _Splitter(source, layout, max_rows, max_record_bytes)
    yielded = False
    while True:
        chunk, begin, line, why = splitter.split(window, begin, line)
        if why == fields.TOO_LONG:
            _check_line_ends(job.name, window.data[begin : window.size].tobytes(), whole=True)
            raise UnreadableFile(
                f"{job.name}: line {line} is longer than {max_record_bytes} bytes: is this file {source.format}?"
            )
        if len(chunk.places) or (window.final and not yielded):
            yielded = True
            yield chunk
        if why == fields.END:
            return
        if why == fields.MORE:
            window.move(begin)
            begin = 0


class _Splitter:
    """The compiled loop with its arguments made ready."""

    def __init__(self, source: Source, layout: Layout, max_rows: int, max_record_bytes: int) -> None:
        self._layout = layout
        self._max_rows = max_rows
        self._max_record_bytes = max_record_bytes
        short = [text.encode() for text in dict.fromkeys(source.null_values)]
        self._nulls_set = all(len(text) <= 12 for text in short)
        padded = b"".join(len(text).to_bytes(4, "little") + text.ljust(12, b"\0") for text in short)
        self._nulls_X2 = np.frombuffer(padded if self._nulls_set else b"", np.uint64).reshape(-1, 2)
        whole = {column.name for column in source.columns if column.type == "int64" and self._nulls_set}
        self._texts = tuple(name for name in layout.taken if name not in whole)
        self._numbers = tuple(name for name in layout.taken if name in whole)
        slots = {name: slot for slot, name in enumerate((*self._texts, *self._numbers))}
        self._slots_F = np.array([slots.get(name, -1) for name in layout.names], np.int64)
        self._lender = Lender(8 * max_rows * (2 * len(self._texts) + len(self._numbers)))
        self._states_CR = np.empty((len(layout.taken), max_rows), np.uint8)
        self._wanted = f"the {'header has' if layout.header else 'recipe names'} {len(layout.names)}"

    def split(self, window: Window, begin: int, line: int) -> tuple[Chunk, int, int, int]:
        """The next records as a chunk, how far they go, the line behind them, and why there are no more."""
        layout, size, limit, num_fields = self._layout, self._max_rows, self._max_record_bytes, len(self._layout.names)
        data, states_CR = window.data, self._states_CR
        starts_R, ends_R, lines_R, faults_R = (np.empty(size, np.int64) for _ in range(4))
        num_texts, num_numbers = 2 * len(self._texts) * size, len(self._numbers) * size
        values = self._lender.lend(8 * (num_texts + num_numbers)).view(np.uint64)
        views_TR2, numbers_NR = values[:num_texts].reshape(-1, size, 2), values[num_texts:].reshape(-1, size)
        side = np.empty((window.size - begin if window.quoted else 0) + fields.PADDING, np.uint8)
        num_rows, end, next_line, why = fields.split_records(
            data, begin, window.size, window.final, np.uint8(ord(layout.delimiter)), num_fields, self._slots_F,
            self._nulls_X2, limit, line, starts_R, ends_R, lines_R, faults_R, views_TR2, numbers_NR.view(np.int64),
            states_CR, side,
        )  # fmt: skip
        columns = {}
        misfits = {}
        for name, views_R2, states_R in zip(self._texts, views_TR2, states_CR, strict=False):
            columns[name] = _array(pa.string_view(), states_R[:num_rows], views_R2, data, side)
        for name, numbers_R, states_R in zip(self._numbers, numbers_NR, states_CR[len(self._texts) :], strict=True):
            columns[name] = _array(pa.int64(), states_R[:num_rows], numbers_R)
            if (states_R[:num_rows] == fields.MISFIT).any():
                misfits[name] = np.flatnonzero(states_R[:num_rows] == fields.MISFIT).tolist()

        def raws(rows: Sequence[int]) -> list[str]:
            return [data[starts_R[row] : ends_R[row]].tobytes().decode() for row in rows]

        def text_of(row: int, column: str) -> str | None:
            found = split_line(raws([row])[0], layout.delimiter)
            return None if found is None else found[layout.names.index(column)]

        broken = {int(row): self._reason(faults_R[row]) for row in np.flatnonzero(faults_R[:num_rows])}
        chunk = Chunk(
            frame=pl.DataFrame(pa.record_batch({name: columns[name] for name in layout.taken})),
            misfits=misfits,
            places=pl.Series(lines_R[:num_rows]),
            raws=raws,
            broken=broken,
            extra_columns=layout.extra,
            nulls_set=self._nulls_set,
            text_of=text_of,
            most_text_bytes=end - begin,
        )
        return chunk, end, next_line, why

    def _reason(self, fault: int) -> str:
        if fault == fields.QUOTE_FAULT:
            return "a quote is out of place"
        return f"{fault} fields, {self._wanted}"


def _array(kind: Any, states_R: Any, *parts: Any) -> Any:
    """A column of this Arrow type. Its parts (values, or views and what they point into) are shared, not copied."""
    valid_R = states_R == fields.VALID
    validity = None if valid_R.all() else pa.py_buffer(np.packbits(valid_R, bitorder="little").data)
    return pa.Array.from_buffers(kind, len(states_R), [validity, *(pa.py_buffer(part) for part in parts)])


def split_line(record: str, delimiter: str) -> list[str] | None:
    """Fields of a record, unquoted; None where a quote neither opens nor closes a field, nor is doubled in one."""
    parts = record.split('"')  # those with an odd index lie between quotes
    found = parts[0].split(delimiter)
    for index in range(1, len(parts), 2):
        if index + 1 == len(parts):
            return None
        inside, outside = parts[index], parts[index + 1]
        doubled = index > 1 and not parts[index - 1]
        if not doubled and found[-1]:
            return None
        found[-1] = f'{found[-1]}"{inside}' if doubled else inside
        if outside and outside[0] != delimiter:
            return None
        found += outside.split(delimiter)[1:]
    return found


def _header_end(buffer: bytes, *, final: bool) -> int | None:
    """Where the header's record ends, behind its line break; None where its end is not in the buffer."""
    end, quotes = 0, 0
    while True:
        begin, end = end, buffer.find(b"\n", end) + 1
        if not end:
            return len(buffer) if final else None
        quotes += buffer.count(b'"', begin, end)
        if quotes % 2 == 0:
            return end


def _header(name: str, buffer: bytes, end: int | None, delimiter: str) -> tuple[tuple[str, ...], int]:
    text = buffer[: min(end or len(buffer), MAX_RECORD_BYTES)].decode(errors="replace")
    text = text.removesuffix("\n").removesuffix("\r")
    found = split_line(text, delimiter) if end is not None else None
    if found is None or len(text) > TOLD_BYTES:
        _check_line_ends(name, buffer[: end or len(buffer)], whole=True)
    if end is None and "\n" not in text:
        raise UnreadableFile(f"{name}: line 1 is longer than {MAX_RECORD_BYTES} bytes: is this file delimited text?")
    if found is None or end is None:
        raise UnreadableFile(f"{name}: line 1: the header's quotes are out of order: {_told(text.split(chr(10))[0])!r}")
    _check_line_ends(name, "".join(found).encode(), whole=True)
    return tuple(found), end


def _check_line_ends(name: str, line: bytes, *, whole: bool) -> None:
    """Raises UnreadableFile where what should be a line has others in it, which end in CR alone."""
    if whole and b"\r" in line.rstrip(b"\r\n") and b"\r\n" not in line:
        raise UnreadableFile(
            f"{name}: its lines end in a carriage return alone, as on old Macs; export it with LF or CRLF "
            f"(it begins {line[:TOLD_BYTES].decode(errors='replace')!r})"
        )


def _layout(job: ReadJob, names: tuple[str, ...], delimiter: str) -> Layout:
    if not delimiter.isascii() or delimiter in '"\r\n':
        raise UnreadableFile(
            f"{job.name}: {delimiter!r} cannot be a delimiter; give the source one of ASCII, no quote or line end"
        )
    if faults := column_faults(job.source, names):
        others = [other for other in DELIMITERS if len(names) == 1 and other in names[0]]
        hint = f" Is {others[0]!r} its delimiter? Then tell the source so." if others else ""
        raise UnreadableFile(
            f"{job.name}: {'; '.join(faults)}. The header has: {_told(', '.join(names))}.{hint} "
            f"Deliver the file with its columns, or change the columns of {job.source.name!r} in the recipe"
        )
    taken = tuple(column.name for column in job.source.columns if column.name in names)
    return Layout(names=names, taken=taken, delimiter=delimiter, header=job.source.header)


def _told(text: str) -> str:
    return text if len(text) <= TOLD_BYTES else f"{text[:TOLD_BYTES]}…"
