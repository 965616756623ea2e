"""What a recipe says of guard, validation, shares and loss scaling that cannot work together, told when it is read."""

from __future__ import annotations

from collections.abc import Iterator

from paddlewheel.recipe import Recipe
from paddlewheel.recipe_tree import Fault

# Networks of the project that give one logit a row, which metrics of binary predictions need.
BINARY = ("wide_deep", "deepfm")


def check_loop(recipe: Recipe) -> Iterator[Fault]:
    """Each fault with what to use instead."""
    yield from _check_local_sgd(recipe)
    yield from _check_validation(recipe)
    yield from _check_shares(recipe)


def _check_local_sgd(recipe: Recipe) -> Iterator[Fault]:
    """Between two rounds the ranks of local SGD know each their own gradient alone."""
    training = recipe.training
    if training.sync != "local_sgd":
        return
    if training.guard.norm_factor is not None:
        yield Fault(
            path="training.guard.norm_factor",
            value=training.guard.norm_factor,
            allowed="local_sgd never forms the gradient of all ranks; leave it out, or use another training.sync",
        )
    if training.precision == "fp16":
        yield Fault(
            path="training.precision",
            value="fp16",
            allowed="the scale of a loss must be one on all ranks, which local_sgd cannot keep; use bf16, or another "
            "training.sync",
        )


def _check_validation(recipe: Recipe) -> Iterator[Fault]:
    validation, training = recipe.training.validation, recipe.training
    if not validation.fraction:
        if validation.patience is not None:
            yield Fault(
                path="training.validation.patience",
                value=validation.patience,
                allowed="nothing is measured without rows kept aside; set training.validation.fraction, such as 0.1",
            )
        return
    if validation.every_epochs > training.epochs:
        yield Fault(
            path="training.validation.every_epochs",
            value=validation.every_epochs,
            allowed=f"is never reached in {training.epochs} epochs; use at most that many",
        )
    if validation.metric != "loss" and ":" not in recipe.model.name and recipe.model.name not in BINARY:
        yield Fault(
            path="training.validation.metric",
            value=validation.metric,
            allowed=f"is of networks that give one logit a row ({', '.join(BINARY)}); use loss",
        )
    if validation.patience is not None and not training.keep_best:
        yield Fault(
            path="training.keep_best",
            value=False,
            allowed="with training.validation.patience the best commit is the result; leave it out (true)",
        )
    if training.parallel.pipeline > 1:
        yield Fault(
            path="training.validation.fraction",
            value=validation.fraction,
            allowed="no rank of a pipeline can measure alone; use 0, or a strategy without pipeline stages",
        )


def _check_shares(recipe: Recipe) -> Iterator[Fault]:
    shares, resources = recipe.training.parallel.shares, recipe.resources
    if isinstance(shares, str):
        return
    parallel = recipe.training.parallel
    ranks = resources.nodes * resources.ranks_per_node // (parallel.tensor * parallel.pipeline)
    if len(shares) != ranks:
        yield Fault(
            path="training.parallel.shares",
            value=list(shares),
            allowed=f"needs a weight for each of the {ranks} data ranks that resources ask for; or use equal, measured",
        )
