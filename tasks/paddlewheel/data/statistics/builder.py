"""Statistics of frames as they stream by: what is kept, how it merges and its JSON are `data.table_statistics`'s.

A block of rows at a time: code every column, hash its distinct values, derive each row's depth from all of its hashes,
count. A value becomes a Python object at the end only, but for long texts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from paddlewheel.data.statistics import murmur, sketches
from paddlewheel.data.statistics.codes import MISSING, Coder, Codes, texts_of
from paddlewheel.data.statistics.histogram import MOST_DAYS, bucket_of
from paddlewheel.data.statistics.table_statistics import VALUES, ColumnStatistics, TableStatistics, Value, merge
from paddlewheel.data.statistics.theta import WHOLE, compact_theta
from paddlewheel.recipe_data import Column, ColumnType

__all__ = ["ColumnStatistics", "StatisticsBuilder", "TableStatistics", "merge"]

BLOCK_ROWS: Final = 1 << 16
LONG_TEXT: Final = 64
BEGINNING: Final = 40
DAY_MICROSECONDS: Final = 86_400_000_000
DIVISORS: Final[dict[ColumnType, int]] = {
    "float64": -1,
    "int64": 0,
    "binary": 0,
    "date": 1,
    "timestamp": DAY_MICROSECONDS,
}
# Smallest and largest value of a type that has a bucket of its own.
SPAN: Final[dict[ColumnType, tuple[float, float]]] = {
    "float64": (-sys.float_info.max, sys.float_info.max),
    "int64": (-(2**63), 2**63 - 1),
    "binary": (0, 2**63 - 1),
    "date": (-MOST_DAYS, MOST_DAYS),
    "timestamp": (-MOST_DAYS, MOST_DAYS),
}
NONE_YET: Final = (sys.float_info.max, -sys.float_info.max)  # the smallest exceeds the largest
NONE_YET_WHOLE: Final = (2**63 - 1, -(2**63))
NOTHING: Final = np.zeros(0, np.int32)


class StatisticsBuilder:
    """One pass over the rows of a table, in any number of frames of the declared columns in their declared types."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._rows = 0
        self._lanes = [_Lane(column) for column in columns]

    def add(self, frame: pl.DataFrame, codes: Mapping[str, Codes] | None = None) -> None:
        """Count the rows of a frame. A column that is not in it counts as missing.

        codes: those of its columns, where they are known.
        """
        if codes is not None:
            self._add(frame, codes)
            return
        coder = Coder(min(frame.height, BLOCK_ROWS))
        for start in range(0, frame.height, BLOCK_ROWS):
            block = frame[start : start + BLOCK_ROWS]
            self._add(block, {column.name: coder.codes(column) for column in block})

    def _add(self, frame: pl.DataFrame, codes: Mapping[str, Codes]) -> None:
        size = frame.height
        self._rows += size
        rows_R = np.zeros(size, np.uint64)
        none_R, words_D = np.full(size, MISSING, np.int32), np.zeros(0, np.int64)
        missing = Codes(codes_R=none_R, keys_D=words_D, firsts_D=NOTHING, rows_D=words_D)
        for lane in self._lanes:
            lane.load(codes.get(lane.column.name, missing), rows_R)
        depths_R, order_R, starts = (
            np.empty(size, np.uint8),
            np.empty(size, np.int32),
            np.empty(murmur.DEPTHS, np.int64),
        )
        murmur.depths(rows_R, depths_R, order_R, starts)
        for lane in self._lanes:
            lane.count(depths_R, order_R, starts)
            lane.name_values(frame)

    def finish(self) -> TableStatistics:
        """The statistics of all rows so far."""
        return TableStatistics(rows=self._rows, columns=tuple(lane.statistics(self._rows) for lane in self._lanes))


