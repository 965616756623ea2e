"""ZeRO stage 1 (Rajbhandari and others 2020): as data parallel, but each rank updates, and keeps optimizer state for,
its own 1/n of the elements alone; then what was updated is made known to all.

All trained elements in the model's order are cut into n runs of equal length, wherever a tensor ends: any model is
balanced, and one gather makes a step known. A rank's part of a parameter is a tensor of its own, filled before each
update and copied back after it. Rejected: views of the parameters, which save that copy of 1/n where an optimizer
happens to write in place; fleet's sharding, which gives whole tensors to ranks, so that one large embedding is not cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Parallel
from paddlewheel.training.groups import ALONE
from paddlewheel.training.pieces import Piece
from paddlewheel.training.state import trainable
from paddlewheel.training.strategies.data_parallel import DataParallel


def build_zero(rank: int, world_size: int, parallel: Parallel) -> Zero | DataParallel:
    """One rank has nothing to split."""
    return Zero(rank, world_size, parallel) if world_size > 1 else DataParallel(rank, world_size, parallel)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A rank's run of elements of a parameter. tensor: float32, 1-D, what the optimizer updates."""

    name: str
    parameter: Any
    tensor: Any
    piece: Piece

    @property
    def elements(self) -> slice:
        """Of the flat parameter."""
        return slice(self.piece.start[0], self.piece.start[0] + self.piece.size[0])


class Zero:
    """All ranks are one data group; each holds the whole model, and the state of an optimizer of its own elements."""

    model_group = ALONE

    def __init__(self, rank: int, world_size: int, parallel: Parallel) -> None:
        self._plain = DataParallel(rank, world_size, parallel)
        self.world = self.data_group = self._plain.world
        self.writers = tuple(range(world_size))
        self._parameters: list[Any] = []
        self._shards: dict[str, Shard] = {}
        self._counts: list[int] = []

    def setup(self) -> None:
        self._plain.setup()
        self.world = self.data_group = self._plain.world

    def wrap(self, model: Any) -> Any:
        """Also cuts the elements. Raises RecipeError for a model with fewer than ranks, or of another type than
        float32."""
        model = self._plain.wrap(model)
        named, group = trainable(model), self.data_group
        foreign = [f"{name} ({parameter.dtype})" for name, parameter in named if "float32" not in str(parameter.dtype)]
        if foreign:
            raise RecipeError(
                f"training.strategy zero trains float32 alone, not {', '.join(foreign)}; use data_parallel"
            )
        bounds = run_bounds(sum(parameter.size for _, parameter in named), group.size)
        self._counts = [end - begin for begin, end in itertools.pairwise(bounds)]
        if not all(self._counts):
            raise RecipeError(
                f"training.strategy zero cuts {bounds[-1]} elements for {group.size} ranks; use data_parallel"
            )
        self._parameters = [parameter for _, parameter in named]
        self._shards = {one.name: one for one in cut_shards(named, bounds[group.rank], bounds[group.rank + 1])}
        return model

    def owned(self, model: Any) -> list[tuple[str, Any]]:
        return [(shard.name, shard.tensor) for shard in self._shards.values()]

    def backward(self, model: Any, batches: Sequence[Any], weights: Sequence[float], compute: Any) -> Any | None:
        return self._plain.backward(model, batches, weights, compute)

    def counts(self, name: str) -> bool:
        return True

    def before_update(self, model: Any) -> None:
        """The shards take their elements and gradients from the parameters, whoever wrote those."""
        import paddle

        with paddle.no_grad():
            for shard in self._shards.values():
                shard.tensor.set_value(shard.parameter.detach().reshape([-1])[shard.elements])
                if shard.parameter.grad is not None:
                    shard.tensor.grad = shard.parameter.grad.reshape([-1])[shard.elements]

    def after_update(self, model: Any) -> int:
        """Gathers all shards, of one length with zeros at their ends, into the parameters."""
        import paddle

        group = self.data_group
        with paddle.no_grad():
            shards = [shard.tensor for shard in self._shards.values()]
            mine = paddle.concat([*shards, paddle.zeros([max(self._counts) - self._counts[group.rank]])])
            found = [part[:count] for part, count in zip(group.gather(mine), self._counts, strict=True)]
            parts = paddle.split(paddle.concat(found), [parameter.size for parameter in self._parameters])
            for parameter, part in zip(self._parameters, parts, strict=True):
                parameter.set_value(part.reshape(parameter.shape))
            for shard in shards:
                shard.clear_gradient(False)
        return int(mine.size) * int(mine.element_size())

    def piece(self, name: str, tensor: Any) -> Piece | None:
        return None

    def owned_piece(self, name: str, parameter: Any) -> Piece | None:
        return self._shards[name].piece

    def writes(self, name: str) -> bool:
        return self.data_group.rank == 0

    def close(self) -> None:
        self._plain.close()


def run_bounds(count: int, num_ranks: int) -> list[int]:
    """Where the runs of `num_ranks` ranks over `count` elements begin, and the last one's end; lengths differ by one
    at the most."""
    return [count * rank // num_ranks for rank in range(num_ranks + 1)]


def cut_shards(named: Sequence[tuple[str, Any]], begin: int, end: int) -> list[Shard]:
    """Shards of those parameters that have elements from `begin` to before `end` of all elements in order."""
    import paddle

    shards, first = [], 0
    for name, parameter in named:
        start, stop = max(begin - first, 0), min(end - first, parameter.size)
        first += parameter.size
        if start >= stop:
            continue
        tensor = paddle.create_parameter(
            [stop - start], parameter.dtype, default_initializer=paddle.nn.initializer.Constant(0.0)
        )
        # What a layer may have set for its parameter, and an optimizer heeds.
        tensor.optimize_attr, tensor.regularizer = parameter.optimize_attr, parameter.regularizer
        piece = Piece(shape=tuple(parameter.shape), start=(start,), size=(stop - start,))
        shards.append(Shard(name=name, parameter=parameter, tensor=tensor, piece=piece))
    return shards
