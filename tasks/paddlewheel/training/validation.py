"""Measuring a training on rows that it does not train on, and ending it when that brings nothing more.

The rows are measured in chunks whose bounds depend on their number alone. Each data rank takes some chunks, and what
the network says of every row comes to all in the data's order: the figures are those of one process, bit for bit, and
nothing is padded or counted twice. Rejected: means of ranks' metrics, which are no metric of the whole for an AUC.
Axes: V rows kept for validation, C chunks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paddlewheel.data.loader import Loader, to_tensors
from paddlewheel.errors import RecipeError
from paddlewheel.evaluation.metrics import HIGHER_IS_BETTER
from paddlewheel.evaluation.metrics import measure as binary_metrics
from paddlewheel.recipe import Validation
from paddlewheel.training.models import outputs_of
from paddlewheel.training.state import Average
from paddlewheel.training.strategies import Strategy

CHUNKS, CHUNK_ROWS = 64, 1024  # at least so many chunks, so that 64 ranks have one; at most so many rows in each


class Scores:
    """What was measured so far: the last value of the metric, the best one, and how many since were no better."""

    def __init__(self, settings: Validation) -> None:
        self.settings = settings
        self.value: float | None = None
        self.best_value: float | None = None
        self.step = self.best_step = self.bad = 0
        self.stopped = False
        self._pending = False

    def due(self, step: int, steps_per_epoch: int, *, settled: bool) -> bool:
        """Whether to measure after `step` steps: at an epoch's end, or as soon as all ranks hold the same after it."""
        epoch, rest = divmod(step, steps_per_epoch)
        if self.settings.fraction and rest == 0 and epoch % self.settings.every_epochs == 0:
            self._pending = True
        return self._pending and settled

    def take(self, value: float, step: int) -> bool:
        """Take in a measurement; whether it is the best so far. A value that is not defined (nan) never is."""
        higher = HIGHER_IS_BETTER.get(self.settings.metric, False)
        before = self.best_value
        best = not math.isnan(value) and (before is None or (value > before if higher else value < before))
        self.step, self.value, self._pending = step, None if math.isnan(value) else value, False
        if best:
            self.best_step, self.best_value, self.bad = step, value, 0
        else:
            self.bad += 1
            self.stopped = self.settings.patience is not None and self.bad >= self.settings.patience
        return best

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for a commit; nothing where nothing was measured."""
        if not self.step:
            return {}
        return {
            "metric": self.settings.metric,
            "value": self.value,
            "step": self.step,
            "best_step": self.best_step,
            "best_value": self.best_value,
            "bad": self.bad,
            "stopped": self.stopped,
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        """Go on from what a commit tells."""
        self.value, self.best_value = tree.get("value"), tree.get("best_value")
        self.step, self.best_step = int(tree.get("step", 0)), int(tree.get("best_step", 0))
        self.bad, self.stopped, self._pending = int(tree.get("bad", 0)), bool(tree.get("stopped", False)), False


def chunks_of(rows: int, most: int | None = None) -> list[tuple[int, int]]:
    """Bounds of the chunks of `rows` rows: of equal size but for the last. most: rows that a rank can hold at once."""
    size = min(CHUNK_ROWS, max(1, -(-rows // CHUNKS)), most or CHUNK_ROWS)
    return [(start, min(rows, start + size)) for start in range(0, rows, size)]


def measure(
    model: Any,
    average: Average | None,
    loader: Loader,
    strategy: Strategy,
    *,
    metric: str,
    micro_batch: int | None,
    beat: Callable[[], None],
) -> dict[str, float]:
    """The figures of the model, or of its running average, on all rows kept aside; the same on all ranks.

    The mean `loss` where that is the metric, else those of `evaluation.metrics`. All ranks must call; training goes on
    as if nobody had. beat: called after each chunk of this rank. Raises RecipeError where the network is no binary one.
    """
    spans, group = chunks_of(loader.num_aside, micro_batch), strategy.data_group
    told_V = np.zeros(loader.num_aside)
    model.eval()
    try:
        with average.in_place() if average is not None else contextlib.nullcontext():
            for first in range(0, len(spans), group.size):
                begin, end = spans[first][0], spans[min(len(spans), first + group.size) - 1][1]
                part_V, place = np.zeros(end - begin), first + group.rank
                if place < len(spans):
                    start, stop = spans[place]
                    part_V[start - begin : stop - begin] = _say(model, loader, start, stop, metric)
                # After each round: gloo gives a peer up that it waits 30 s for.
                told_V[begin:end] = _summed(part_V, strategy)
                beat()
    finally:
        model.train()
    if metric == "loss":
        return _agreed({"loss": math.fsum(told_V) / loader.num_aside}, strategy)
    with np.errstate(over="ignore"):
        probabilities_V = 1 / (1 + np.exp(-told_V))
    labels_V = loader.aside(0, loader.num_aside).labels_B.astype(np.float64)
    return _agreed(binary_metrics(labels_V, probabilities_V), strategy)


def _say(model: Any, loader: Loader, start: int, stop: int, metric: str) -> np.ndarray | float:
    """A logit for each row of a chunk; or, of the chunk, the mean loss, which stands for each of its rows."""
    import paddle

    batch = to_tensors(loader.aside(start, stop))
    with paddle.no_grad():
        if metric == "loss":
            return float(model.loss(batch))
        outputs = outputs_of(model, batch)
        if not hasattr(outputs, "shape") or int(np.prod(outputs.shape)) != stop - start:
            raise RecipeError(
                f"training.validation.metric {metric} is of networks that give one logit a row, and this one does not; "
                "use loss"
            )
        logits_B: np.ndarray = outputs.reshape([-1]).numpy().astype(np.float64)
    return logits_B


def _summed(part: np.ndarray, strategy: Strategy) -> np.ndarray:
    """The sum over the data group: each row's value is on one rank, and 0 on the others."""
    if strategy.data_group.size == 1:
        return part
    import paddle

    tensor = paddle.to_tensor(part)
    strategy.data_group.sum_(tensor)
    summed: np.ndarray = tensor.numpy()
    return summed


def _agreed(metrics: dict[str, float], strategy: Strategy) -> dict[str, float]:
    """Rank 0's figures: hosts may differ in the last bit of a logarithm, and all must decide alike."""
    if strategy.world.size == 1:
        return metrics
    import paddle

    tensor = paddle.to_tensor(np.array(list(metrics.values()), np.float64))
    strategy.world.broadcast_(tensor)
    return dict(zip(metrics, (float(one) for one in tensor.numpy()), strict=True))
