"""How the ranks of a training share its work: what a strategy does, and the strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from paddlewheel.recipe import Parallel, Training
from paddlewheel.training.groups import Group
from paddlewheel.training.pieces import Piece
from paddlewheel.training.strategies.data_parallel import DataParallel
from paddlewheel.training.strategies.mesh import build_mesh, build_pipeline, build_tensor
from paddlewheel.training.strategies.single import build_single
from paddlewheel.training.strategies.zero import build_zero

__all__ = ["STRATEGIES", "Compute", "Strategy", "build_strategy"]


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How a step computes. `cast`: the context of a forward pass; `lap`: ends a part of the step's time by name."""

    cast: Callable[[], AbstractContextManager[Any]]
    lap: Callable[[str], None]


class Strategy(Protocol):
    """One rank's view of how a training is laid out.

    world: all ranks. data_group: those that hold the same parameters and train on other rows of a global batch.
    model_group: those that together hold one copy of the model, and see the same rows; usually this one alone.
    writers: ranks of the world that hold something which a commit needs and no earlier rank holds; rank 0 among them.
    stream: ranks that must draw the same random numbers, for dropout, share it.
    The groups stand only after `setup`.
    """

    @property
    def world(self) -> Group: ...
    @property
    def data_group(self) -> Group: ...
    @property
    def model_group(self) -> Group: ...
    @property
    def writers(self) -> Sequence[int]: ...
    @property
    def stream(self) -> int: ...

    def setup(self) -> None:
        """Join the other ranks. Raises PeerError where they cannot be reached."""

    def wrap(self, model: Any, sample: Callable[[], Any], kept: Mapping[str, Any]) -> Any:
        """What this rank trains of the model, equal on all ranks of its data group.

        sample: gives a batch of a few rows, the same on all ranks. kept: what `kept` told at the commit that the
        training goes on from.
        """

    def kept(self) -> dict[str, Any]:
        """What `wrap` measured and a resume must find as it was, plain JSON."""

    def owned(self, model: Any) -> list[tuple[str, Any]]:
        """Names in the whole model and parameters that this rank's optimizer updates, or its parts of them."""

    def backward(self, model: Any, batches: Sequence[Any], weights: Sequence[float], compute: Compute) -> Any | None:
        """Forward and backward of this rank's micro-batches, gradients added up in the parameters.

        The sum of each batch's mean loss times its weight, shape [1], counted once over a model group: on the others of
        it, and where there are no batches, None.
        """

    def counts(self, name: str) -> bool:
        """Whether this rank's gradient of the parameter takes part in the norm over the model group: one of those
        that hold it whole does, each that holds a piece of it does."""

    def before_update(self, model: Any) -> None:
        """Make ready what the optimizer updates, where that is not the model's own parameters."""

    def after_update(self, model: Any) -> int:
        """Make this rank's update known to those that hold the same parameters and did not make it; bytes sent."""

    def piece(self, name: str, tensor: Any) -> Piece | None:
        """Where a tensor of the model lies in the whole; None: whole."""

    def owned_piece(self, name: str, parameter: Any) -> Piece | None:
        """Where an `owned` parameter, and what an optimizer keeps for each of its elements, lies in the whole; None:
        whole."""

    def writes(self, name: str, *, piece: bool) -> bool:
        """Whether this rank gives a tensor of this parameter or buffer to a commit: exactly one of those that hold it.

        piece: whether what it holds is a piece, which other ranks of its model group do not hold.
        """

    def close(self) -> None:
        """Leave the other ranks."""


STRATEGIES: dict[str, Callable[[int, int, Parallel], Strategy]] = {
    "single": build_single,
    "data_parallel": DataParallel,
    "zero": build_zero,
    "tensor_parallel": build_tensor,
    "pipeline_parallel": build_pipeline,
    "mesh": build_mesh,
}


def build_strategy(training: Training, rank: int, world_size: int) -> Strategy:
    """The recipe's strategy for one rank of `world_size`."""
    from paddlewheel.training.models import import_name

    build = STRATEGIES.get(training.strategy) or import_name(training.strategy, "training.strategy")
    strategy: Strategy = build(rank, world_size, training.parallel)
    return strategy
