"""What one feature learns of the training rows, batch by batch: exactly, so that no split or order of them shows.

A vocabulary needs memory for its distinct values, everything else a fixed amount.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import polars as pl

from paddlewheel.data.encoding.encode import CIRCLE_KINDS, FittedFeature, raw_value
from paddlewheel.data.encoding.encode_text import split_values
from paddlewheel.data.encoding.exact_sums import ExactMoments
from paddlewheel.data.encoding.quantiles import Quantiles
from paddlewheel.data.text import joined_text
from paddlewheel.recipe_data import Feature

MERGE_ROWS = 1 << 20
SET_PARAMETERS = ("buckets", "timezone", "period", "lower", "upper", "length", "separator", "ngram")


class Fitter(Protocol):
    """What a feature has learnt so far."""

    def add(self, rows: pl.DataFrame) -> None:
        """Take in training rows; in a further pass again all of them."""

    def end_pass(self) -> bool:
        """Whether it needs all rows once more."""

    def fitted(self) -> FittedFeature:
        """The feature as it is applied."""


def build_fitter(feature: Feature) -> Fitter | FittedFeature:
    """The feature's fitter; the feature as it is applied where there is nothing to learn."""
    parameters: Mapping[str, Any] = {
        name: getattr(feature, name) for name in SET_PARAMETERS if getattr(feature, name) is not None
    }
    start = FittedFeature(name=feature.name, kind=feature.kind, columns=feature.columns, **parameters)
    if feature.kind in ("category", "multi"):
        return VocabularyFitter(start, min_count=feature.min_count or 1, max_size=feature.max_size)
    if feature.kind == "quantile":
        return QuantileFitter(start, bins=feature.bins or 2)
    if feature.kind == "characters" and feature.ngram is None:
        return replace(start, ngram=3)
    return start if start.is_id else NumberFitter(start)


class VocabularyFitter:
    """Values by sightings, the most frequent first, of equal counts in the order of their bytes."""

    def __init__(self, feature: FittedFeature, *, min_count: int, max_size: int | None) -> None:
        self._feature = feature
        self._min_count = min_count
        self._max_size = max_size
        self._counts: list[pl.DataFrame] = []
        self._pending = 0

    def add(self, rows: pl.DataFrame) -> None:
        columns = [rows[name] for name in self._feature.columns]
        if self._feature.kind == "multi":
            _, _, texts = split_values(columns[0], self._feature.separator, self._feature.length)
        else:
            texts = joined_text(columns, null=None).drop_nulls()
        self._counts.append(texts.alias("value").value_counts().cast({"count": pl.Int64}))
        self._pending += len(self._counts[-1])
        if self._pending > max(MERGE_ROWS, len(self._counts[0])):
            self._merge()

    def end_pass(self) -> bool:
        return False

    def fitted(self) -> FittedFeature:
        self._merge()
        counts = self._counts[0].filter(pl.col("count") >= self._min_count)
        ordered = counts.sort("count", "value", descending=[True, False])["value"]
        return replace(self._feature, vocabulary=tuple(ordered.head(self._max_size or len(ordered))))

    def _merge(self) -> None:
        merged = pl.concat(self._counts).group_by("value").agg(pl.col("count").sum())
        self._counts, self._pending = [merged], 0


class NumberFitter:
    """Mean, deviation and whether values are missing. A circle learns the last alone."""

    def __init__(self, feature: FittedFeature) -> None:
        self._feature = feature
        self._moments = ExactMoments()
        self._missing = False

    def add(self, rows: pl.DataFrame) -> None:
        values = raw_value(self._feature, rows)
        self._missing = self._missing or bool(values.null_count())
        if self._feature.kind not in CIRCLE_KINDS:
            self._moments.add(values.drop_nulls().to_numpy())

    def end_pass(self) -> bool:
        return False

    def fitted(self) -> FittedFeature:
        deviation = self._moments.deviation()
        return replace(
            self._feature, indicator=self._missing, mean=self._moments.mean(), deviation=deviation if deviation else 1.0
        )


class QuantileFitter:
    """Edges of bins that hold about equally many training rows each."""

    def __init__(self, feature: FittedFeature, *, bins: int) -> None:
        self._feature = feature
        self._quantiles = Quantiles(bins)

    def add(self, rows: pl.DataFrame) -> None:
        self._quantiles.add(np.asarray(raw_value(self._feature, rows).drop_nulls().to_numpy(), np.float64))

    def end_pass(self) -> bool:
        return self._quantiles.end_pass()

    def fitted(self) -> FittedFeature:
        return replace(self._feature, edges=self._quantiles.edges())
