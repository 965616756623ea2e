"""Metrics of binary predictions, exact and in numpy alone.

labels_B holds 0 and 1, probabilities_B what the model says of label 1; both float64[B]. A metric that the rows do not
define (AUC where only one label occurs, anything of no rows) is NaN. Rejected: scikit-learn at run time, which every
node would have to carry for a page of arithmetic; the tests hold these functions against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

METRICS: Final = ("auc", "log_loss", "brier", "accuracy")
HIGHER_IS_BETTER: Final = {"auc": True, "log_loss": False, "brier": False, "accuracy": True}
RELIABILITY_BINS: Final = 10
ROC_POINTS: Final = 300
NORMAL_95: Final = 1.959963984540054


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Rows of near predictions: mean prediction, share of label 1 with its 95 % Wilson interval, and how many."""

    predicted: float
    observed: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class Roc:
    """Points of a ROC curve from (0, 0) to (1, 1), float64[P] each."""

    false_positive_rates_P: np.ndarray
    true_positive_rates_P: np.ndarray


def measure(labels_B: np.ndarray, probabilities_B: np.ndarray) -> dict[str, float]:
    """Every metric of METRICS, and `calibration_error`."""
    rows = row_metrics(labels_B, probabilities_B)
    values = {name: float(row_B.mean()) if len(row_B) else math.nan for name, row_B in rows.items()}
    return {
        "auc": auc(labels_B, probabilities_B),
        **values,
        "calibration_error": calibration_error(reliability(labels_B, probabilities_B)),
    }


def auc(labels_B: np.ndarray, scores_B: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a row of label 1 scores above one of label 0, ties counting half."""
    _, inverse, counts = np.unique(scores_B, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts, dtype=np.float64)
    ranks_B = (last_rank - (counts - 1) / 2)[inverse]
    positives = float(np.sum(labels_B))
    negatives = len(labels_B) - positives
    if not positives or not negatives:
        return math.nan
    return float((np.sum(ranks_B[labels_B > 0.5]) - positives * (positives + 1) / 2) / (positives * negatives))


def row_metrics(labels_B: np.ndarray, probabilities_B: np.ndarray) -> dict[str, np.ndarray]:
    """The metrics that are means over rows, row by row: log_loss (nats), brier, accuracy at 0.5; float64[B] each.

    The logarithm's argument is kept away from 0 by the machine epsilon, as scikit-learn does.
    """
    labels = np.asarray(labels_B, np.float64)
    probabilities = np.asarray(probabilities_B, np.float64)
    epsilon = np.finfo(np.float64).eps
    clipped = np.clip(probabilities, epsilon, 1 - epsilon)
    return {
        "log_loss": -(labels * np.log(clipped) + (1 - labels) * np.log1p(-clipped)),
        "brier": (probabilities - labels) ** 2,
        "accuracy": ((probabilities >= 0.5) == (labels > 0.5)).astype(np.float64),
    }


def log_loss(labels_B: np.ndarray, probabilities_B: np.ndarray) -> float:
    """Mean negative log likelihood in nats."""
    return measure(labels_B, probabilities_B)["log_loss"]


def reliability(
    labels_B: np.ndarray, probabilities_B: np.ndarray, *, bins: int = RELIABILITY_BINS
) -> list[ReliabilityBin]:
    """Predictions against what happened, in bins of about equally many rows, by rising prediction; none is empty.

    Equal counts, not equal widths: with rare labels nearly all rows would fall into two bins of equal width.
    """
    if not len(labels_B):
        return []
    edges = np.quantile(probabilities_B, np.linspace(0, 1, bins + 1))[1:-1]
    bin_of_B = np.searchsorted(edges, probabilities_B)
    rows = np.bincount(bin_of_B, minlength=bins)
    predicted = np.bincount(bin_of_B, weights=probabilities_B, minlength=bins)
    observed = np.bincount(bin_of_B, weights=labels_B, minlength=bins)
    found = []
    for index in np.flatnonzero(rows):
        count = int(rows[index])
        low, high = wilson(float(observed[index]), count)
        found.append(
            ReliabilityBin(
                predicted=float(predicted[index]) / count,
                observed=float(observed[index]) / count,
                low=low,
                high=high,
                rows=count,
            )
        )
    return found


def calibration_error(bins: list[ReliabilityBin]) -> float:
    """Expected calibration error: the mean distance of prediction and outcome over the bins, weighted by rows."""
    total = sum(one.rows for one in bins)
    return sum(one.rows * abs(one.predicted - one.observed) for one in bins) / total if total else math.nan


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """95 % Wilson score interval of a share. https://doi.org/10.1080/01621459.1927.10502953"""
    share, square = successes / trials, NORMAL_95**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    spread = NORMAL_95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return max(0.0, centre - spread), min(1.0, centre + spread)


def roc_curve(labels_B: np.ndarray, scores_B: np.ndarray, *, points: int = ROC_POINTS) -> Roc:
    """The ROC curve at every distinct score, thinned to at most `points` spread evenly along the curve.

    Empty where only one label occurs.
    """
    order = np.argsort(-np.asarray(scores_B, np.float64), kind="stable")
    scores, labels = np.asarray(scores_B)[order], np.asarray(labels_B, np.float64)[order]
    positives = float(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return Roc(false_positive_rates_P=np.zeros(0), true_positive_rates_P=np.zeros(0))
    last_of_tie = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    true_positives = np.cumsum(labels)[last_of_tie]
    true_rates = np.append(0.0, true_positives / positives)
    false_rates = np.append(0.0, (last_of_tie + 1 - true_positives) / negatives)
    if len(true_rates) > points:
        # The curve is monotone, so the sum of both rates is its length in city blocks, from 0 to 2.
        lengths = true_rates + false_rates
        kept = np.unique(np.searchsorted(lengths, np.linspace(0, lengths[-1], points)))
        true_rates, false_rates = true_rates[kept], false_rates[kept]
    return Roc(false_positive_rates_P=false_rates, true_positive_rates_P=true_rates)
