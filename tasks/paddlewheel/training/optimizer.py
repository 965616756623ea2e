"""The optimizer and the learning rate of each step: a pure function of the step, so that a resume needs no state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paddlewheel.recipe import Optimizer, Schedule


def learning_rate(step: int, *, total_steps: int, peak: float, schedule: Schedule) -> float:
    """Learning rate of the update after `step` global steps (0 for the first): warm-up, then constant or cosine."""
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    if schedule.name == "constant":
        return peak
    done = min(1.0, (step - schedule.warmup_steps) / max(1, total_steps - schedule.warmup_steps))
    return schedule.floor + (peak - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done))


def build_optimizer(recipe: Optimizer, owned: Sequence[tuple[str, Any]]) -> Any:
    """A Paddle optimizer over the named parameters. Clipping is not its part: the exchange of gradients clips.

    weight_decay is decoupled in adamw, where it spares biases and other vectors, and an L2 term in the others.
    """
    import paddle

    parameters = [parameter for _, parameter in owned]
    common: dict[str, Any] = {
        "learning_rate": recipe.learning_rate,
        "parameters": parameters,
        "weight_decay": recipe.weight_decay or None,
    }
    if recipe.name == "adamw":
        decayed = {parameter.name for parameter in parameters if len(parameter.shape) > 1}
        return paddle.optimizer.AdamW(
            **{**common, "weight_decay": recipe.weight_decay}, apply_decay_param_fun=lambda name: name in decayed
        )
    kinds = {
        "adam": paddle.optimizer.Adam,
        "sgd": paddle.optimizer.SGD,
        "momentum": paddle.optimizer.Momentum,
        "adagrad": paddle.optimizer.Adagrad,
    }
    return kinds[recipe.name](**common)
