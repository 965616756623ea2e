"""Ranks as a mesh of pipeline x data x tensor: each data place holds the model once, cut by layers and within layers.

Rank (stage * data + place) * tensor + part: the parts of a layer, which talk most, are neighbours and so on one node.
A plain model is split from outside; `tensor` and `stages` do that, `pipeline` runs the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Parallel
from paddlewheel.training.groups import ALONE, Group, join_world, leave_world, split_world
from paddlewheel.training.pieces import Piece
from paddlewheel.training.state import trainable
from paddlewheel.training.strategies.accumulate import accumulate

STAGES = "stages"


def build_tensor(rank: int, world_size: int, parallel: Parallel) -> Mesh:
    """Layers split over `parallel.tensor` ranks; data parallel over what is left."""
    if parallel.tensor < 2 or parallel.pipeline > 1:
        raise RecipeError("training.strategy tensor_parallel: training.parallel.tensor must be 2 or more, pipeline 1")
    return Mesh(rank, world_size, parallel)


def build_pipeline(rank: int, world_size: int, parallel: Parallel) -> Mesh:
    """Layers in `parallel.pipeline` stages; data parallel over what is left."""
    if parallel.pipeline < 2 or parallel.tensor > 1:
        raise RecipeError("training.strategy pipeline_parallel: training.parallel.pipeline must be 2 or more, tensor 1")
    return Mesh(rank, world_size, parallel)


def build_mesh(rank: int, world_size: int, parallel: Parallel) -> Mesh:
    """Both at once."""
    return Mesh(rank, world_size, parallel)


class Mesh:
    """One rank's place in the mesh. The groups are those of the mesh's axes; model_group is stage x tensor."""

    def __init__(self, rank: int, world_size: int, parallel: Parallel) -> None:
        """Raises RecipeError where the axes do not make up the ranks."""
        tensor, stages = parallel.tensor, parallel.pipeline
        if world_size % (tensor * stages):
            raise RecipeError(
                f"training.parallel: tensor {tensor} * pipeline {stages} must divide the ranks, of which there are "
                f"{world_size}"
            )
        self.parallel = parallel
        places = world_size // (tensor * stages)
        self.world = Group(ranks=tuple(range(world_size)), rank=rank)
        self.part, self.place = rank % tensor, rank // tensor % places
        self.stage = rank // (tensor * places)
        ranks = [
            [[(stage * places + place) * tensor + part for part in range(tensor)] for place in range(places)]
            for stage in range(stages)
        ]
        self._tensor_ranks = [of_place for of_stage in ranks for of_place in of_stage]
        # Neighbours in twos, first those with an even stage in front: see `pipeline`.
        self._pair_ranks = [
            [
                [ranks[stage][place][part], ranks[stage + 1][place][part]]
                for stage in range(front, stages - 1, 2)
                for place in range(places)
                for part in range(tensor)
            ]
            for front in (0, 1)
        ]
        self._data_ranks = [
            [ranks[stage][place][part] for place in range(places)] for stage in range(stages) for part in range(tensor)
        ]
        self._model_ranks = [
            [rank for stage in range(stages) for rank in ranks[stage][place]] for place in range(places)
        ]
        self.tensor_group = ALONE
        self._pairs = (ALONE, ALONE)
        self.data_group = self._found(self._data_ranks)
        self.model_group = self._found(self._model_ranks)
        self.writers = tuple(sorted(self._model_ranks[0]))
        self.pieces: Mapping[str, Piece] = {}
        self.firsts: tuple[str, ...] = ()
        self._pipeline: Any = None

    @property
    def stream(self) -> int:
        return self.stage * self.data_group.size + self.place

    def setup(self) -> None:
        self.world = join_world(self.world.rank, self.world.size)
        self.tensor_group, self.data_group, self.model_group, *pairs = (
            split_world(self.world, parts)
            for parts in (self._tensor_ranks, self._data_ranks, self._model_ranks, *self._pair_ranks)
        )
        self._pairs = (pairs[0], pairs[1])

    def wrap(self, model: Any, sample: Callable[[], Any], kept: Mapping[str, Any]) -> Any:
        """Sends rank 0's weights to all, splits layers by the plan, and keeps this rank's stage of them."""
        import paddle

        with paddle.no_grad():
            for tensor in model.state_dict().values():
                self.world.broadcast_(tensor)
        if self.parallel.pipeline > 1:
            from paddlewheel.training.strategies.stages import check_stages, cut_stages, keep_stage

            check_stages(model)
            self.firsts = cut_stages(model, self.parallel, kept.get(STAGES, ()), sample, self.world)
        if self.parallel.tensor > 1:
            from paddlewheel.training.strategies.tensor import split_model

            self.pieces = split_model(model, self.parallel.plan, self.tensor_group, sample)
        if self.parallel.pipeline > 1:
            from paddlewheel.training.strategies.pipeline import Pipeline, Place

            layers = keep_stage(model, self.firsts, self.stage)
            before, after = self._pairs[::-1] if self.stage % 2 == 0 else self._pairs
            place = Place(stage=self.stage, stages=self.parallel.pipeline, before=before, after=after)
            self._pipeline = Pipeline(model, layers, place, self.parallel.schedule)
        return model

    def kept(self) -> dict[str, Any]:
        return {STAGES: list(self.firsts)} if self.firsts else {}

    def owned(self, model: Any) -> list[tuple[str, Any]]:
        return trainable(model)

    def backward(self, model: Any, batches: Sequence[Any], weights: Sequence[float], compute: Any) -> Any | None:
        if self._pipeline is None:
            loss = accumulate(model, batches, weights, compute)
        else:
            loss = self._pipeline.backward(batches, weights, compute)
        return loss if self.part == 0 else None

    def counts(self, name: str) -> bool:
        return name in self.pieces or self.part == 0

    def before_update(self, model: Any) -> None:
        pass

    def after_update(self, model: Any) -> int:
        return 0 if self._pipeline is None else int(self._pipeline.sent_bytes)

    def piece(self, name: str, tensor: Any) -> Piece | None:
        return self.pieces.get(name)

    def owned_piece(self, name: str, parameter: Any) -> Piece | None:
        return self.pieces.get(name)

    def writes(self, name: str, *, piece: bool) -> bool:
        return self.place == 0 and (piece or self.part == 0)

    def close(self) -> None:
        leave_world(self.world)

    def _found(self, parts: Sequence[Sequence[int]]) -> Group:
        """This rank's one of the groups, before the ranks have joined."""
        mine = next(ranks for ranks in parts if self.world.rank in ranks)
        return Group(ranks=tuple(mine), rank=list(mine).index(self.world.rank))
