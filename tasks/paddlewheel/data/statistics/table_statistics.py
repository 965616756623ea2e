"""Statistics of a table in one pass, mergeable over files and days: any split or order of the rows gives equal bytes.

A column has: rows, missing values, minimum and maximum, a histogram (quantiles), distinct values, most frequent values.

- Histogram: exact counts in fixed buckets. A float's bucket is its sign, exponent and first 9 bits of mantissa, a whole
  number's is itself below 1,024 and its first 10 bits beyond: a quantile is off by at most 1/512 of its value. Days
  and times count by day. Rejected: KLL and the other quantile sketches of DataSketches, whose compaction flips coins,
  so that the same rows give other bytes each time; an exact merge needs fixed buckets (as in HdrHistogram, DDSketch).
- Distinct: a theta sketch of Apache DataSketches with k = 4,096, trimmed to k: exact up to 4,096 values, beyond that
  with a relative standard error of 1.6 %. Its serialised form can be read by that library in any language.
- Most frequent: each value's exact count up to 1,024 distinct values. Beyond, the counts of the rows whose hash falls
  below 2**-level, with the smallest level at which no more than 1,024 values are left: a uniform sample of the rows
  (those equal in every column count as one), estimated times 2**level. Rejected: frequent_strings of DataSketches,
  whose evictions depend on the order of the rows.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from paddlewheel.data.statistics.histogram import bucket_edges
from paddlewheel.data.statistics.theta import merge_thetas, sketch_of
from paddlewheel.errors import StorageError
from paddlewheel.recipe_data import ColumnType

STATISTICS_VERSION: Final = 1
VALUES: Final = 1024  # values of a column that are counted one by one
Value = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class ColumnStatistics:
    """What is known of one column over `rows` rows, `missing` of which have no value (or one that is not finite).

    Dates are days since 1970, timestamps microseconds; of binary columns all is about their lengths in bytes. minimum,
    maximum, histogram (bucket -> rows): not of texts and truths. theta: the serialised sketch. level, values: each
    value's counts by the depth of their rows, depths below `level` left out; of a long text its beginning and hash.
    """

    name: str
    type: ColumnType
    rows: int
    missing: int
    minimum: int | float | None
    maximum: int | float | None
    histogram: Mapping[int, int]
    theta: bytes
    level: int
    values: Mapping[Value, tuple[int, ...]]

    @property
    def present(self) -> int:
        """Rows with a value."""
        return self.rows - self.missing

    @property
    def missing_share(self) -> float:
        """Missing values among the rows, 0 where there is none."""
        return self.missing / self.rows if self.rows else 0.0

    @property
    def distinct(self) -> int:
        """Distinct values: exact up to 4,096, an estimate beyond."""
        return round(sketch_of(self.theta).get_estimate())

    @property
    def sampled(self) -> int:
        """Rows with a value that the counts of values are made of: all of them at level 0."""
        return sum(sum(counts) for counts in self.values.values())

    def counts(self) -> dict[Value, int]:
        """Rows by value, the most frequent first; estimates where `level` is above 0."""
        found = [(sum(counts) << self.level, value) for value, counts in self.values.items()]
        return {value: count for count, value in sorted(found, key=lambda entry: (-entry[0], entry[1]))}

    def top(self, most: int) -> list[tuple[Value, int]]:
        """The most frequent values with their rows."""
        return list(self.counts().items())[:most]

    def quantile(self, share: float) -> float | None:
        """The value below which this share of the values lies, off by at most 1/512 of it; None without a histogram.

        Exact where each value is counted.
        """
        if not self.histogram or self.minimum is None or self.maximum is None:
            return None
        exact = self.level == 0 and self.values and self.type not in ("date", "timestamp")
        rows: Mapping[Any, int] = self.histogram
        if exact:
            rows = {value: sum(counts) for value, counts in self.values.items()}
        wanted, seen = share * self.present, 0
        for place in sorted(rows):
            seen += rows[place]
            if seen >= wanted:
                return float(place) if exact else self._middle(int(place))
        return float(self.maximum)

    def _middle(self, bucket: int) -> float:
        low, high = bucket_edges(self.type, bucket)
        middle = low if self.type != "float64" and high - low <= 1 else (low + high) / 2
        if self.type == "timestamp" or self.minimum is None or self.maximum is None:
            return middle
        return min(max(middle, float(self.minimum)), float(self.maximum))


@dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """Statistics of rows of one shape, by column in the order of the recipe."""

    rows: int
    columns: tuple[ColumnStatistics, ...]

    def __getitem__(self, name: str) -> ColumnStatistics:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @functools.cached_property
    def _by_name(self) -> dict[str, ColumnStatistics]:
        return {column.name: column for column in self.columns}

    def to_json(self) -> bytes:
        """Canonical JSON, a column a line: equal rows give equal bytes."""
        lines = ",\n".join(json.dumps(_tree(column), ensure_ascii=False, allow_nan=False) for column in self.columns)
        return f'{{"version": {STATISTICS_VERSION}, "rows": {self.rows}, "columns": [\n{lines}\n]}}\n'.encode()

    @staticmethod
    def from_json(raw: bytes, where: str) -> TableStatistics:
        """Parse what `to_json` wrote. Raises StorageError naming `where` for anything else."""
        try:
            tree = json.loads(raw)
            if tree["version"] != STATISTICS_VERSION:
                raise StorageError(
                    f"{where} holds statistics of version {tree['version']}, this program reads {STATISTICS_VERSION}"
                )
            return TableStatistics(rows=tree["rows"], columns=tuple(_column(entry) for entry in tree["columns"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{where} holds no statistics: {error!r}; restore it, or remove its folder") from error


def merge(parts: Iterable[TableStatistics]) -> TableStatistics:
    """The statistics of all rows together, equal to those of one pass over them. Raises ValueError for no parts."""
    found = list(parts)
    if not found:
        raise ValueError("no statistics to merge")
    if len(found) == 1:
        return found[0]
    columns = tuple(_merge_columns(column) for column in zip(*(part.columns for part in found), strict=True))
    return TableStatistics(rows=sum(part.rows for part in found), columns=columns)


def _merge_columns(parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
    first = parts[0]
    histogram: dict[int, int] = {}
    for part in parts:
        for bucket, rows in part.histogram.items():
            histogram[bucket] = histogram.get(bucket, 0) + rows
    level, values = _merge_values(parts)
    return ColumnStatistics(
        name=first.name,
        type=first.type,
        rows=sum(part.rows for part in parts),
        missing=sum(part.missing for part in parts),
        minimum=min((part.minimum for part in parts if part.minimum is not None), default=None),
        maximum=max((part.maximum for part in parts if part.maximum is not None), default=None),
        histogram=dict(sorted(histogram.items())),
        theta=merge_thetas([part.theta for part in parts]),
        level=level,
        values=values,
    )


def _merge_values(parts: Sequence[ColumnStatistics]) -> tuple[int, dict[Value, tuple[int, ...]]]:
    level = max(part.level for part in parts)
    sums: dict[Value, list[int]] = {}
    for part in parts:
        for value, counts in part.values.items():
            total = sums.setdefault(value, [])
            total.extend([0] * (part.level + len(counts) - len(total)))
            for depth, count in enumerate(counts, part.level):
                total[depth] += count
    while True:
        kept = {value: tuple(total[level:]) for value, total in sums.items() if len(total) > level}
        kept = {value: counts for value, counts in kept.items() if any(counts)}
        if len(kept) <= VALUES:
            return level, _sorted_values(kept)
        level += 1


def _sorted_values(values: Mapping[Value, tuple[int, ...]]) -> dict[Value, tuple[int, ...]]:
    """The most frequent first, then by value."""
    return dict(sorted(values.items(), key=lambda entry: (-sum(entry[1]), entry[0])))


def _tree(column: ColumnStatistics) -> dict[str, Any]:
    """Buckets as steps from one to the next, values as [value, counts…]: half the bytes of the plain form."""
    buckets = sorted(column.histogram)
    steps = [after - before for before, after in zip([0, *buckets], buckets, strict=False)]
    return {
        "name": column.name,
        "type": column.type,
        "rows": column.rows,
        "missing": column.missing,
        "minimum": column.minimum,
        "maximum": column.maximum,
        "bucket_steps": steps,
        "bucket_rows": [column.histogram[bucket] for bucket in buckets],
        "theta": base64.b64encode(column.theta).decode(),
        "level": column.level,
        "values": [[value, *counts] for value, counts in column.values.items()],
    }


def _column(tree: Mapping[str, Any]) -> ColumnStatistics:
    buckets, at = [], 0
    for step in tree["bucket_steps"]:
        at += step
        buckets.append(at)
    return ColumnStatistics(
        **{name: tree[name] for name in ("name", "type", "rows", "missing", "minimum", "maximum", "level")},
        histogram=dict(zip(buckets, tree["bucket_rows"], strict=True)),
        theta=base64.b64decode(tree["theta"]),
        values={entry[0]: tuple(entry[1:]) for entry in tree["values"]},
    )
