"""Bootstrap intervals of metrics, and of the paired difference of two models on the same rows.

A resample draws B of the B rows with replacement: it is a count a row, the same for both models, so that what both find
hard cancels out of their difference. Counts instead of drawn rows let a model be sorted once: the AUC of every resample
is then a few cumulative sums. Rejected: DeLong's interval, which is exact for the AUC but says nothing of the log loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from paddlewheel.evaluation.metrics import METRICS, measure, row_metrics
from paddlewheel.recipe import Evaluation

CHUNK_COUNTS = 1 << 21
LEAST_DEFINED = 0.5  # of the resamples; a percentile of fewer would be a tale about the lucky ones


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Labels of B rows and what one model, or two, said of label 1; float64[B] each."""

    labels_B: np.ndarray
    challenger_B: np.ndarray
    champion_B: np.ndarray | None = None

    @property
    def models(self) -> list[np.ndarray]:
        """The challenger's probabilities, and the champion's if there is one."""
        return [self.challenger_B] if self.champion_B is None else [self.challenger_B, self.champion_B]

    def take(self, rows: np.ndarray) -> Scored:
        """These rows alone."""
        champion_B = None if self.champion_B is None else self.champion_B[rows]
        return Scored(labels_B=self.labels_B[rows], challenger_B=self.challenger_B[rows], champion_B=champion_B)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its percentile interval; NaN where the rows do not define it."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def to_json(self) -> dict[str, float | None]:
        """Plain JSON: NaN becomes null."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Estimates by metric: of the challenger, of the champion, and of challenger minus champion (paired)."""

    challenger: Mapping[str, Estimate]
    champion: Mapping[str, Estimate] | None = None
    difference: Mapping[str, Estimate] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON by part, then metric."""
        parts = {"challenger": self.challenger, "champion": self.champion, "difference": self.difference}
        return {
            part: None if estimates is None else {name: one.to_json() for name, one in estimates.items()}
            for part, estimates in parts.items()
        }


def seed_of(*names: str) -> int:
    """The seed of a bootstrap: always the same for the same names (a run's key, a slice)."""
    return xxhash.xxh3_64_intdigest("\0".join(names).encode())


def compare(scored: Scored, settings: Evaluation, *, seed: int) -> Comparison:
    """Metrics with percentile intervals of one model, or of two on the same rows with their paired difference."""
    models = [_Sorted(scored.labels_B, model_B) for model_B in scored.models]
    resamples = _resample(len(scored.labels_B), settings.resamples, seed)
    chunks = [np.stack([model.metrics(counts_RB) for model in models]) for counts_RB in resamples]
    values = np.concatenate(chunks, axis=1)  # [model, resample, metric]
    points = [measure(scored.labels_B, model_B) for model_B in scored.models]
    estimates = [
        {
            name: _estimate(point[name], values[model, :, index], settings.confidence)
            for index, name in enumerate(METRICS)
        }
        | {"calibration_error": Estimate(value=point["calibration_error"])}
        for model, point in enumerate(points)
    ]
    if len(models) == 1:
        return Comparison(challenger=estimates[0])
    paired = values[0] - values[1]
    difference = {
        name: _estimate(points[0][name] - points[1][name], paired[:, index], settings.confidence)
        for index, name in enumerate(METRICS)
    }
    return Comparison(challenger=estimates[0], champion=estimates[1], difference=difference)


def points_only(scored: Scored) -> Comparison:
    """The same without intervals."""
    points = [measure(scored.labels_B, model_B) for model_B in scored.models]
    estimates = [{name: Estimate(value=value) for name, value in one.items()} for one in points]
    if len(estimates) == 1:
        return Comparison(challenger=estimates[0])
    difference = {name: Estimate(value=points[0][name] - points[1][name]) for name in METRICS}
    return Comparison(challenger=estimates[0], champion=estimates[1], difference=difference)


class _Sorted:
    """One model's rows sorted by its score, once, so that each resample costs a few passes over its counts."""

    def __init__(self, labels_B: np.ndarray, probabilities_B: np.ndarray) -> None:
        self.order_B = np.argsort(probabilities_B, kind="stable")
        self.labels_B = np.asarray(labels_B, np.float64)[self.order_B]
        scores_B = np.asarray(probabilities_B)[self.order_B]
        self.first_of_tie = np.append(0, np.flatnonzero(np.diff(scores_B)) + 1)
        self.has_ties = len(self.first_of_tie) < len(scores_B)
        rows = row_metrics(labels_B, probabilities_B)
        self.rows_BM = np.stack([rows[name] for name in METRICS if name != "auc"], axis=1)

    def metrics(self, counts_RB: np.ndarray) -> np.ndarray:
        """METRICS of R resamples, given how often each row was drawn: float64[R, M]."""
        means_RM = counts_RB @ self.rows_BM / counts_RB.shape[1]
        return np.concatenate([self._auc(counts_RB)[:, None], means_RM], axis=1)

    def _auc(self, counts_RB: np.ndarray) -> np.ndarray:
        sorted_RB = counts_RB[:, self.order_B]
        positives_RT = sorted_RB * self.labels_B
        negatives_RT = sorted_RB - positives_RT
        if self.has_ties:
            positives_RT = np.add.reduceat(positives_RT, self.first_of_tie, axis=1)
            negatives_RT = np.add.reduceat(negatives_RT, self.first_of_tie, axis=1)
        below_RT = np.cumsum(negatives_RT, axis=1)
        negatives_R = below_RT[:, -1].copy()
        below_RT -= negatives_RT / 2  # a tie counts half
        pairs_R = positives_RT.sum(axis=1) * negatives_R
        won_R = np.einsum("rt,rt->r", positives_RT, below_RT)
        return np.divide(won_R, pairs_R, out=np.full(len(pairs_R), math.nan), where=pairs_R > 0)


def _resample(rows: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each row is drawn, for `resamples` draws in chunks that fit into the cache: float64[R, B]."""
    generator = np.random.default_rng(seed)
    chunk = max(1, CHUNK_COUNTS // max(rows, 1))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        drawn = generator.integers(0, rows, (size, rows)) + np.arange(size)[:, None] * rows
        yield np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)


def _estimate(value: float, values_R: np.ndarray, confidence: float) -> Estimate:
    defined = values_R[~np.isnan(values_R)]
    if math.isnan(value) or len(defined) < LEAST_DEFINED * len(values_R):
        return Estimate(value=value)
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value=value, low=float(low), high=float(high))
