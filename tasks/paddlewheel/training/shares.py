"""How many rows of a global batch each data rank takes: equally many, by given weights, or by measured speed.

Gradients are weighted by rows, so that the mathematics is that of the whole batch however it is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from paddlewheel.errors import RecipeError
from paddlewheel.training.strategies import Strategy

EQUAL_STEPS = 20  # of an attempt, at the end of which speeds are compared
WARM_UP_STEPS = 5  # the first of them, which allocate and compile
GRAIN = 64  # a share is a whole number of 64ths: slices of equal nodes stay equal
COMPUTE = ("data", "forward", "backward")


class Shares:
    """Weights of the data ranks; None while all are equal. Only `measured` learns them, once in a run."""

    def __init__(self, setting: Sequence[float] | Literal["equal", "measured"], world_size: int) -> None:
        self.world_size, self.measuring = world_size, setting == "measured" and world_size > 1
        self.weights = None if isinstance(setting, str) else tuple(setting)
        if self.weights is not None and len(self.weights) != world_size:
            raise RecipeError(
                f"training.parallel.shares has {len(self.weights)} weights, and there are {world_size} data ranks; "
                "give one for each, or use equal or measured"
            )
        self._steps, self._seconds, self._rows = 0, 0.0, 0

    def add(self, parts: Mapping[str, float], rows: int, strategy: Strategy) -> None:
        """Take in a step of this rank; all ranks must call. After EQUAL_STEPS of them the shares are settled."""
        if not self.measuring:
            return
        self._steps += 1
        if self._steps > WARM_UP_STEPS:
            self._seconds += sum(parts.get(name, 0.0) for name in COMPUTE)
            self._rows += rows
        if self._steps == EQUAL_STEPS:
            self.weights, self.measuring = weights_of(gather_seconds(self._seconds, self._rows, strategy)), False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for a commit."""
        return {} if self.weights is None else {"weights": list(self.weights)}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Go on with measured weights of a commit, where they are of as many ranks; else they are measured again."""
        weights = tree.get("weights", ())
        if self.measuring and len(weights) == self.world_size:
            self.weights, self.measuring = tuple(float(one) for one in weights), False


def weights_of(seconds_per_row: Sequence[float]) -> tuple[float, ...]:
    """Shares of ranks by their speed, each a multiple of 1/GRAIN and at least one of them; they add up to about 1.

    A rank that had no rows (0) is taken to be as fast as the mean of the others.
    """
    known = [1 / one for one in seconds_per_row if one > 0]
    mean = sum(known) / len(known) if known else 1.0
    speeds = [1 / one if one > 0 else mean for one in seconds_per_row]
    return tuple(max(1, round(GRAIN * speed / sum(speeds))) / GRAIN for speed in speeds)


def gather_seconds(seconds: float, rows: int, strategy: Strategy) -> list[float]:
    """Seconds a row of each data rank, the slowest of the ranks that hold its model; the same on all ranks."""
    import paddle

    mine = paddle.to_tensor(np.array([seconds / rows if rows else 0.0], np.float64))
    slowest = max(float(one) for one in strategy.model_group.gather(mine))
    told = strategy.data_group.gather(paddle.to_tensor(np.array([slowest], np.float64)))
    return [float(one) for one in told]
