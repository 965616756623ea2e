"""What of recomputed layers and compiled graphs does not go together. What a device lacks is checked beside this."""

from __future__ import annotations

from collections.abc import Iterator

from paddlewheel.recipe import Recipe
from paddlewheel.recipe_tree import Fault

SPLIT = ("tensor_parallel", "pipeline_parallel", "mesh")  # they call the layers of a network one by one


def check_acceleration(recipe: Recipe) -> Iterator[Fault]:
    """Each fault with what to use instead."""
    training = recipe.training
    if not training.to_static:
        return
    if training.recompute:
        yield Fault(
            path="training.recompute",
            value=list(training.recompute),
            allowed="a compiled graph keeps what its layers computed, so nothing would be saved; leave out to_static",
        )
    if training.strategy in SPLIT:
        yield Fault(
            path="training.to_static",
            value=True,
            allowed=f"compiles whole networks, and {training.strategy} splits them; leave it out, or use data_parallel",
        )
