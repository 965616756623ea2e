"""Statistics of frames as they stream by: what is kept, how it merges and its JSON are `data.table_statistics`'s.

Blocks of rows stay in the processor's cache: hash every column, derive each row's depth from all of its hashes, count.
A value becomes a Python object only when it is first counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import polars as pl
import pyarrow as pa

from paddlewheel.data import murmur, sketches
from paddlewheel.data.histogram import MOST_DAYS, bucket_of
from paddlewheel.data.table_statistics import VALUES, ColumnStatistics, TableStatistics, Value, merge
from paddlewheel.data.theta import WHOLE, compact_theta
from paddlewheel.recipe_data import Column, ColumnType

__all__ = ["ColumnStatistics", "StatisticsBuilder", "TableStatistics", "merge"]

BLOCK_ROWS: Final = 8192
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
NOTHING: Final = np.zeros(0, np.uint8)


class StatisticsBuilder:
    """One pass over the rows of a table, in any number of frames of the declared columns in their declared types."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._rows = 0
        self._lanes = [_Lane(column) for column in columns]

    def add(self, frame: pl.DataFrame) -> None:
        """Count the rows of a frame. A column that is not in it counts as missing."""
        size = frame.height
        self._rows += size
        for lane in self._lanes:
            lane.load(frame)
        hashes_CR = np.zeros((len(self._lanes), BLOCK_ROWS), np.uint64)
        depths_R = np.zeros(BLOCK_ROWS, np.uint8)
        for start in range(0, size, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, size)
            rows_R = np.zeros(BLOCK_ROWS, np.uint64)
            for lane, hashes_R in zip(self._lanes, hashes_CR, strict=True):
                lane.hash(start, stop, hashes_R, rows_R)
            murmur.depths(rows_R, stop - start, depths_R)
            for lane, hashes_R in zip(self._lanes, hashes_CR, strict=True):
                lane.count(start, stop, hashes_R, depths_R)
        for lane in self._lanes:
            lane.name_values()

    def finish(self) -> TableStatistics:
        """The statistics of all rows so far."""
        return TableStatistics(rows=self._rows, columns=tuple(lane.statistics(self._rows) for lane in self._lanes))


def hashes_of(values: Sequence[Value], kind: ColumnType) -> list[int]:
    """The hashes of a column's values, as its statistics name them, in its distinct sketch."""
    lane = _Lane(Column(name="value", type=kind))
    texts = ["" if isinstance(value, str) and _is_long(value) else value for value in values]
    lane.load(pl.DataFrame({"value": pl.Series(texts, dtype=pl.String if kind == "string" else None)}))
    hashes = np.zeros(len(values), np.uint64)
    lane.hash(0, len(values), hashes, np.zeros(len(values), np.uint64))
    found = zip(values, hashes.tolist(), strict=True)
    return [(int(value[-16:], 16) if isinstance(value, str) and _is_long(value) else one) >> 1 for value, one in found]


