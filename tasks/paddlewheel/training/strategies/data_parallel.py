"""Every rank holds the whole model and trains on its slice of each global batch; gradients are summed.

Rejected: paddle.DataParallel. When a peer dies it aborts in C++, where nothing can be caught or said; it needs to be
told of parameters that a step leaves unused; and it averages over ranks, which is wrong for slices of unequal length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paddlewheel.recipe import Parallel
from paddlewheel.training.groups import ALONE, Group, join_world, leave_world
from paddlewheel.training.pieces import Piece
from paddlewheel.training.state import trainable
from paddlewheel.training.strategies.accumulate import accumulate


class DataParallel:
    """All ranks are one data group. One rank needs no group."""

    model_group = ALONE
    writers = (0,)

    def __init__(self, rank: int, world_size: int, parallel: Parallel) -> None:
        self.world = self.data_group = Group(ranks=tuple(range(world_size)), rank=rank)

    def setup(self) -> None:
        self.world = self.data_group = join_world(self.world.rank, self.world.size)

    @property
    def stream(self) -> int:
        return self.world.rank

    def wrap(self, model: Any, sample: Callable[[], Any], kept: Mapping[str, Any]) -> Any:
        """Sends rank 0's parameters and buffers to all: a model of the user's own may start at random."""
        import paddle

        with paddle.no_grad():
            for tensor in model.state_dict().values():
                self.data_group.broadcast_(tensor)
        return model

    def kept(self) -> dict[str, Any]:
        return {}

    def owned(self, model: Any) -> list[tuple[str, Any]]:
        return trainable(model)

    def backward(self, model: Any, batches: Sequence[Any], weights: Sequence[float], compute: Any) -> Any | None:
        return accumulate(model, batches, weights, compute)

    def counts(self, name: str) -> bool:
        return True

    def before_update(self, model: Any) -> None:
        pass

    def after_update(self, model: Any) -> int:
        return 0

    def piece(self, name: str, tensor: Any) -> Piece | None:
        return None

    def owned_piece(self, name: str, parameter: Any) -> Piece | None:
        return None

    def writes(self, name: str, *, piece: bool) -> bool:
        return self.data_group.rank == 0

    def close(self) -> None:
        leave_world(self.world)
