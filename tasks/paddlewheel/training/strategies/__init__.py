"""How the ranks of a training share its work: what a strategy does, and the strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from paddlewheel.training.strategies.data_parallel import DataParallel
from paddlewheel.training.strategies.single import Single

__all__ = ["STRATEGIES", "Strategy", "build_strategy"]


class Strategy(Protocol):
    """`data_rank` of `data_world_size` says which slice of a global batch this rank trains on."""

    data_rank: int
    data_world_size: int

    def setup(self) -> None:
        """Join the other ranks. Raises PeerError where they cannot be reached."""

    def wrap(self, model: Any) -> Any:
        """The model as this rank trains it, equal on all ranks."""

    def sum_over_ranks(self, tensor: Any) -> None:
        """Replace the tensor by its sum over the ranks, in place. Raises PeerError where one is gone."""

    def close(self) -> None:
        """Leave the other ranks."""


STRATEGIES: dict[str, Callable[[int, int], Strategy]] = {"single": Single, "data_parallel": DataParallel}


def build_strategy(name: str, rank: int, world_size: int) -> Strategy:
    """The strategy of this name for one rank of `world_size`."""
    from paddlewheel.training.models import import_name

    build = STRATEGIES.get(name) or import_name(name, "training.strategy")
    strategy: Strategy = build(rank, world_size)
    return strategy