def hashes_of(values: Sequence[Value], kind: ColumnType) -> list[int]:
    """The hashes of a column's values, as its statistics name them, in its distinct sketch."""
    texts = ["" if isinstance(value, str) and _is_long(value) else value for value in values]
    codes = Coder(len(values)).codes(pl.Series("value", texts, dtype=pl.String if kind == "string" else None))
    hashes_R = _hashes_of(codes)[codes.codes_R + 1]
    found = zip(values, hashes_R.tolist(), strict=True)
    return [(int(value[-16:], 16) if isinstance(value, str) and _is_long(value) else one) >> 1 for value, one in found]


class _Lane:
    """The state of one column."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.missing = 0
        self.state = np.array([0, 0, 0, WHOLE], np.int64)
        self.thetas = np.zeros(64, np.uint64)
        self.keys, self.held, self.origins = np.zeros(16, np.uint64), np.zeros((16, 2), np.uint64), np.full(16, -1)
        self.counts = np.zeros((murmur.DEPTHS, 16), np.int64)
        self.slots, self.entries = np.zeros(32, np.uint64), np.zeros(32, np.int32)
        self.names: dict[int, str] = {}  # of values that do not fit in `held`
        real = column.type == "float64"
        self.extremes = np.array(NONE_YET if real else NONE_YET_WHOLE, np.float64 if real else np.int64)
        low, high = (bucket_of(column.type, end) for end in SPAN.get(column.type, (0, 1)))
        self.base, self.pages = low, np.full(((high - low) >> sketches.PAGE_BITS) + 2, -1, np.int32)
        self.pages[-1] = 0
        self.buckets = np.zeros((1, 1 << sketches.PAGE_BITS), np.int64)

    def load(self, codes: Codes, rows_R: Any) -> None:
        """Take a block's values, and their hashes into those of its rows."""
        self.codes, self.hashes_D1 = codes, _hashes_of(codes)
        murmur.add_to_rows(codes.codes_R, self.hashes_D1, rows_R)

    def count(self, depths_R: Any, order_R: Any, starts: Any) -> None:
        """Count the block's values."""
        codes_R, keys_D, firsts_D = self.codes.codes_R, self.codes.keys_D, self.codes.firsts_D
        size, at = len(self.hashes_D1), 1
        while (at := sketches.add_hashes(self.hashes_D1, at, self.state, self.thetas)) < size:
            held, self.thetas = self.thetas, np.zeros(min(4 * len(self.thetas), sketches.THETA_SLOTS), np.uint64)
            sketches.insert_all(self.thetas, held)
        rows_D = self.codes.rows_D
        self.missing += len(codes_R) - int(rows_D.sum())
        entries_D, at = np.full(len(firsts_D), -1, np.int32), 0
        keys_DX = keys_D.view(np.uint64).reshape(-1, 2 if self.codes.is_texts else 1)
        while (at := sketches.count_values(
            codes_R, depths_R, order_R, starts, self.hashes_D1, keys_DX, firsts_D, at, entries_D,
            self.state, self.slots, self.entries, self.keys, self.held, self.counts, self.origins,
        )) < len(codes_R):  # fmt: skip
            self._grow()
        if self.column.type in DIVISORS and len(firsts_D):
            values_D, at = keys_D.view(np.float64) if self.column.type == "float64" else keys_D, 0
            while (at := sketches.add_to_histogram(
                values_D, keys_D, DIVISORS[self.column.type], at, rows_D,
                self.extremes, self.pages, self.base, self.buckets,
            )) < len(rows_D):  # fmt: skip
                self.buckets = np.concatenate([self.buckets, np.zeros_like(self.buckets)])

    def name_values(self, frame: pl.DataFrame) -> None:
        """Make names of the long texts first counted in this block, while it is there."""
        size = self.state[sketches.NUM_VALUES]
        if self.codes.hashed:
            new = np.flatnonzero(self.origins[:size] >= 0)
            found = frame[self.column.name].gather(self.origins[new]).to_list()
            for key, text in zip(self.keys[new].tolist(), found, strict=True):
                self.names[key] = f"{text[:BEGINNING]}…{key:016x}" if len(text) > LONG_TEXT else text
        self.origins[:] = -1
        if len(self.names) > 4 * VALUES:
            self.names = {key: self.names[key] for key in self.keys[:size].tolist() if key in self.names}

    def values(self) -> list[Value]:
        """The values that are counted one by one, as the statistics name them: of a long text its beginning and hash.

        The hash, so that no two become one.
        """
        size, kind = self.state[sketches.NUM_VALUES], self.column.type
        held = self.held[:size].copy()
        if kind != "string":
            words = held[:, 0].copy()
            found = words.view(np.float64 if kind == "float64" else np.int64).tolist()
            return [value != 0 for value in found] if kind == "bool" else found
        names = [self.names.get(key) for key in self.keys[:size].tolist()]
        held[[entry for entry, name in enumerate(names) if name is not None]] = 0
        return [text if name is None else name for name, text in zip(names, texts_of(held).to_pylist(), strict=True)]

    def statistics(self, rows: int) -> ColumnStatistics:
        sketches.trim_hashes(self.state, self.thetas)
        size, level = int(self.state[sketches.NUM_VALUES]), int(self.state[sketches.LEVEL])
        counts = np.ascontiguousarray(self.counts[level:, :size].T)
        ends = (counts.shape[1] - np.argmax(counts[:, ::-1] > 0, axis=1)).tolist() if size else []
        values, sums = self.values(), counts.sum(axis=1).tolist()
        order = sorted(range(size), key=values.__getitem__)
        order.sort(key=sums.__getitem__, reverse=True)  # of equal ones the smaller value stays the first
        seen = self.column.type in DIVISORS and rows > self.missing
        return ColumnStatistics(
            name=self.column.name,
            type=self.column.type,
            rows=rows,
            missing=self.missing,
            minimum=self.extremes[0].item() if seen else None,
            maximum=self.extremes[1].item() if seen else None,
            histogram=self._histogram() if seen else {},
            theta=compact_theta(int(self.state[sketches.THETA]), np.sort(self.thetas[self.thetas != 0])),
            level=level,
            values={values[entry]: tuple(counts[entry, : ends[entry]].tolist()) for entry in order},
        )

    def _histogram(self) -> dict[int, int]:
        pages = np.flatnonzero(self.pages[:-1] >= 0)
        rows = self.buckets[self.pages[pages]].ravel()
        buckets = ((pages[:, None] << sketches.PAGE_BITS) + np.arange(1 << sketches.PAGE_BITS)).ravel() + self.base
        return dict(zip(buckets[rows > 0].tolist(), rows[rows > 0].tolist(), strict=True))

    def _grow(self) -> None:
        size = min(4 * len(self.keys), VALUES)
        self.keys, self.origins = _longer(self.keys, size), _longer(self.origins, size)
        self.held = np.pad(self.held, ((0, size - len(self.held)), (0, 0)))
        self.counts = np.pad(self.counts, ((0, 0), (0, size - self.counts.shape[1])))
        self.slots, self.entries = np.zeros(2 * size, np.uint64), np.zeros(2 * size, np.int32)
        sketches.place_values(self.slots, self.entries, self.keys, self.state[sketches.NUM_VALUES])


def _hashes_of(codes: Codes) -> Any:
    """Of no value, then of each code."""
    hashes_D1 = np.zeros(len(codes.keys_D) + 1, np.uint64)
    if codes.hashed:
        hashes_D1[1:] = codes.keys_D.view(np.uint64)
    elif codes.keys_D.ndim == 1:
        murmur.hash_words(codes.keys_D, hashes_D1[1:])
    else:
        murmur.hash_short_texts(codes.keys_D, hashes_D1[1:])
    return hashes_D1


def _is_long(value: str) -> bool:
    return len(value) == BEGINNING + 17 and value[BEGINNING] == "…"


def _longer(array: Any, size: int) -> Any:
    return np.pad(array, (0, size - len(array)))
