"""A shard's Parquet file, written as its samples come by; its bytes depend on the samples in their order alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import polars as pl
import pyarrow.parquet as pq


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """A row group ends with the row that reaches one of these. bytes: of texts and binaries, and 8 a column."""

    rows: int
    bytes: int


def group_limits(num_shards: int) -> GroupLimits:
    """Smaller row groups where many shards are written side by side, since each of them waits for a whole one."""
    return GroupLimits(
        rows=max(1 << 12, min(1 << 16, (1 << 18) // num_shards)),
        bytes=max(1 << 20, min(1 << 24, (1 << 27) // num_shards)),
    )


class ShardFile:
    """Takes frames of samples with the columns of `schema` (an empty frame); complete once it is left."""

    def __init__(self, path: Path, schema: pl.DataFrame, *, limits: GroupLimits) -> None:
        self.path = path
        self._limits = limits
        self._waiting: list[pl.DataFrame] = []
        self._rows = self._bytes = 0  # of what waits
        self._size = _row_bytes(schema)
        arrow = schema.to_arrow(compat_level=pl.CompatLevel.oldest()).schema
        self._writer = pq.ParquetWriter(path, arrow, compression="zstd", write_statistics=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._rows:
            self._write(pl.concat(self._waiting))
        self._writer.close()

    def add(self, samples: pl.DataFrame) -> None:
        """Append samples."""
        self._waiting.append(samples)
        self._rows += len(samples)
        self._bytes += int(samples.select(self._size.sum()).item())
        if self._rows >= self._limits.rows or self._bytes >= self._limits.bytes:
            self._write_groups()

    def _write_groups(self) -> None:
        """Write the whole row groups of what waits."""
        waiting = pl.concat(self._waiting)
        ends = waiting.select(self._size.cum_sum()).to_series().to_numpy()
        start = before = 0
        while True:
            full = int(np.searchsorted(ends, before + self._limits.bytes)) + 1
            end = min(start + self._limits.rows, full)
            if end > len(waiting):
                break
            self._write(waiting[start:end])
            start, before = end, int(ends[end - 1])
        self._waiting, self._rows, self._bytes = [waiting[start:]], len(waiting) - start, int(ends[-1]) - before

    def _write(self, samples: pl.DataFrame) -> None:
        # One chunk a column: pyarrow ends a page where a chunk ends.
        table = samples.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        self._writer.write_table(table, row_group_size=self._limits.rows)


def read_ids(path: Path) -> Iterator[np.ndarray]:
    """The sample ids in a shard's file as they were written, uint64, piece by piece."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(1 << 20, columns=["sample_id"]):
            yield batch.column(0).to_numpy()


def _row_bytes(schema: pl.DataFrame) -> pl.Expr:
    """About the bytes of a row, int64, from its values alone."""
    sizes = [pl.lit(8 * schema.width, pl.Int64)]
    sizes += [pl.col(name).str.len_bytes() for name, kind in schema.schema.items() if kind == pl.String]
    sizes += [pl.col(name).bin.size() for name, kind in schema.schema.items() if kind == pl.Binary]
    return pl.sum_horizontal(
        pl.col(schema.columns[0]).is_null().cast(pl.Int64), *(size.cast(pl.Int64) for size in sizes)
    )
