"""A day's samples in ascending order of their id, however many there are: those that do not fit in memory lie on disk.

Ids are hashes, evenly spread, so buckets by their uppermost bits are about equal, each fits in memory, and one after
the other they are the whole order. The order does not depend on how many buckets there were.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import polars as pl
import pyarrow as pa

MEMORY_BYTES: Final = 64 << 20
MOST_BUCKETS: Final = 256
ID: Final = "sample_id"


class Buckets:
    """Takes frames of samples in any order; gives them back by id. `folder` holds what does not fit in memory."""

    def __init__(self, folder: Path, *, num_rows: int, memory_bytes: int) -> None:
        """num_rows: about how many will come."""
        self._folder, self._num_rows, self._memory_bytes = folder, num_rows, memory_bytes
        self._held: list[pl.DataFrame] = []
        self._files: list[pa.RecordBatchStreamWriter] = []
        self._num_buckets = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        for number in range(len(self._files)):
            self._path(number).unlink(missing_ok=True)

    def add(self, samples: pl.DataFrame) -> None:
        """Take some samples, all frames with the same columns."""
        if not len(samples):
            return
        if not self._num_buckets:
            self._open(samples)
        if not self._files:
            self._held.append(samples)
            return
        ordered = samples.sort(ID)
        shift = np.uint64(64 - (self._num_buckets - 1).bit_length())
        edges = np.arange(self._num_buckets + 1, dtype=np.uint64)
        bounds = np.searchsorted(ordered[ID].to_numpy() >> shift, edges)
        for number, file in enumerate(self._files):
            if bounds[number] < bounds[number + 1]:
                file.write_table(_to_arrow(ordered[int(bounds[number]) : int(bounds[number + 1])]))

    def by_id(self) -> Iterator[pl.DataFrame]:
        """All samples, in successive frames that are sorted by id. Nothing can be added any more."""
        self._close()
        if self._held:
            held = pl.concat(self._held)
            self._held = []
            yield held.sort(ID)
        for number in range(len(self._files)):
            with pa.OSFile(str(self._path(number)), "rb") as source:
                table = pa.ipc.open_stream(source).read_all()
            yield pl.DataFrame(pl.from_arrow(table)).sort(ID)

    def _open(self, first: pl.DataFrame) -> None:
        wanted = first.estimated_size() / len(first) * max(self._num_rows, len(first))
        self._num_buckets = 1
        while wanted > self._memory_bytes / 2 * self._num_buckets and self._num_buckets < MOST_BUCKETS:
            self._num_buckets *= 2
        if wanted <= self._memory_bytes:
            self._num_buckets = 1
            return
        schema = _to_arrow(first.clear()).schema
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._files = [
            pa.ipc.new_stream(str(self._path(number)), schema, options=options) for number in range(self._num_buckets)
        ]

    def _close(self) -> None:
        for file in self._files:
            file.close()

    def _path(self, number: int) -> Path:
        return self._folder / f"bucket-{number:03d}.arrow"


def _to_arrow(samples: pl.DataFrame) -> pa.Table:
    return samples.to_arrow(compat_level=pl.CompatLevel.oldest())
