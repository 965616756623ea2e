"""What a training tells while it runs: events for handlers and for the log that the run card and the UI read.

Handlers are callables that take one event; each rank calls its own. An event becomes one JSON line, `event` its class
name. `epoch` counts from 1; `step` is the number of global steps done when the event is told. Readers: `curve`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field


def stamp() -> float:
    """Now, as events say it: seconds since 1970, UTC."""
    return round(time.time(), 3)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Fields of every event. `at`: when it was told, seconds since 1970, UTC."""

    attempt: int
    rank: int
    epoch: int
    step: int
    at: float = field(default_factory=stamp)


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
    no nan. `batch`: the step of the epoch, from 0; `first_ids`: sample ids of this rank's first rows in it. `seconds`:
    of the step, or of going back.
    """

    kind: str
    value: str
    batch: int
    first_ids: tuple[int, ...]
    back_to: int | None = None
    seconds: float = 0.0


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
class RankFigures:
    """What a rank's process takes: processors (1.0 is one of them, busy all the time) and memory."""

    rank: int
    processors: float
    rss_bytes: int


@dataclass(frozen=True, kw_only=True)
class GpuFigures:
    """What NVML says of one GPU; a figure that it does not give is None. `busy`: share of the time, 0 to 1."""

    index: int
    busy: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    celsius: float | None = None
    watts: float | None = None


@dataclass(frozen=True, kw_only=True)
class MachineEvent:
    """How a node stands while its ranks are at `step`; the agent tells it every few seconds, to no handler.

    The figures are of the last `seconds`. memory_bytes: in use without what the kernel can drop; memory_limit_bytes:
    the control group's, else the host's. Read, written, received and sent: bytes a second of the whole node.
    """

    attempt: int
    node: int
    step: int
    seconds: float
    processors: float
    num_processors: int
    memory_bytes: int
    memory_limit_bytes: int
    read_bytes: float
    written_bytes: float
    received_bytes: float
    sent_bytes: float
    disk_free_bytes: int
    ranks: Sequence[RankFigures] = ()
    gpus: Sequence[GpuFigures] = ()
    at: float = field(default_factory=stamp)


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One global step as it finally counts. Seconds, parts, memory and bytes sent are one rank's (rank 0's mostly)."""

    step: int
    epoch: int
    loss: float
    learning_rate: float
    rows: int
    seconds: float
    attempt: int
    parts: Mapping[str, float] = field(default_factory=dict)
    rss_bytes: int = 0
    sent_bytes: int = 0
    at: float = 0.0


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


def to_line(event: Event | MachineEvent) -> bytes:
    """The event as one line of JSON with its class name."""
    # asdict copies whatever is in it, which takes five times as long as the rest; here for what is nested alone.
    tree = {"event": type(event).__name__, **vars(event)}
    return json.dumps(tree, separators=(",", ":"), default=asdict).encode() + b"\n"
