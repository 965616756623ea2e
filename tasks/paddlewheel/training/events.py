"""What a training tells while it runs: events for handlers and for the log that the run card and the UI read.

Handlers are callables that take one event; each rank calls its own. An event becomes one JSON line, `event` its class
name. `epoch` counts from 1; `step` is the number of global steps done when the event is told. Readers: `curve`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, kw_only=True)
class Event:
    """Fields of every event."""

    attempt: int
    rank: int
    epoch: int
    step: int


@dataclass(frozen=True, kw_only=True)
class BeginEpochEvent(Event):
    """An epoch begins, or goes on after a resume."""


@dataclass(frozen=True, kw_only=True)
class EndEpochEvent(Event):
    """An epoch is over. `loss`: mean over the samples that this attempt trained on in it."""

    loss: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BeginStepEvent(Event):
    """A step begins; handlers alone get it."""


@dataclass(frozen=True, kw_only=True)
class EndStepEvent(Event):
    """A step is over whose update counts; of others an AnomalyEvent tells.

    loss: the mean over the global batch of `rows` rows before the update.
    parts: seconds of this rank's data, forward, backward, exchange, optimizer, and checkpoint: what the step waited for
    a host copy, or for an older commit, before it began. norm: of the global gradient, before it was clipped.
    sent_bytes: what this rank gave into the exchange of gradients.
    """

    loss: float
    learning_rate: float
    rows: int
    seconds: float
    parts: Mapping[str, float]
    rss_bytes: int
    norm: float = 0.0
    sent_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(Event):
    """A commit is published. `seconds` from the host copy until then; only rank 0 tells it."""

    commit: str
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AnomalyEvent(Event):
    """A step's update was left out, or the state went back to the commit of step `back_to` (0: the start).

    kind: what was out of line (loss, norm), or overflow of an fp16 loss, or passed: a batch that was bad before the
    state went back, visited and not trained on. value: the figure (of an overflow the scale), as text, since JSON has
    no nan. `batch`: the step of the epoch, from 0; `first_ids`: sample ids of this rank's first rows in it.
    """

    kind: str
    value: str
    batch: int
    first_ids: tuple[int, ...]
    back_to: int | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationEvent(Event):
    """The model was measured on `rows` rows that it is not trained on; best: none before was better."""

    metrics: Mapping[str, float]
    rows: int
    best: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ResumeEvent(Event):
    """Training goes on from a commit that `from_attempt` made on `from_world_size` ranks."""

    commit: str
    from_attempt: int
    from_world_size: int
    world_size: int


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One global step as it finally counts. Seconds and parts are rank 0's."""

    step: int
    epoch: int
    loss: float
    learning_rate: float
    rows: int
    seconds: float
    attempt: int
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One try of a run and why it ended; fields that are not known yet are None."""

    attempt: int
    world_size: int
    resumed_from_step: int
    last_step: int
    ended: str | None = None
    exit_code: int | None = None
    verdict: str = ""


def to_line(event: Event) -> bytes:
    """The event as one line of JSON with its class name."""
    return json.dumps({"event": type(event).__name__, **asdict(event)}, separators=(",", ":")).encode() + b"\n"
