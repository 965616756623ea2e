"""What a recipe says of splitting a model over ranks that cannot work together, told when it is read."""

from __future__ import annotations

from collections.abc import Iterator

from paddlewheel.recipe import Parallel, Recipe
from paddlewheel.recipe_tree import Fault

# Which of parallel's axes a strategy has; one of a user's own may have any.
AXES = {
    "single": (),
    "data_parallel": (),
    "tensor_parallel": ("tensor",),
    "pipeline_parallel": ("pipeline",),
    "mesh": ("tensor", "pipeline"),
}
STAGED = ("gpt", "resnet18", "resnet50")  # networks of the project that are a row of layers
PLANNED = ("gpt",)  # networks of the project that say themselves how they are split


def check_parallel(recipe: Recipe) -> Iterator[Fault]:
    """Each fault with what to use instead."""
    training = recipe.training
    if training.strategy not in AXES:
        return
    axes, parallel = AXES[training.strategy], training.parallel
    yield from _check_axes(training.strategy, parallel, axes)
    split = parallel.tensor * parallel.pipeline
    ranks = recipe.resources.nodes * recipe.resources.ranks_per_node
    if split > 1 and ranks % split:
        yield Fault(
            path="training.parallel",
            value=f"tensor {parallel.tensor} * pipeline {parallel.pipeline}",
            allowed=f"must divide the {ranks} ranks that resources ask for (nodes * ranks_per_node)",
        )
    if axes:
        yield from _check_company(recipe)
    own = ":" in recipe.model.name
    if parallel.tensor > 1 and not parallel.plan and not own and recipe.model.name not in PLANNED:
        yield Fault(
            path="training.parallel.plan",
            value=[],
            allowed=f"{recipe.model.name} does not say itself how it is split; name layers, such as "
            "[{layers: table.rows_RK, by: vocabulary}]",
        )
    if parallel.pipeline > 1:
        yield from _check_pipeline(recipe, own=own)


def _check_axes(strategy: str, parallel: Parallel, axes: tuple[str, ...]) -> Iterator[Fault]:
    for axis in ("tensor", "pipeline"):
        ranks = getattr(parallel, axis)
        if ranks > 1 and axis not in axes:
            yield Fault(
                path=f"training.parallel.{axis}",
                value=ranks,
                allowed=f"strategy {strategy} does not split a model so; use {axis}_parallel or mesh, or leave it out",
            )
        if ranks == 1 and axis in axes and strategy != "mesh":
            yield Fault(
                path=f"training.parallel.{axis}",
                value=1,
                allowed=f"strategy {strategy} needs the number of ranks that share one copy of the model, from 2",
            )
    if parallel.plan and parallel.tensor == 1:
        yield Fault(
            path="training.parallel.plan",
            value=f"{len(parallel.plan)} entries",
            allowed="counts where training.parallel.tensor is 2 or more alone; leave it out",
        )
    default = Parallel()
    for name in ("schedule", "stages"):
        if getattr(parallel, name) != getattr(default, name) and parallel.pipeline == 1:
            yield Fault(
                path=f"training.parallel.{name}",
                value=getattr(parallel, name),
                allowed="counts where training.parallel.pipeline is 2 or more alone; leave it out",
            )


def _check_company(recipe: Recipe) -> Iterator[Fault]:
    """What does not go with a split model."""
    training = recipe.training
    if training.sync not in ("dense", "bf16") and ":" not in training.sync:
        yield Fault(
            path="training.sync",
            value=training.sync,
            allowed=f"strategy {training.strategy} sums gradients of pieces; use dense or bf16",
        )
    if training.optimizer.name == "lamb":
        yield Fault(
            path="training.optimizer.name",
            value="lamb",
            allowed="takes norms of whole parameters, of which ranks hold pieces here; use adamw",
        )


def _check_pipeline(recipe: Recipe, *, own: bool) -> Iterator[Fault]:
    training, parallel = recipe.training, recipe.training.parallel
    if not own and recipe.model.name not in STAGED:
        yield Fault(
            path="training.parallel.pipeline",
            value=parallel.pipeline,
            allowed=f"{recipe.model.name} is not a row of layers, as {', '.join(STAGED)} are; use data_parallel",
        )
    if parallel.stages and len(parallel.stages) != parallel.pipeline - 1:
        yield Fault(
            path="training.parallel.stages",
            value=list(parallel.stages),
            allowed=f"names the first layer of each stage but the first: {parallel.pipeline - 1} for "
            f"{parallel.pipeline} stages; or leave it out, and the cut is measured",
        )
    if training.micro_batch is None:
        ranks = recipe.resources.nodes * recipe.resources.ranks_per_node
        places = max(1, ranks // (parallel.tensor * parallel.pipeline))
        rows = max(1, training.global_batch // (places * 4 * parallel.pipeline))
        yield Fault(
            path="training.micro_batch",
            value=None,
            allowed=f"a pipeline works on several micro-batches at once: set it; {rows} makes four a stage",
        )
