"""Metrics of the user's own: functions `package.module:name` of (labels_B, probabilities_B), told without intervals.

An interval needs a thousand resamples, and what a function of the user's costs is not known. Slices have none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paddlewheel.errors import DataError
from paddlewheel.evaluation.compare import Comparison, Estimate, Scored
from paddlewheel.training.models import import_name


def with_own_metrics(comparison: Comparison, scored: Scored, names: Sequence[str]) -> Comparison:
    """The comparison with the named metrics of each model, and their differences.

    A metric that the rows do not define may be NaN. Raises RecipeError for a name that cannot be imported, DataError
    where a metric fails or gives no number.
    """
    if not names:
        return comparison
    told = [
        {name: Estimate(value=_measure(f"evaluation.metrics.{index}", name, scored.labels_B, model_B))
         for index, name in enumerate(names)}
        for model_B in scored.models
    ]  # fmt: skip
    whole = replace(comparison, challenger={**comparison.challenger, **told[0]})
    if comparison.champion is None or comparison.difference is None:
        return whole
    differences = {name: Estimate(value=told[0][name].value - told[1][name].value) for name in names}
    return replace(
        whole, champion={**comparison.champion, **told[1]}, difference={**comparison.difference, **differences}
    )


def _measure(path: str, name: str, labels_B: np.ndarray, probabilities_B: np.ndarray) -> float:
    metric = import_name(name, path)
    try:
        return float(metric(labels_B.copy(), probabilities_B.copy()))
    except Exception as error:
        raise DataError(f"{path}: {name} failed on {len(labels_B)} rows: {error!r}") from error
