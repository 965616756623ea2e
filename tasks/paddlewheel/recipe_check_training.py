"""What a recipe's training section says that its device, its ranks or another of its fields does not allow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from paddlewheel.recipe import Recipe, Training
from paddlewheel.recipe_check_loop import check_loop
from paddlewheel.recipe_check_parallel import check_parallel
from paddlewheel.recipe_check_zero import check_zero
from paddlewheel.recipe_tree import Fault

LATER = (
    "exchange.bucket_mb",
)  # fmt: skip


def check_training(recipe: Recipe) -> Iterator[Fault]:
    """Each fault with what to use instead."""
    yield from _check_known(recipe.training)
    yield from _check_device(recipe)
    yield from _check_ranks(recipe)
    yield from check_parallel(recipe)
    yield from check_loop(recipe)
    yield from check_zero(recipe)


def _check_known(training: Training) -> Iterator[Fault]:
    """What a recipe can say already and this version does not do: never passed over in silence."""
    default = Training(epochs=1, global_batch=1)
    for path in LATER:
        value, usual = (functools.reduce(getattr, path.split("."), one) for one in (training, default))
        if value != usual:
            told = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value
            yield Fault(path=f"training.{path}", value=told, allowed="is not in this version; leave it out")


def _check_device(recipe: Recipe) -> Iterator[Fault]:
    """What a CPU cannot do."""
    training = recipe.training
    if recipe.resources.device != "cpu":
        return
    if training.precision != "float32":
        yield Fault(
            path="training.precision",
            value=training.precision,
            allowed="a CPU computes in float32 only; use float32, or resources.device: gpu",
        )
    for name in ("to_static", "fused"):
        if getattr(training, name):
            yield Fault(
                path=f"training.{name}",
                value=True,
                allowed="brings nothing on a CPU; leave it out, or use resources.device: gpu",
            )


def _check_ranks(recipe: Recipe) -> Iterator[Fault]:
    ranks = recipe.resources.nodes * recipe.resources.ranks_per_node
    if recipe.training.strategy == "single" and ranks > 1:
        yield Fault(
            path="training.strategy",
            value="single",
            allowed=f"single is for one rank, resources ask for {ranks}; use data_parallel",
        )
