"""rows.parquet: written row group by row group, with bytes that depend on the rows and their order alone.

Row groups are cut by counts of rows and of their texts' bytes, never by how the rows came in. pyarrow writes them:
polars has no writer to which row groups can be given one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from paddlewheel.data.statistics.codes import Codes
from paddlewheel.data.types import POLARS_TYPES
from paddlewheel.recipe_data import Column

GROUP_ROWS: Final = 1 << 16
GROUP_BYTES: Final = 32 << 20
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1
OFTEN: Final = 2  # rows a value from which on a dictionary pays
CODED: Final = pa.dictionary(pa.int32(), pa.string())


class RowGroups:
    """Frames in, row groups out: at most `rows` rows, and at most `text_bytes` of texts unless one row has more."""

    def __init__(self, *, rows: int = GROUP_ROWS, text_bytes: int = GROUP_BYTES) -> None:
        self._rows, self._bytes = rows, text_bytes
        self._held: list[pl.DataFrame] = []
        self._held_rows = self._most_bytes = 0

    def add(self, frames: Sequence[pl.DataFrame], most_bytes: int) -> Iterator[pl.DataFrame]:
        """The row groups that these frames' rows fill; all of their texts have no more than `most_bytes`."""
        self._held += frames
        self._held_rows += sum(len(frame) for frame in frames)
        self._most_bytes += most_bytes
        while self._is_full():
            whole = pl.concat(self._held)
            size = min(self._size(whole), len(whole))
            rest = whole[size:]
            group = whole[:size]
            self._held = [rest] if len(rest) else []
            self._held_rows = len(rest)
            self._most_bytes = min(self._most_bytes, most_bytes)  # the rest came with these frames
            del whole
            yield group

    def rest(self) -> Iterator[pl.DataFrame]:
        """The last row group, if any rows are left."""
        if self._held:
            yield pl.concat(self._held)
        self._held, self._held_rows, self._most_bytes = [], 0, 0

    def _is_full(self) -> bool:
        if self._held_rows < self._rows and self._most_bytes > self._bytes:
            self._most_bytes = sum(text_bytes(frame) for frame in self._held)
        return self._held_rows >= self._rows or self._most_bytes > self._bytes

    def _size(self, frame: pl.DataFrame) -> int:
        """Rows of the row group that begins with the frame."""
        if self._most_bytes <= self._bytes:
            return self._rows
        ends = frame.select(pl.sum_horizontal(_text_sizes(frame)).cum_sum()).to_series()
        return min(self._rows, max(1, int(ends.search_sorted(self._bytes, side="right"))))


def text_bytes(frame: pl.DataFrame) -> int:
    """Bytes of a frame's texts, added up out of their views: a query costs milliseconds."""
    total = 0
    for column in frame:
        if column.dtype in (pl.String, pl.Binary):
            array = column.to_arrow(compat_level=pl.CompatLevel.newest())
            begin, end = array.offset, array.offset + len(array)
            sizes = np.frombuffer(array.buffers()[1], np.int32)[4 * begin : 4 * end : 4]
            if array.null_count:
                bits = np.frombuffer(array.buffers()[0], np.uint8)
                sizes = sizes * np.unpackbits(bits, bitorder="little")[begin:end]
            total += int(sizes.sum(dtype=np.int64))
    return total


def _text_sizes(frame: pl.DataFrame) -> list[pl.Expr]:
    """For each column of texts their bytes."""
    return [
        (pl.col(name).str.len_bytes() if dtype == pl.String else pl.col(name).bin.size()).cast(pl.Int64).fill_null(0)
        for name, dtype in frame.schema.items()
        if dtype in (pl.String, pl.Binary)
    ]


class RowsWriter:
    """Writes row groups to a Parquet file, until it is closed; a file without rows has the columns all the same.

    The first row group decides for the file: a column in which most rows have a value of their own is written plain,
    and another one of short texts takes its dictionaries from their codes, where Parquet's own would be found again.
    """

    def __init__(self, path: Path, columns: tuple[Column, ...]) -> None:
        self._path = path
        self._writer: Any = None
        self._empty = pl.DataFrame(schema={column.name: POLARS_TYPES[column.type] for column in columns})

    def close(self) -> None:
        """Write the footer; a second time does nothing."""
        if self._writer is None:
            self._open({}, 0)
        self._writer.close()

    def write(self, group: pl.DataFrame, codes: Mapping[str, Codes]) -> None:
        """Append one row group, whose columns have these codes."""
        if self._writer is None:
            self._open(codes, len(group))
        arrays = [
            _coded(group[entry.name], codes[entry.name])
            if pa.types.is_dictionary(entry.type)
            else _array(group[entry.name]).cast(entry.type)
            for entry in self._schema
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=len(group))

    def _open(self, codes: Mapping[str, Codes], num_rows: int) -> None:
        few = {name for name, found in codes.items() if OFTEN * len(found.firsts_D) <= num_rows}
        coded = {name for name in few if codes[name].is_texts}
        schema = self._empty.to_arrow(compat_level=pl.CompatLevel.newest()).schema
        self._schema = pa.schema([pa.field(one.name, CODED) if one.name in coded else one for one in schema])
        options: Any = {"use_dictionary": sorted(few) or False}
        self._writer = pq.ParquetWriter(
            self._path, self._schema, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL,
            write_statistics=False, store_schema=False, **options,
        )  # fmt: skip


def _coded(column: pl.Series, codes: Codes) -> Any:
    """The column as codes and their dictionary."""
    if not codes.is_texts:
        return _array(column).cast(pa.string()).dictionary_encode()
    there_R = codes.codes_R >= 0
    validity = None if there_R.all() else pa.py_buffer(np.packbits(there_R, bitorder="little").data)
    indices = pa.Array.from_buffers(pa.int32(), len(there_R), [validity, pa.py_buffer(codes.codes_R)])
    return pa.DictionaryArray.from_arrays(indices, codes.texts(), safe=False)


def _array(column: pl.Series) -> Any:
    return column.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
