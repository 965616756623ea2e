"""Which part of a training's time went into steps that count, and where the rest went, each loss by name.

Goodput: time on steps that count / all time from the start of the first attempt to the end of the last. The time is
rank 0's, by wall clock; what a step waited for (data, the other ranks) is part of the step. Waiting for a node before
the first attempt is the scheduler's and is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from paddlewheel.storage import Store
from paddlewheel.training.attempts import list_attempts, read_verdict
from paddlewheel.training.curve import mark_counted, read_events

# Loss -> how people call it, in the order in which they are told.
LOSSES = {
    "startup": "start-up",
    "waiting": "waiting for the next attempt",
    "rolled_back": "steps taken back",
    "skipped": "steps left out",
    "checkpoint": "waiting for commits",
    "evaluation": "evaluations",
    "other": "between steps",
}
LEAST_TOLD = 0.001


@dataclass(frozen=True, kw_only=True)
class Span:
    """When an attempt began and ended, seconds since 1970; `ended` None: killed with its agent, nobody knows when."""

    attempt: int
    started: float
    ended: float | None = None


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds: of all, of steps that count, of each loss (LOSSES), and of the steps' parts on rank 0."""

    seconds: float
    steps: float
    losses: Mapping[str, float]
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of all time, that of steps that count."""
        return self.steps / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """For result.json; seconds to the millisecond."""
        return {
            "share": round(self.share, 6),
            "seconds": round(self.seconds, 3),
            "steps": round(self.steps, 3),
            "losses": {name: round(seconds, 3) for name, seconds in self.losses.items()},
            "parts": {name: round(seconds, 3) for name, seconds in self.parts.items()},
        }


def parse_goodput(tree: Mapping[str, Any]) -> Goodput:
    """What `to_json` gave."""
    return Goodput(**{name: tree[name] for name in ("seconds", "steps", "losses", "parts")})


def read_goodput(store: Store, run_key: str) -> Goodput:
    """The goodput of a run so far, from rank 0's published events and the attempts' records."""
    attempts, spans = list_attempts(store, run_key), []
    for attempt in attempts:
        verdict = read_verdict(store, run_key, attempt.number) or {}
        started = datetime.fromisoformat(attempt.started).timestamp()
        spans.append(Span(attempt=attempt.number, started=started, ended=verdict.get("at")))
    return reckon(spans, mark_counted(read_events(store, run_key, rank=0), attempts))


def reckon(spans: Sequence[Span], marked: Iterable[tuple[Mapping[str, Any], bool]]) -> Goodput:
    """The goodput of these attempts, from rank 0's events, each with whether it counts.

    Where nobody knows when an attempt ended, it is taken to have ended with its last event; what it did after that is
    lost with it, and in `waiting`.
    """
    told: dict[int, list[tuple[Mapping[str, Any], bool]]] = {span.attempt: [] for span in spans}
    for event, counts in marked:
        told.setdefault(event["attempt"], []).append((event, counts))
    losses, parts, steps = dict.fromkeys(LOSSES, 0.0), dict[str, float](), 0.0
    for position, span in enumerate(spans):
        following = spans[position + 1].started if position + 1 < len(spans) else None
        # A newer attempt may have begun while this one still ran: from then on the time is the newer one's.
        events = [one for one in told[span.attempt] if following is None or one[0]["at"] <= following]
        last = max((event["at"] for event, _ in events), default=span.started)
        ended = max(span.ended or last, span.started)
        ended = ended if following is None else min(ended, following)
        found = _attempt_losses(span, events, ended)
        steps += found.pop("steps")
        for name, seconds in found.items():
            losses[name] += seconds
        losses["waiting"] += max(0.0, following - ended) if following is not None else 0.0
        for event, counts in events:
            if event["event"] == "EndStepEvent" and counts:
                for name, seconds in event["parts"].items():
                    if name != "checkpoint":  # no part of the step's own seconds
                        parts[name] = parts.get(name, 0.0) + seconds
    return Goodput(seconds=steps + sum(losses.values()), steps=steps, losses=losses, parts=parts)


def _attempt_losses(span: Span, events: Sequence[tuple[Mapping[str, Any], bool]], ended: float) -> dict[str, float]:
    """Seconds by loss, and of `steps`, between an attempt's start and its end."""
    found = dict.fromkeys(("steps", *LOSSES), 0.0)
    begun = [event["at"] for event, _ in events if event["event"] == "BeginEpochEvent"]
    found["startup"] = max(0.0, min([*begun, ended]) - span.started)
    moved_at = committed_at = span.started + found["startup"]
    for event, counts in events:
        kind = event["event"]
        if kind == "EndStepEvent":
            found["steps" if counts else "rolled_back"] += event["seconds"]
            found["checkpoint"] += event["parts"].get("checkpoint", 0.0)
        elif kind == "AnomalyEvent":
            lost = "skipped" if counts and event["back_to"] is None else "rolled_back"
            found[lost] += event.get("seconds", 0.0)
        elif kind == "EvaluationEvent":
            found["evaluation" if counts else "rolled_back"] += event["seconds"]
        if kind == "CheckpointEvent":
            committed_at = event["at"]
        elif kind not in ("BeginEpochEvent", "EndEpochEvent", "ResumeEvent"):
            moved_at = event["at"]
    found["checkpoint"] += max(0.0, committed_at - moved_at)  # the last commit is waited for after the last step
    found["other"] = max(0.0, ended - span.started - sum(found.values()))
    return found


def goodput_line(goodput: Goodput) -> str:
    """For people: the share, and the losses that are worth a word, the largest first."""
    losses = sorted(goodput.losses.items(), key=lambda entry: -entry[1])
    told = [
        f"{LOSSES[name]} {seconds / goodput.seconds:.1%}"
        for name, seconds in losses
        if goodput.seconds and seconds / goodput.seconds >= LEAST_TOLD
    ]
    lost = f"; lost: {', '.join(told)}" if told else ""
    return f"goodput {goodput.share:.1%} of {goodput.seconds:,.1f} s{lost}"
