"""How ranks that hold the same parameters agree on gradients: what an exchange does, and the exchanges by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from paddlewheel.recipe import Training
from paddlewheel.training.strategies import Strategy
from paddlewheel.training.sync.agreement import Exchanged
from paddlewheel.training.sync.dense import build_bf16, build_dense
from paddlewheel.training.sync.local_sgd import LocalSGD
from paddlewheel.training.sync.topk import TopK

__all__ = ["SYNCS", "Exchanged", "Sync", "build_sync"]


class Sync(Protocol):
    """An exchange of gradients. Built anew by each attempt, from (training, model, strategy, total_steps).

    own: whether each rank holds tensors of its own, `state`, that a resume needs.
    """

    @property
    def own(self) -> bool: ...

    def exchange(self, loss: Any | None, *, weight: float, scale: float, stop: bool, commit: bool) -> Exchanged:
        """Agree on the step's gradients, clip them to the global norm, and leave them in the parameters.

        loss: sum of this rank's weighted mean losses, times `scale`; None for none. Gradients are divided by `scale`
        (that of a scaled fp16 loss). weight: this rank's share of the global batch's rows.
        """

    def leave_out(self) -> None:
        """The step is left out: what `exchange` kept of it on this rank is as it was before. Before `clear`."""

    def clear(self) -> None:
        """Forget the step's gradients, which the optimizer has used or which are left out."""

    def after_update(self, step: int) -> int:
        """What is to be agreed on after the optimizer's update that made `step` global steps; bytes sent."""

    def settled(self, step: int) -> bool:
        """Whether after `step` steps all of a data group hold the same parameters, so that a commit can be made."""

    def state(self, optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Tensors that this rank alone holds and a resume needs.

        optimizer: this rank's tensors of the optimizer, by name.
        """

    def load(self, step: int, states: Mapping[int, Mapping[str, Any]], optimizer: Mapping[str, Any]) -> None:
        """Go on after `step` steps from the arrays that each rank saved, by world rank.

        Their number may be another now, and there may be none, where another exchange made the commit.
        """


SYNCS: dict[str, Callable[[Training, Any, Strategy, int], Sync]] = {
    "dense": build_dense,
    "bf16": build_bf16,
    "topk": TopK,
    "local_sgd": LocalSGD,
}


def build_sync(training: Training, model: Any, strategy: Strategy, total_steps: int) -> Sync:
    """The recipe's exchange of gradients."""
    from paddlewheel.training.models import import_name

    build = SYNCS.get(training.sync) or import_name(training.sync, "training.sync")
    sync: Sync = build(training, model, strategy, total_steps)
    return sync
