"""What a recipe says of its optimizer and its schedule that Paddle's classes, or the steps, do not allow.

Paddle is not imported to read a recipe: what its classes take stands here, and a test holds it against them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paddlewheel.recipe import Recipe
from paddlewheel.recipe_tree import Fault
from paddlewheel.training.optimizer import peak_rate


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    """a number from 0 and below 1"""
    return _is_number(value) and 0 <= value < 1


def _is_positive(value: Any) -> bool:
    """a number above 0"""
    return _is_number(value) and value > 0


def _is_amount(value: Any) -> bool:
    """a number from 0"""
    return _is_number(value) and value >= 0


def _is_truth(value: Any) -> bool:
    """true or false"""
    return isinstance(value, bool)


_BETAS: Mapping[str, Callable[[Any], bool]] = {"beta1": _is_share, "beta2": _is_share, "epsilon": _is_positive}

# What `training.optimizer.params` may hold, by optimizer; the other arguments of Paddle's classes are fields of the
# recipe, or belong to the exchange (clipping) or to the precision.
PARAMS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "adam": {**_BETAS, "amsgrad": _is_truth},
    "adamw": {**_BETAS, "amsgrad": _is_truth},
    "sgd": {},
    "momentum": {"momentum": _is_share, "use_nesterov": _is_truth},
    "adagrad": {"epsilon": _is_positive, "initial_accumulator_value": _is_amount},
    "rmsprop": {"rho": _is_share, "epsilon": _is_positive, "momentum": _is_share, "centered": _is_truth},
    "adamax": _BETAS,
    "nadam": {**_BETAS, "momentum_decay": _is_amount},
    "radam": _BETAS,
    "lamb": {**_BETAS, "always_adapt": _is_truth},
}


def check_optimizer(recipe: Recipe) -> Iterator[Fault]:
    """Each fault of the optimizer's parameters and of the schedule, with what to use instead."""
    yield from _check_params(recipe)
    yield from _check_schedule(recipe)


def _check_params(recipe: Recipe) -> Iterator[Fault]:
    optimizer = recipe.training.optimizer
    known = PARAMS[optimizer.name]
    for name, value in optimizer.params.items():
        path = f"training.optimizer.params.{name}"
        if name not in known:
            takes = ", ".join(known) or "no params"
            near = difflib.get_close_matches(name, known, n=1)
            yield Fault(
                path=path, value=value, allowed=f"{optimizer.name} takes {takes}", nearest=next(iter(near), None)
            )
        elif not known[name](value):
            yield Fault(path=path, value=value, allowed=f"must be {known[name].__doc__}")


def _check_schedule(recipe: Recipe) -> Iterator[Fault]:
    schedule, peak = recipe.training.schedule, peak_rate(recipe.training)
    if schedule.floor > peak:
        yield Fault(
            path="training.schedule.floor",
            value=schedule.floor,
            allowed=f"must not be above the peak of the learning rate, {peak:g}",
        )
    if schedule.name == "multistep" and not schedule.milestones:
        yield Fault(
            path="training.schedule.milestones",
            value=None,
            allowed="multistep needs the shares of the training after which the rate falls, such as [0.5, 0.75]",
        )
    elif schedule.name != "multistep" and schedule.milestones:
        yield Fault(
            path="training.schedule.milestones",
            value=list(schedule.milestones),
            allowed=f"{schedule.name} has none; use training.schedule.name: multistep",
        )
