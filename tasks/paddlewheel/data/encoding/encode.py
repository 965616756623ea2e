"""One fitted feature and its values for a frame of rows.

Every value is computed from its row alone by scalar code, so that a row gives the same bits alone, in a batch and in
any order; numpy's vectorised sine and logarithm do not promise that.
Axes: B rows, L id columns of one feature.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from paddlewheel.data.encoding.encode_text import BYTE_IDS, byte_ids, multi_ids, ngram_ids, vocabulary_ids
from paddlewheel.data.encoding.encode_time import calendar_ids, hour_of_day, local_time, share_of_year
from paddlewheel.data.text import hash_each, joined_text
from paddlewheel.recipe_data import FeatureKind

SEQUENCE_KINDS: frozenset[FeatureKind] = frozenset({"multi", "words", "characters", "bytes"})
ID_KINDS: frozenset[FeatureKind] = SEQUENCE_KINDS | {"category", "hash", "cross", "quantile", "weekday", "month"}
PERIODS: dict[FeatureKind, float] = {"clock": 1440.0, "hour": 24.0, "year_day": 1.0}  # of raw_value; cyclic has its own
CIRCLE_KINDS: frozenset[FeatureKind] = frozenset({"cyclic", *PERIODS})
LARGEST = 1e30  # a float64 outlier must not become an infinite float32


@dataclass(frozen=True, kw_only=True)
class FittedFeature:
    """One feature with what it learnt: a vocabulary, bin edges, or mean and deviation. `indicator`: nulls were seen.

    length: id columns of a sequence; ngram: the longest; lower and upper: of a clip.
    """

    name: str
    kind: FeatureKind
    columns: tuple[str, ...]
    vocabulary: tuple[str, ...] = ()
    buckets: int = 0
    edges: tuple[float, ...] = ()
    timezone: str | None = None
    period: float = 0.0
    lower: float | None = None
    upper: float | None = None
    length: int = 1
    separator: str = ""
    ngram: int = 1
    mean: float = 0.0
    deviation: float = 1.0
    indicator: bool = False

    @property
    def is_id(self) -> bool:
        return self.kind in ID_KINDS

    @property
    def id_names(self) -> tuple[str, ...]:
        """Names of an id feature's columns."""
        if self.kind in SEQUENCE_KINDS:
            return tuple(f"{self.name}_{place}" for place in range(1, self.length + 1))
        return (self.name,)

    @property
    def id_size(self) -> int:
        """Ids of an id feature lie in 0 <= id < id_size; 0 stands for missing, and for a value never seen."""
        if self.kind in ("category", "multi"):
            return len(self.vocabulary) + 1
        sizes = {"quantile": len(self.edges) + 2, "weekday": 8, "month": 13, "bytes": BYTE_IDS}
        return sizes.get(self.kind, self.buckets + 1)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the numbers that a dense feature gives."""
        values = [f"{self.name}_sin", f"{self.name}_cos"] if self.kind in CIRCLE_KINDS else [self.name]
        return (*values, f"{self.name}_missing") if self.indicator else tuple(values)

    @functools.cached_property
    def vocabulary_type(self) -> pl.Enum:
        """The vocabulary as a polars type: a text cast to it is its place."""
        return pl.Enum(list(self.vocabulary))


def id_values(feature: FittedFeature, frame: pl.DataFrame) -> np.ndarray:
    """The ids of an id feature: int32[B, L]. A cross of which one column is missing is missing."""
    columns = [frame[name] for name in feature.columns]
    first = columns[0]
    if feature.kind == "quantile":
        return _bins(first, feature.edges)[:, None]
    if feature.kind in ("weekday", "month"):
        found = calendar_ids(local_time(first, feature.timezone), feature.kind)
        return found.cast(pl.Int32).fill_null(0).to_numpy()[:, None]
    if feature.kind == "category":
        return vocabulary_ids(joined_text(columns, null=None), feature.vocabulary_type)[:, None]
    if feature.kind == "multi":
        return multi_ids(first, feature.separator, feature.length, feature.vocabulary_type)
    if feature.kind == "bytes":
        return byte_ids(first, feature.length)
    if feature.kind in ("words", "characters"):
        return ngram_ids(first, feature.kind, feature.length, feature.ngram, feature.buckets)
    texts = joined_text(columns, null=None)
    ids = (hash_each(texts) % np.uint64(feature.buckets)).astype(np.int32) + np.int32(1)
    return np.where(texts.is_null().to_numpy(), np.int32(0), ids)[:, None]


def dense_values(feature: FittedFeature, frame: pl.DataFrame) -> list[np.ndarray]:
    """The numbers of a dense feature, float32[B] each, as in `dense_names`; missing -> 0, and 1 in the indicator."""
    value = raw_value(feature, frame)
    if feature.kind in CIRCLE_KINDS:
        angle = value * (2 * math.pi / PERIODS.get(feature.kind, feature.period))
        values = [angle.sin(), angle.cos()]
    else:
        values = [((value - feature.mean) / feature.deviation).clip(-LARGEST, LARGEST)]
    if feature.indicator:
        values.append(value.is_null())
    return [one.cast(pl.Float32).fill_null(0.0).to_numpy() for one in values]


def raw_value(feature: FittedFeature, frame: pl.DataFrame) -> pl.Series:
    """The finite float64 that a feature is made of, before standardising; null where there is none."""
    first = frame[feature.columns[0]]
    if feature.kind in ("hour", "year_day"):
        times = local_time(first, feature.timezone)
        return hour_of_day(times) if feature.kind == "hour" else share_of_year(times)
    value = first.cast(pl.Float64)
    if feature.kind == "age":
        value = value - frame[feature.columns[1]].cast(pl.Float64)
    elif feature.kind == "log1p":
        value = value.set(value <= -1, None).log1p()
    elif feature.kind == "clip":
        value = value.clip(feature.lower, feature.upper)
    elif feature.kind == "clock":
        hours = (value / 100).floor()
        value = hours * 60 + (value - hours * 100)
    return value.set(~value.is_finite(), None)


def _bins(values: pl.Series, edges: Sequence[float]) -> np.ndarray:
    """1 + the number of edges at or below each value; 0 where it is missing."""
    numbers = values.cast(pl.Float64).to_numpy()
    known = np.isfinite(numbers)
    ids = np.searchsorted(np.asarray(edges, np.float64), np.where(known, numbers, 0.0), side="right") + 1
    return np.where(known, ids, 0).astype(np.int32)
