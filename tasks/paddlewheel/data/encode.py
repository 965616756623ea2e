"""One fitted feature and its values for a frame of rows.

Every value is computed from its row alone by scalar code, so that a row gives the same bits alone, in a batch and in
any order; numpy's vectorised sine and logarithm do not promise that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import polars as pl

from paddlewheel.data.text import hash_texts, joined_text
from paddlewheel.data.types import POLARS_TYPES
from paddlewheel.recipe_data import FeatureKind

ID_KINDS: frozenset[FeatureKind] = frozenset({"category", "hash", "cross", "quantile", "weekday", "month"})
CIRCLE_KINDS: frozenset[FeatureKind] = frozenset({"clock", "cyclic"})
MINUTES_A_DAY = 1440
LARGEST = 1e30  # a float64 outlier must not become an infinite float32


@dataclass(frozen=True, kw_only=True)
class FittedFeature:
    """One feature with what it learnt: a vocabulary, bin edges, or mean and deviation. `indicator`: nulls were seen."""

    name: str
    kind: FeatureKind
    columns: tuple[str, ...]
    vocabulary: tuple[str, ...] = ()
    buckets: int = 0
    edges: tuple[float, ...] = ()
    timezone: str | None = None
    period: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0
    indicator: bool = False

    @property
    def is_id(self) -> bool:
        return self.kind in ID_KINDS

    @property
    def id_size(self) -> int:
        """Ids of an id feature lie in 0 <= id < id_size; 0 stands for missing, and for a value never seen."""
        sizes = {"category": len(self.vocabulary) + 1, "quantile": len(self.edges) + 2, "weekday": 8, "month": 13}
        return sizes.get(self.kind, self.buckets + 1)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the numbers that a dense feature gives."""
        values = [f"{self.name}_sin", f"{self.name}_cos"] if self.kind in CIRCLE_KINDS else [self.name]
        return (*values, f"{self.name}_missing") if self.indicator else tuple(values)


def id_values(feature: FittedFeature, frame: pl.DataFrame) -> np.ndarray:
    """The ids of an id feature: int32[B]. A cross of which one column is missing is missing."""
    columns = [frame[name] for name in feature.columns]
    if feature.kind == "quantile":
        return _bins(columns[0], feature.edges)
    if feature.kind in ("weekday", "month"):
        times = columns[0]
        if feature.timezone and times.dtype == POLARS_TYPES["timestamp"]:
            times = times.dt.convert_time_zone(feature.timezone)
        ids = times.dt.weekday() if feature.kind == "weekday" else times.dt.month()
    elif feature.kind == "category":
        numbers = list(range(1, len(feature.vocabulary) + 1))
        ids = joined_text(columns, null=None).replace_strict(
            list(feature.vocabulary), numbers, default=0, return_dtype=pl.Int32
        )
    else:
        ids = hash_texts(joined_text(columns, null=None)) % feature.buckets + 1
    return cast(np.ndarray, ids.cast(pl.Int32).fill_null(0).to_numpy())


def dense_values(feature: FittedFeature) -> list[pl.Expr]:
    """The float32 columns of a dense feature, named as `dense_names`; missing -> 0, and 1 in the indicator."""
    value = raw_value(feature)
    if feature.kind in CIRCLE_KINDS:
        angle = value * (2 * math.pi / (MINUTES_A_DAY if feature.kind == "clock" else feature.period))
        values = [angle.sin(), angle.cos()]
    else:
        values = [((value - feature.mean) / feature.deviation).clip(-LARGEST, LARGEST)]
    if feature.indicator:
        values.append(value.is_null())
    return [
        expression.cast(pl.Float32).fill_null(0.0).alias(name)
        for expression, name in zip(values, feature.dense_names, strict=True)
    ]


def raw_value(feature: FittedFeature) -> pl.Expr:
    """The finite float64 that a dense feature is made of, before standardising; null where there is none."""
    value = pl.col(feature.columns[0]).cast(pl.Float64)
    if feature.kind == "age":
        value = value - pl.col(feature.columns[1]).cast(pl.Float64)
    elif feature.kind == "log1p":
        value = pl.when(value > -1).then(value).log1p()
    elif feature.kind == "clock":
        hours = (value / 100).floor()
        value = hours * 60 + (value - hours * 100)
    return pl.when(value.is_finite()).then(value)


def _bins(values: pl.Series, edges: Sequence[float]) -> np.ndarray:
    """1 + the number of edges at or below each value; 0 where it is missing."""
    numbers = values.cast(pl.Float64).to_numpy()
    known = np.isfinite(numbers)
    ids = np.searchsorted(np.asarray(edges, np.float64), np.where(known, numbers, 0.0), side="right") + 1
    return np.where(known, ids, 0).astype(np.int32)
