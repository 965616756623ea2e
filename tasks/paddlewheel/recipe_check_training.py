"""What a recipe's training section says that its device, its ranks or another of its fields does not allow."""

from __future__ import annotations

from collections.abc import Iterator

from paddlewheel.recipe import Recipe
from paddlewheel.recipe_check_loop import check_loop
from paddlewheel.recipe_tree import Fault


def check_training(recipe: Recipe) -> Iterator[Fault]:
    """Each fault with what to use instead."""
    yield from _check_device(recipe)
    yield from _check_ranks(recipe)
    yield from check_loop(recipe)


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
