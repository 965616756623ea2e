"""Readers by format: a source's file as a stream of chunks, so that a file larger than memory passes in pieces.

A reader only takes a file apart; types, limits and refusals are `data.schema`'s. It runs in a process of its own, since
a parser that crashes in native code must cost a file, not the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Source

if TYPE_CHECKING:
    import polars as pl


class UnreadableFile(DataError):
    """A file that no reader can take apart: it goes to quarantine with this message as the reason."""


@dataclass(frozen=True, kw_only=True)
class ReadJob:
    """One file to read. name: its path in the landing folder, for messages and refusals; path: its local bytes.

    partition: the day that it was planned for, None for a source without days. A query has no path; version: what its
    `readers.sql.versions_of` said when it was planned: rows that changed since are not read as the planned ones.
    beside: the local bytes of another of the source's planned files, by its path, for a file that names others.
    """

    name: str
    source: Source
    path: Path | None = None
    partition: str | None = None
    version: str | None = None
    beside: Callable[[str], Path | None] = lambda _: None


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Successive rows of one file, not yet checked.

    frame: N rows of those columns of the file that the source declares. A String column is parsed strictly by
    `types.parse_texts`; one of another type is taken as its declared type where that loses nothing (`types.coerce`).
    places: int64[N], where each row begins: its 1-based line (a header is line 1), or its 1-based row in formats
    without lines. raws: the text of rows by their index in the chunk, as it stands in the file or as JSON; asked for
    refused rows only. broken: rows, by index, that could not be taken apart, and why; their columns hold null.
    unit: what places count. row_group: the Parquet row group of these rows, counted from 0 as Parquet's tools do.
    nulls_set: texts that mean missing (`null_values`) are null already; text_of(row, column) says which it was.
    misfits: rows by column whose text is not of the declared type: they hold null in a column of that type.
    most_text_bytes: what its texts do not exceed, where a reader knows that without counting.
    """

    frame: pl.DataFrame
    places: pl.Series
    raws: Callable[[Sequence[int]], list[str]]
    broken: Mapping[int, str] = field(default_factory=dict)
    extra_columns: tuple[str, ...] = ()
    unit: Literal["line", "row"] = "line"
    row_group: int | None = None
    nulls_set: bool = False
    misfits: Mapping[str, Sequence[int]] = field(default_factory=dict)
    text_of: Callable[[int, str], str | None] | None = None
    most_text_bytes: int | None = None


Reader = Callable[[ReadJob], Iterator[Chunk]]

# Every reader raises UnreadableFile for a file that is cut off, empty, damaged or lacks a required column.
READERS: Final[Mapping[str, str]] = {
    "csv": "paddlewheel.data.readers.delimited:read",
    "tsv": "paddlewheel.data.readers.delimited:read",
    "jsonl": "paddlewheel.data.readers.jsonl:read",
    "parquet": "paddlewheel.data.readers.parquet:read",
    "text": "paddlewheel.data.readers.text:read",
    "images": "paddlewheel.data.readers.images:read",
    "sql": "paddlewheel.data.readers.sql:read",
}
CUSTOM: Final = "paddlewheel.data.readers.custom:read"  # of a format package.module:name