class _Lane:
    """The state of one column."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.missing = 0
        self.state = np.array([0, 0, 0, WHOLE], np.int64)
        self.thetas = np.zeros(64, np.uint64)
        self.keys, self.origins = np.zeros(16, np.uint64), np.full(16, -1, np.int64)
        self.counts = np.zeros((murmur.DEPTHS, 16), np.int64)
        self.slots, self.entries = np.zeros(32, np.uint64), np.zeros(32, np.int32)
        self.names: dict[int, Value] = {}
        real = column.type == "float64"
        self.extremes = np.array(NONE_YET if real else NONE_YET_WHOLE, np.float64 if real else np.int64)
        low, high = (bucket_of(column.type, end) for end in SPAN.get(column.type, (0, 1)))
        self.base, self.pages = low, np.full(((high - low) >> sketches.PAGE_BITS) + 2, -1, np.int32)
        self.pages[-1] = 0
        self.buckets = np.zeros((1, 1 << sketches.PAGE_BITS), np.int64)

    def load(self, frame: pl.DataFrame) -> None:
        """Take the column's buffers; values that are not finite become missing."""
        name, kind = self.column.name, self.column.type
        series = (
            frame[name].rechunk() if name in frame.columns else pl.Series(name, [None] * frame.height, dtype=pl.Int64)
        )
        if series.dtype == pl.String:
            self._load_texts(series)
            return
        if series.dtype == pl.Binary:
            series = series.bin.size().cast(pl.Int64)
        elif series.dtype == pl.Float64:
            finite = series.is_finite()
            series = series if finite.all() else series.set(~finite, None)
        else:
            series = series.to_physical().cast(pl.Int64)
        self.series = series
        array = series.to_arrow()
        validity, data = array.buffers()
        self.missing += array.null_count
        self.offset = array.offset
        self.validity = _bytes(validity) if array.null_count else NOTHING
        self.values = np.frombuffer(data, np.float64) + 0.0 if kind == "float64" else np.frombuffer(data, np.int64)
        self.words = self.values.view(np.int64)

    def _load_texts(self, series: pl.Series) -> None:
        self.series = series
        array = series.to_arrow(compat_level=pl.CompatLevel.newest())
        self.missing += array.null_count
        buffers = array.buffers()
        self.views = np.frombuffer(buffers[1], np.uint64)
        self.ends = NOTHING
        if len(buffers) > 2 and any(buffer is not None and buffer.size for buffer in buffers[2:]):
            array = array.cast(pa.large_string())
            buffers = array.buffers()
            self.ends, self.data = np.frombuffer(buffers[1], np.int64), _bytes(buffers[2])
        self.offset = array.offset
        self.validity = _bytes(buffers[0]) if array.null_count else NOTHING

    def hash(self, start: int, stop: int, hashes_R: Any, rows_R: Any) -> None:
        """Hashes of a block's values, and added to the hashes of its rows."""
        block = (self.validity, self.offset, start, stop, hashes_R, rows_R)
        if self.series.dtype != pl.String:
            murmur.hash_words(self.words, *block)
        elif len(self.ends):
            murmur.hash_texts(self.data, self.ends, *block)
        else:
            murmur.hash_short_texts(self.views, *block)

    def count(self, start: int, stop: int, hashes_R: Any, depths_R: Any) -> None:
        """Count a block's values by their hashes."""
        size, at = stop - start, 0
        while at < size:
            at = sketches.observe(
                hashes_R, depths_R, at, size, start, self.state,
                self.slots, self.entries, self.keys, self.counts, self.origins, self.thetas,
            )  # fmt: skip
            if at < size:
                self._grow()
        at = 0 if self.column.type in DIVISORS else size
        while at < size:
            at = sketches.add_to_histogram(
                self.values, self.words, DIVISORS[self.column.type], self.offset + start, at, size, hashes_R,
                self.extremes, self.pages, self.base, self.buckets,
            )  # fmt: skip
            if at < size:
                self.buckets = np.concatenate([self.buckets, np.zeros_like(self.buckets)])

    def name_values(self) -> None:
        """Make texts or numbers of the values first counted in this frame, while it is there."""
        size = self.state[sketches.NUM_VALUES]
        new = np.flatnonzero(self.origins[:size] >= 0)
        found = self.series.gather(self.origins[new]).to_list() if len(new) else []
        for key, value in zip(self.keys[new].tolist(), found, strict=True):
            self.names[key] = _shown(value, key, self.column.type)
        self.origins[:] = -1
        if len(self.names) > 4 * VALUES:
            self.names = {key: self.names[key] for key in self.keys[:size].tolist()}

    def statistics(self, rows: int) -> ColumnStatistics:
        sketches.trim_hashes(self.state, self.thetas)
        size, level = int(self.state[sketches.NUM_VALUES]), int(self.state[sketches.LEVEL])
        counts = np.ascontiguousarray(self.counts[level:, :size].T)
        ends = counts.shape[1] - np.argmax(counts[:, ::-1] > 0, axis=1) if size else ()
        values = {
            self.names[key]: tuple(row[:end].tolist())
            for key, row, end in zip(self.keys[:size].tolist(), counts, ends, strict=True)
        }
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
            values=dict(sorted(values.items(), key=lambda entry: (-sum(entry[1]), entry[0]))),
        )

    def _histogram(self) -> dict[int, int]:
        pages = np.flatnonzero(self.pages[:-1] >= 0)
        rows = self.buckets[self.pages[pages]].ravel()
        buckets = ((pages[:, None] << sketches.PAGE_BITS) + np.arange(1 << sketches.PAGE_BITS)).ravel() + self.base
        return dict(zip(buckets[rows > 0].tolist(), rows[rows > 0].tolist(), strict=True))

    def _grow(self) -> None:
        if self.state[sketches.NUM_VALUES] == len(self.keys):
            size = min(4 * len(self.keys), VALUES)
            self.keys, self.origins = _longer(self.keys, size), _longer(self.origins, size)
            self.counts = np.pad(self.counts, ((0, 0), (0, size - self.counts.shape[1])))
            self.slots, self.entries = np.zeros(2 * size, np.uint64), np.zeros(2 * size, np.int32)
            sketches.place_values(self.slots, self.entries, self.keys, self.state[sketches.NUM_VALUES])
        if 2 * self.state[sketches.NUM_HASHES] >= len(self.thetas):
            held, self.thetas = self.thetas, np.zeros(min(4 * len(self.thetas), sketches.THETA_SLOTS), np.uint64)
            sketches.insert_all(self.thetas, held)


def _shown(value: Any, key: int, kind: ColumnType) -> Value:
    """A value as the statistics name it: of a long text the beginning, and its hash, so that no two become one."""
    if kind == "bool":
        return bool(value)
    if isinstance(value, str) and len(value) > LONG_TEXT:
        return f"{value[:BEGINNING]}…{key:016x}"
    return cast(Value, value + 0.0 if isinstance(value, float) else value)  # -0.0 is 0.0


def _is_long(value: str) -> bool:
    return len(value) == BEGINNING + 17 and value[BEGINNING] == "…"


def _longer(array: Any, size: int) -> Any:
    return np.pad(array, (0, size - len(array)))


def _bytes(buffer: Any) -> Any:
    return NOTHING if buffer is None else np.frombuffer(buffer, np.uint8)
