"""A shard's Parquet file, written as its samples come by; its bytes depend on the samples in their order alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import polars as pl
import pyarrow.parquet as pq


def row_group_rows(num_shards: int) -> int:
    """Rows of a row group: fewer where many shards are written side by side, since each waits for a whole one."""
    return max(4_096, min(65_536, (1 << 20) // num_shards))


class ShardFile:
    """Takes frames of samples with the columns of `schema` (an empty frame); complete once it is left."""

    def __init__(self, path: Path, schema: pl.DataFrame, *, row_group_rows: int) -> None:
        self.path, self.rows = path, 0
        self._schema, self._row_group_rows = schema, row_group_rows
        self._waiting: list[pl.DataFrame] = []
        self._num_waiting = 0
        arrow = schema.to_arrow(compat_level=pl.CompatLevel.oldest()).schema
        self._writer = pq.ParquetWriter(path, arrow, compression="zstd", write_statistics=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._num_waiting:
            self._write(pl.concat(self._waiting))
        self._writer.close()

    def add(self, samples: pl.DataFrame) -> None:
        """Append samples."""
        self._waiting.append(samples)
        self._num_waiting += len(samples)
        self.rows += len(samples)
        if self._num_waiting < self._row_group_rows:
            return
        waiting = pl.concat(self._waiting)
        whole = self._num_waiting - self._num_waiting % self._row_group_rows
        for start in range(0, whole, self._row_group_rows):
            self._write(waiting[start : start + self._row_group_rows])
        self._waiting, self._num_waiting = [waiting[whole:]], self._num_waiting - whole

    def _write(self, samples: pl.DataFrame) -> None:
        # One chunk a column: pyarrow ends a page where a chunk ends.
        table = samples.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        self._writer.write_table(table, row_group_size=self._row_group_rows)


def read_ids(path: Path) -> Iterator[np.ndarray]:
    """The sample ids in a shard's file as they were written, uint64, piece by piece."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(1 << 20, columns=["sample_id"]):
            yield batch.column(0).to_numpy()
