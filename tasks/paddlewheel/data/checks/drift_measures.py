"""How far a column is from what it was: five measures out of its statistics alone, no row is read again.

- missing: difference of the shares of missing values.
- outside: share of values outside the reference's range, to the width of a bucket.
- psi: population stability index, sum of (q - p) ln(q / p) over bins: the Jeffreys divergence (Kullback and Leibler,
  On information and sufficiency, 1951), named so in credit scoring (Siddiqi, Credit Risk Scorecards, 2006).
- divergence: Jensen-Shannon divergence in bits (Lin, 1991) over the same bins, between 0 and 1.
- new: share of values that the reference does not have, of texts and truths.

Bins: at least a tenth of the reference each, a bucket with a tenth or more alone, what lies beyond in the outermost; of
texts and truths the reference's 20 most frequent values, and the rest. Half a row is added to each bin of both
(Krichevsky and Trofimov's estimate), so that an empty one weighs what its absence from so few rows is worth.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Final

from paddlewheel.data.statistics.histogram import bucket_of
from paddlewheel.data.statistics.table_statistics import ColumnStatistics, Value
from paddlewheel.data.statistics.theta import read_theta

MEASURES: Final = ("missing", "outside", "psi", "divergence", "new")
FEWEST_ROWS: Final = 30  # below which, on either side, nothing is measured
FEWEST_VALUES: Final = 100  # below which distributions are not compared
BINS: Final = 10
TOP_VALUES: Final = 20
ADDED: Final = 0.5
SURE: Final = 3.09  # standard deviations that chance exceeds once in a thousand times


def measure(reference: ColumnStatistics, seen: ColumnStatistics) -> dict[str, float]:
    """The measures that apply, rounded to six places; none where either side has too few rows."""
    found: dict[str, float] = {}
    if min(reference.rows, seen.rows) < FEWEST_ROWS:
        return found
    found["missing"] = abs(seen.missing_share - reference.missing_share)
    if min(reference.present, seen.present) >= FEWEST_ROWS and reference.histogram:
        found["outside"] = _outside(reference, seen)
    if min(reference.present, seen.present) >= FEWEST_VALUES:
        counts = bins(reference, seen)
        if counts:
            found["psi"], found["divergence"] = _psi(*counts), _divergence(*counts)
        if reference.type in ("string", "bool"):
            new = _new(reference, seen)
            found |= {} if new is None else {"new": new}
    return {name: round(value, 6) for name, value in found.items()}


def chance(name: str, reference: ColumnStatistics, seen: ColumnStatistics) -> float:
    """What so few rows of one and the same distribution exceed once in a thousand times.

    psi: (1/n + 1/m) times chi-squared with a degree of freedom less than there are bins (Yurdakul and Naranjo, 2020),
    its quantile by Wilson and Hilferty; a small divergence is that over 8 ln 2. Shares: three standard errors.
    """
    if name in ("psi", "divergence"):
        counts = bins(reference, seen)
        freedom = max(len(counts[0]) - 1, 1) if counts else 1
        part = 2 / (9 * freedom)
        quantile = freedom * (1 - part + SURE * math.sqrt(part)) ** 3
        index = quantile * (1 / max(_counted(reference), 1) + 1 / max(_counted(seen), 1))
        return index if name == "psi" else index / (8 * math.log(2))
    if name == "missing":
        share = reference.missing_share
        return SURE * math.sqrt(max(share * (1 - share), 1 / seen.rows) / seen.rows) if seen.rows else 0.0
    return 0.0


def bins(reference: ColumnStatistics, seen: ColumnStatistics) -> tuple[list[float], list[float]] | None:
    """Rows by bin of the reference and of what is seen; None where the type has no bins (days and times)."""
    if reference.type in ("date", "timestamp"):
        return None
    if reference.histogram:
        edges = bin_starts(reference)
        return binned(reference.histogram, edges), binned(seen.histogram, edges)
    names = [value for value, _ in reference.top(TOP_VALUES)]
    return _by_value(reference, names), _by_value(seen, names)


def bin_starts(reference: ColumnStatistics) -> list[int]:
    """First buckets of the bins after the first one."""
    total, start, rows = sum(reference.histogram.values()), None, 0
    starts: list[int] = []
    for bucket in sorted(reference.histogram):
        here = reference.histogram[bucket]
        heavy = here * BINS >= total
        if start is None or heavy or rows * BINS >= total:
            starts.append(bucket)
            start, rows = bucket, 0
        rows += here
        if heavy:
            start = None
    return starts[1:]


def binned(histogram: Mapping[int, int], starts: Sequence[int]) -> list[float]:
    """Rows of a histogram by bin."""
    counts = [0.0] * (len(starts) + 1)
    for bucket, rows in histogram.items():
        counts[bisect.bisect_right(starts, bucket)] += rows
    return counts


def _by_value(column: ColumnStatistics, names: Sequence[Value]) -> list[float]:
    counts = column.counts()
    named = [float(counts.get(name, 0)) for name in names]
    return [*named, max(0.0, column.present - sum(named))]


def _counted(column: ColumnStatistics) -> int:
    """Rows that the shares rest on: of texts beyond the capacity a sample of them."""
    return column.present if column.histogram else column.sampled


def _outside(reference: ColumnStatistics, seen: ColumnStatistics) -> float:
    if reference.minimum is None or reference.maximum is None or reference.type in ("date", "timestamp"):
        lowest, highest = min(reference.histogram), max(reference.histogram)
    else:
        lowest, highest = (bucket_of(reference.type, end) for end in (reference.minimum, reference.maximum))
    beyond = sum(rows for bucket, rows in seen.histogram.items() if not lowest <= bucket <= highest)
    return beyond / seen.present


def _smoothed(counts: Sequence[float]) -> list[float]:
    total = sum(counts) + ADDED * len(counts)
    return [(count + ADDED) / total for count in counts]


def _psi(reference: Sequence[float], seen: Sequence[float]) -> float:
    pairs = zip(_smoothed(reference), _smoothed(seen), strict=True)
    return math.fsum((q - p) * math.log(q / p) for p, q in pairs)


def _divergence(reference: Sequence[float], seen: Sequence[float]) -> float:
    pairs = list(zip(_smoothed(reference), _smoothed(seen), strict=True))
    terms = [p * math.log2(2 * p / (p + q)) + q * math.log2(2 * q / (p + q)) for p, q in pairs]
    return max(0.0, math.fsum(terms) / 2)


def _new(reference: ColumnStatistics, seen: ColumnStatistics) -> float | None:
    """Exact where the reference has no more values than are counted; else of those values whose hash it would know."""
    rows = {value: sum(counts) for value, counts in seen.values.items()}
    if reference.level == 0:
        return sum(count for value, count in rows.items() if value not in reference.values) / max(seen.sampled, 1)
    from paddlewheel.data.statistics.builder import hashes_of

    theta, known = read_theta(reference.theta)
    held, told, new = set(known.tolist()), 0, 0
    for count, one in zip(rows.values(), hashes_of(list(rows), reference.type), strict=True):
        if one < theta:
            told += count
            new += count if one not in held else 0
    return new / told if told >= FEWEST_ROWS else None
