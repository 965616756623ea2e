"""ZeRO stage 1 (Rajbhandari and others 2020): as data parallel, but each rank updates, and keeps optimizer state for,
its own 1/n of the elements alone; then what was updated is made known to all.

All trained elements in the model's order are cut into n runs of equal length, wherever a tensor ends: any model is
balanced, and each rank's run travels in one broadcast, from and to where the parameters lie (`parameter_buffer`).
Rejected: fleet's sharding, which gives whole tensors to ranks, so that one large embedding is not cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Parallel
from paddlewheel.training.groups import ALONE
from paddlewheel.training.pieces import Piece
from paddlewheel.training.state import trainable
from paddlewheel.training.strategies.data_parallel import DataParallel
from paddlewheel.training.strategies.parameter_buffer import ParameterBuffer


def build_zero(rank: int, world_size: int, parallel: Parallel) -> Zero | DataParallel:
    """One rank has nothing to split."""
    return Zero(rank, world_size, parallel) if world_size > 1 else DataParallel(rank, world_size, parallel)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A rank's run of elements of a parameter. tensor: float32, 1-D, what the optimizer updates, in the parameter's
    memory; start: where that is in the buffer of all parameters."""

    parameter: Any
    tensor: Any
    piece: Piece
    start: int

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
        self._buffer: Any = None
        self._bounds: list[int] = []
        self._shards: dict[str, Shard] = {}

    def setup(self) -> None:
        self._plain.setup()
        self.world = self.data_group = self._plain.world

    @property
    def stream(self) -> int:
        return self.world.rank

    def wrap(self, model: Any, sample: Callable[[], Any], kept: Mapping[str, Any]) -> Any:
        """Also cuts the elements. Raises RecipeError for a model with fewer than ranks, or of another type than
        float32."""
        model = self._plain.wrap(model, sample, kept)
        named, group = trainable(model), self.data_group
        foreign = [f"{name} ({parameter.dtype})" for name, parameter in named if "float32" not in str(parameter.dtype)]
        if foreign:
            raise RecipeError(
                f"training.strategy zero trains float32 alone, not {', '.join(foreign)}; use data_parallel"
            )
        count = sum(parameter.size for _, parameter in named)
        if count < group.size:
            raise RecipeError(f"training.strategy zero cuts {count} elements for {group.size} ranks; use data_parallel")
        self._buffer = ParameterBuffer([parameter for _, parameter in named])
        runs = [cut_pieces(named, *bounds) for bounds in itertools.pairwise(run_bounds(count, group.size))]
        starts = dict(zip(dict(named), self._buffer.starts, strict=True))
        firsts = (next(iter(pieces.items())) for pieces in runs[1:])
        self._bounds = [0, *(starts[name] + piece.start[0] for name, piece in firsts), self._buffer.count]
        parameters = dict(named)
        self._shards = {
            name: build_shard(parameters[name], piece, self._buffer, starts[name] + piece.start[0])
            for name, piece in runs[group.rank].items()
        }
        return model

    def kept(self) -> dict[str, Any]:
        return {}

    def owned(self, model: Any) -> list[tuple[str, Any]]:
        return [(name, shard.tensor) for name, shard in self._shards.items()]

    def backward(self, model: Any, batches: Sequence[Any], weights: Sequence[float], compute: Any) -> Any | None:
        return self._plain.backward(model, batches, weights, compute)

    def counts(self, name: str) -> bool:
        return True

    def before_update(self, model: Any) -> None:
        """The shards take their elements of the gradients."""
        import paddle

        self._buffer.take_in()
        with paddle.no_grad():
            for shard in self._shards.values():
                if shard.parameter.grad is not None:
                    shard.tensor.grad = shard.parameter.grad.reshape([-1])[shard.elements]

    def after_update(self, model: Any) -> int:
        """Each rank's run of the parameters comes to all."""
        import paddle

        group = self.data_group
        with paddle.no_grad():
            for shard in self._shards.values():
                self._buffer.attach(shard.tensor, shard.start)
                shard.tensor.clear_gradient(False)
            for rank, (begin, end) in enumerate(itertools.pairwise(self._bounds)):
                group.broadcast_(self._buffer.run(begin, end), src=rank)
        return 4 * (self._bounds[group.rank + 1] - self._bounds[group.rank])

    def piece(self, name: str, tensor: Any) -> Piece | None:
        return None

    def owned_piece(self, name: str, parameter: Any) -> Piece | None:
        return self._shards[name].piece

    def writes(self, name: str, *, piece: bool) -> bool:
        return piece or self.data_group.rank == 0

    def close(self) -> None:
        self._plain.close()


def run_bounds(count: int, num_ranks: int) -> list[int]:
    """Where the runs of `num_ranks` ranks over `count` elements begin, and the last one's end; lengths differ by one
    at the most."""
    return [count * rank // num_ranks for rank in range(num_ranks + 1)]


def cut_pieces(named: Sequence[tuple[str, Any]], begin: int, end: int) -> dict[str, Piece]:
    """What of each parameter lies from `begin` to before `end` of all elements in order; of those that have some."""
    pieces, first = {}, 0
    for name, parameter in named:
        start, stop = max(begin - first, 0), min(end - first, parameter.size)
        first += parameter.size
        if start < stop:
            pieces[name] = Piece(shape=tuple(parameter.shape), start=(start,), size=(stop - start,))
    return pieces


def build_shard(parameter: Any, piece: Piece, buffer: ParameterBuffer, start: int) -> Shard:
    """A shard in the memory of `buffer` from `start` on."""
    import paddle

    fill = paddle.nn.initializer.Constant(0.0)
    tensor = paddle.create_parameter(list(piece.size), parameter.dtype, default_initializer=fill)
    # What a layer may have set for its parameter, and an optimizer heeds.
    tensor.optimize_attr, tensor.regularizer = parameter.optimize_attr, parameter.regularizer
    buffer.lend(tensor, start)
    return Shard(parameter=parameter, tensor=tensor, piece=piece, start=start)
