"""Steps that would spoil a training: which are left out, when the state goes back to a commit, when it ends.

What is judged is what the exchange gave, equal on all ranks, so that all judge alike without a word. Under local SGD
each rank judges its own step, and what all came to is known at the end of a round (`Exchanged.alike`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddlewheel.recipe import Guard
from paddlewheel.training.events import AnomalyEvent
from paddlewheel.training.groups import Group

NORMS = 100
LEAST_NORMS = 10  # the median of fewer says nothing
Batch = tuple[int, int]  # epoch, step of the epoch


class StepGuard:
    """The guard of one rank. `row`: batches left out one after the other until now; `passed`: those that the training
    passes over, since they were bad before it went back."""

    def __init__(self, settings: Guard) -> None:
        self.settings = settings
        self.norms: deque[float] = deque(maxlen=NORMS)
        self.row: list[Batch] = []
        self.passed: list[Batch] = []
        self.skipped = self.rollbacks = 0
        self.good = False  # whether a step counted since the beginning, or since the state went back
        self._open: list[tuple[Batch, bool]] = []  # of a round whose end has not come

    def fault(self, loss: float, norm: float) -> tuple[str, float] | None:
        """(what is out of line: loss or norm, its value); None for a step that counts. `norm` before clipping."""
        if not math.isfinite(loss):
            return "loss", loss
        if not math.isfinite(norm):
            return "norm", norm
        factor = self.settings.norm_factor
        if factor is not None and len(self.norms) >= LEAST_NORMS and norm > factor * statistics.median(self.norms):
            return "norm", norm
        return None

    def note(self, batch: Batch, *, bad: bool, norm: float) -> None:
        """Take in what all ranks made of a step."""
        if bad:
            self.row.append(batch)
            self.skipped += 1
            return
        self.row.clear()
        self.good = True
        if self.settings.norm_factor is not None:
            self.norms.append(norm)

    def note_own(self, batch: Batch, *, bad: bool, group: Group, settled: bool) -> None:
        """Take in what this rank made of a step; at a round's end a step is bad that was so on any rank."""
        self._open.append((batch, bad))
        if settled:
            import paddle

            told = paddle.to_tensor(np.array([float(one) for _, one in self._open], np.float32))
            group.sum_(told)
            for (of_step, _), count in zip(self._open, told.numpy().tolist(), strict=True):
                self.note(of_step, bad=count > 0, norm=0.0)
                if self.must_go_back:
                    break  # what came after it in the round is taken back with it
            self._open.clear()

    def passes_over(self, batch: Batch) -> bool:
        """Whether the batch is visited only."""
        return batch in self.passed

    @property
    def must_go_back(self) -> bool:
        """Whether more steps in a row were left out than may be."""
        return len(self.row) > self.settings.max_skips

    def go_back(self, event: AnomalyEvent) -> None:
        """Pass over the row from now on. event: of its last step. Raises ArithmeticError where no more may go back."""
        if self.rollbacks >= self.settings.max_rollbacks:
            raise ArithmeticError(
                f"{len(self.row)} steps in a row were left out (training.guard.max_skips: {self.settings.max_skips}), "
                f"the last with {self._told(event)}; {self._advice()}"
            )
        self.passed += self.row
        self.row = []
        self.rollbacks += 1
        self.good = False
        self._open.clear()

    def check_end(self, event: AnomalyEvent) -> None:
        """Raises ArithmeticError where a training ends in a row of bad steps after it went back, or without a single
        good one. event: of its last step."""
        if self.row and (self.rollbacks or not self.good):
            raise ArithmeticError(
                f"the training ends with {len(self.row)} steps left out, the last with {self._told(event)}; "
                f"{self._advice()}"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for a commit."""
        return {
            "norms": list(self.norms),
            "row": [list(one) for one in self.row],
            "passed": [list(one) for one in self.passed],
            "skipped": self.skipped,
            "rollbacks": self.rollbacks,
            "good": self.good,
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        """Go on from what a commit tells; from nothing where that has no guard's state."""
        self.norms = deque(tree.get("norms", ()), maxlen=NORMS)
        self.row, self.passed = _batches(tree.get("row", ())), _batches(tree.get("passed", ()))
        self.skipped, self.rollbacks = int(tree.get("skipped", 0)), int(tree.get("rollbacks", 0))
        self.good = bool(tree.get("good", False))
        self._open.clear()

    def load_norms(self, tree: Mapping[str, Any]) -> None:
        """Go on from an older commit of this training: what was learnt since stays, the norms are those of then."""
        self.norms = deque(tree.get("norms", ()), maxlen=NORMS)

    def _told(self, event: AnomalyEvent) -> str:
        ids = ", ".join(map(str, event.first_ids)) or "none on this rank"
        return (
            f"{event.kind} {event.value} at step {event.step}: batch {event.batch} of epoch {event.epoch} "
            f"(first sample ids: {ids})"
        )

    def _advice(self) -> str:
        times = "once" if self.rollbacks == 1 else f"{self.rollbacks} times"
        return (
            f"the state went back {times} (training.guard.max_rollbacks: {self.settings.max_rollbacks}). Look at these "
            "rows, lower training.optimizer.learning_rate, set training.optimizer.clip_norm, or raise "
            "training.guard.norm_factor where sound steps were left out"
        )


def _batches(tree: Sequence[Sequence[int]]) -> list[Batch]:
    return [(int(epoch), int(step)) for epoch, step in tree]
