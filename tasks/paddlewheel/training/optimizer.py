"""The optimizer and the learning rate of each step: a pure function of the step, so that a resume needs no state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paddlewheel.recipe import Optimizer, Schedule, Training

CLASSES = {
    "adam": "Adam",
    "adamw": "AdamW",
    "sgd": "SGD",
    "momentum": "Momentum",
    "adagrad": "Adagrad",
    "rmsprop": "RMSProp",
    "adamax": "Adamax",
    "nadam": "NAdam",
    "radam": "RAdam",
    "lamb": "Lamb",
}


def peak_rate(training: Training) -> float:
    """The schedule's peak: learning_rate, scaled by global_batch / base_batch where that is given (Goyal and others
    2017)."""
    optimizer = training.optimizer
    return optimizer.learning_rate * training.global_batch / (optimizer.base_batch or training.global_batch)


def learning_rate(step: int, *, total_steps: int, peak: float, schedule: Schedule) -> float:
    """Learning rate of the update after `step` global steps (0 for the first): warm-up, then by the schedule's name.

    None falls below `floor`, which cosine, linear and polynomial reach at the end. Milestones are shares of all steps,
    warm-up included. exponential falls evenly in its logarithm, to peak * gamma at the end. inverse_sqrt goes on from
    the warm-up's end as 1 / sqrt(step) (Vaswani and others 2017).
    """
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    done = min(1.0, (step - schedule.warmup_steps) / max(1, total_steps - schedule.warmup_steps))
    match schedule.name:
        case "constant":
            return peak
        case "cosine":
            return schedule.floor + (peak - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return schedule.floor + (peak - schedule.floor) * (1 - done)
        case "polynomial":
            return schedule.floor + (peak - schedule.floor) * (1 - done) ** schedule.power
        case "exponential":
            return max(schedule.floor, peak * schedule.gamma**done)
        case "multistep":
            passed = sum(step >= milestone * total_steps for milestone in schedule.milestones)
            return max(schedule.floor, peak * schedule.gamma**passed)
        case "inverse_sqrt":
            return max(schedule.floor, peak * math.sqrt(max(1, schedule.warmup_steps) / (step + 1)))


def build_optimizer(
    recipe: Optimizer, owned: Sequence[tuple[str, Any]], *, whole_axes: Mapping[str, int] | None = None
) -> Any:
    """A Paddle optimizer over the named parameters. Clipping is not its part: the exchange of gradients clips.

    weight_decay is decoupled in adamw and lamb, where it spares biases and other vectors, and an L2 term in the others.
    whole_axes: axes of each parameter as the model has it, by name, where what is owned are flat parts.
    """
    import paddle

    parameters = [parameter for _, parameter in owned]
    axes = whole_axes or {name: len(parameter.shape) for name, parameter in owned}
    vectors = {parameter.name for name, parameter in owned if axes[name] <= 1}
    decay: dict[str, Any] = {"weight_decay": recipe.weight_decay or None}
    if recipe.name == "adamw":
        decay = {"weight_decay": recipe.weight_decay, "apply_decay_param_fun": lambda name: name not in vectors}
    elif recipe.name == "lamb":
        decay = {
            "lamb_weight_decay": recipe.weight_decay,
            "exclude_from_weight_decay_fn": lambda parameter: parameter.name in vectors,
        }
    build = getattr(paddle.optimizer, CLASSES[recipe.name])
    return build(learning_rate=recipe.learning_rate, parameters=parameters, **decay, **recipe.params)
