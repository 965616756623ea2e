"""What of a recipe does not go together with ranks that each update a part of every parameter (strategy zero)."""

from __future__ import annotations

from collections.abc import Iterator

from paddlewheel.recipe import Recipe
from paddlewheel.recipe_tree import Fault


def check_zero(recipe: Recipe) -> Iterator[Fault]:
    """Each fault with what to use instead."""
    training, stage = recipe.training, recipe.training.parallel.zero_stage
    if stage > 1:
        told = "stages 2 and 3 are not in this version; use 1"
        if recipe.resources.device == "cpu":
            told = "a CPU has stage 1 alone (gloo has no reduce-scatter); use 1"
        if training.strategy != "zero":
            told = "counts under training.strategy zero alone; leave it out"
        yield Fault(path="training.parallel.zero_stage", value=stage, allowed=told)
    if training.strategy != "zero":
        return
    if training.optimizer.name == "lamb":
        yield Fault(
            path="training.optimizer.name",
            value="lamb",
            allowed="needs norms of whole tensors, of which a rank under training.strategy zero updates parts; use "
            "adamw, or training.strategy: data_parallel",
        )
    if training.sync == "local_sgd":
        yield Fault(
            path="training.sync",
            value="local_sgd",
            allowed="has each rank update all parameters, and training.strategy zero a part; use dense, bf16 or topk, "
            "or training.strategy: data_parallel",
        )
