"""Keys that stand more than once over many Parquet files, found in bounded memory.

Two passes. The first keeps 8 bytes a row, a hash of its key, sorted in memory or partition by partition on disk; nearly
always it finds nothing and that is all. The second reads the keys again, looks only at rows whose hash was met twice,
and compares their values, so that a collision is never told as a duplicate. Rejected: one group-by over all keys,
whose memory grows with the rows.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

BATCH_ROWS = 1 << 18
MEMORY_BYTES = 64 << 20
MOST_PARTITIONS = 256
MOST_CANDIDATES = 1 << 16
MOST_PLACES = 3
ROW_BITS = 40
COUNT, AT = "(count)", "(at)"


@dataclass(frozen=True, kw_only=True)
class KeyedFile:
    """A local Parquet file. places: what its successive rows are told by, each with how many rows it names."""

    path: Path
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """A key that stands `count` times. places: of its first rows in the order of the files, each place once."""

    key: tuple[Any, ...]
    count: int
    places: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """How many keys stand more than once (beyond 65,536, up to collisions of 64 bits), and some of them."""

    num_keys: int
    examples: tuple[Duplicate, ...]


def find_duplicates(
    files: Sequence[KeyedFile], key: Sequence[str], *, scratch: Path, most: int = 5, memory_bytes: int = MEMORY_BYTES
) -> Duplicates:
    """Keys that stand more than once within or over the files; nulls are equal to one another.

    The examples are the `most` that come first in the order of the files (out of 65,536, where there are more). Hashes
    beyond `memory_bytes` lie in files below the folder `scratch`, 8 bytes a row, removed at the end.
    """
    num_rows = sum(pq.read_metadata(file.path).num_rows for file in files)
    num_partitions = 1
    while num_partitions < MOST_PARTITIONS and num_rows * 8 * 4 > memory_bytes * num_partitions:
        num_partitions *= 2
    candidates: list[np.ndarray] = []
    num_candidates = num_kept = 0
    for hashes in _partitions(files, key, num_partitions, scratch):
        hashes.sort()
        twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        num_candidates += len(twice)
        candidates.append(twice[: MOST_CANDIDATES - num_kept])
        num_kept += len(candidates[-1])
    if not num_candidates:
        return Duplicates(num_keys=0, examples=())
    found = _look_again(files, key, np.sort(np.concatenate(candidates)))
    first = found.sort(pl.col(AT).list.first()).head(most)
    examples = tuple(
        Duplicate(
            key=tuple(row[:-2]), count=row[-2], places=tuple(dict.fromkeys(_place_of(files, at) for at in row[-1]))
        )
        for row in first.iter_rows()
    )
    return Duplicates(num_keys=len(found) if num_kept == num_candidates else num_candidates, examples=examples)


def _partitions(
    files: Sequence[KeyedFile], key: Sequence[str], num_partitions: int, scratch: Path
) -> Iterator[np.ndarray]:
    """The hashes of all rows, uint64, in partitions by their uppermost bits."""
    batches = (hashes for _, _, _, hashes in _read(files, key))
    if num_partitions == 1:
        yield np.concatenate([np.empty(0, np.uint64), *batches])
        return
    shift = np.uint64(64 - (num_partitions - 1).bit_length())
    paths = [scratch / f"hashes-{number:03d}" for number in range(num_partitions)]
    handles = [path.open("wb") for path in paths]
    try:
        for hashes in batches:
            hashes.sort()  # partition after partition
            bounds = np.searchsorted(hashes >> shift, np.arange(num_partitions + 1, dtype=np.uint64))
            for handle, (start, end) in zip(handles, itertools.pairwise(bounds), strict=True):
                handle.write(hashes[start:end].tobytes())
    finally:
        for handle in handles:
            handle.close()
    for path in paths:
        yield np.fromfile(path, np.uint64)
        path.unlink()


def _look_again(files: Sequence[KeyedFile], key: Sequence[str], candidates: np.ndarray) -> pl.DataFrame:
    """Keys that stand more than once among the rows of these hashes: their values, count, and first places."""
    names = [str(index) for index in range(len(key))]
    parts: list[pl.DataFrame] = []
    pending = 0
    for number, start, frame, hashes in _read(files, key):
        slots = np.minimum(np.searchsorted(candidates, hashes), len(candidates) - 1)
        rows = np.flatnonzero(candidates[slots] == hashes)
        if not len(rows):
            continue
        at = pl.Series(AT, (number << ROW_BITS) + start + rows, dtype=pl.Int64)
        once = pl.lit(1, pl.Int64).alias(COUNT)
        parts.append(frame[rows].with_columns(once, at.reshape((-1, 1)).arr.to_list()))
        pending += len(rows)
        if pending > BATCH_ROWS:
            parts, pending = [_counted(parts, names)], 0
    return _counted(parts, names).filter(pl.col(COUNT) > 1)


def _counted(parts: Sequence[pl.DataFrame], names: Sequence[str]) -> pl.DataFrame:
    return pl.concat(parts).group_by(names).agg(pl.col(COUNT).sum(), pl.col(AT).explode().sort().head(MOST_PLACES))


def _read(files: Sequence[KeyedFile], key: Sequence[str]) -> Iterator[tuple[int, int, pl.DataFrame, np.ndarray]]:
    """(number of the file, number of the first row in it, keys as the columns "0", "1", …, their hashes) by pieces."""
    for number, file in enumerate(files):
        start = 0
        with pq.ParquetFile(file.path) as parquet:
            for batch in parquet.iter_batches(BATCH_ROWS, columns=list(key)):
                frame = pl.DataFrame(batch).select(pl.col(name).alias(str(index)) for index, name in enumerate(key))
                # polars' hash may change with its version; these hashes live for one call
                yield number, start, frame, frame.hash_rows(seed=0).to_numpy().copy()
                start += len(frame)


def _place_of(files: Sequence[KeyedFile], at: int) -> str:
    places = files[at >> ROW_BITS].places
    ends = list(itertools.accumulate(rows for _, rows in places))
    return places[bisect.bisect_right(ends, at & ((1 << ROW_BITS) - 1))][0]
