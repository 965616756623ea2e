"""What a run's events say afterwards: one record a global step, and its attempts. Without Paddle.

Steps count by the rule of commits: one of attempt a at step s counts only if s <= `resumed_from_step` of every later
attempt. What a later attempt rolled back is gone, be it done again by now or not; so is what an attempt itself took
back when its guard went back to a commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from paddlewheel.errors import StorageError
from paddlewheel.storage import Store
from paddlewheel.training.attempts import Attempt, list_attempts, read_verdict
from paddlewheel.training.events import AttemptRecord, StepRecord

MOST_CHUNKS = 50


def read_curve(store: Store, run_key: str, *, rank: int = 0) -> list[StepRecord]:
    """A rank's steps in their order, each global step at most once. `run_key` with or without `runs/`.

    A step whose update was left out, or whose batch was passed over, is none.
    """
    return curve_of(read_counted(store, run_key, rank=rank))


def curve_of(events: Iterable[Mapping[str, Any]]) -> list[StepRecord]:
    """The steps among events, in their order; of each global step the one that was told last."""
    records = {event["step"]: step_record(event) for event in events if event["event"] == "EndStepEvent"}
    return [records[step] for step in sorted(records)]


def step_record(event: Mapping[str, Any]) -> StepRecord:
    """The record of an EndStepEvent, which may be of a version that told less."""
    return StepRecord(**{name: event[name] for name in StepRecord.__dataclass_fields__ if name in event})


def read_counted(store: Store, run_key: str, *, rank: int = 0) -> list[dict[str, Any]]:
    """A rank's events of steps that count, in the order they were told: without what was rolled back."""
    attempts = list_attempts(store, run_key)
    return [event for event, counts in mark_counted(read_events(store, run_key, rank=rank), attempts) if counts]


def mark_counted(events: Iterable[dict[str, Any]], attempts: Sequence[Attempt]) -> list[tuple[dict[str, Any], bool]]:
    """One rank's events in the order they were told, each with whether it counts.

    An anomaly with `back_to` takes back all that was told of later steps before it, but for the anomalies themselves.
    """
    marked: list[tuple[dict[str, Any], bool]] = []
    for event in events:
        counts = _outlasts(event, attempts)
        if counts and event.get("back_to") is not None:
            marked = [(one, before and (one["step"] <= event["back_to"] or "back_to" in one)) for one, before in marked]
        marked.append((event, counts))
    return marked


def _outlasts(event: Mapping[str, Any], attempts: Sequence[Attempt]) -> bool:
    """Whether no later attempt went on from before the event's step."""
    later = [one.resumed_from_step for one in attempts if one.number > event["attempt"]]
    return bool(event["step"] <= min(later, default=event["step"]))


def read_machines(store: Store, run_key: str, counted: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What agents said of their nodes (MachineEvent), by attempt and time, without looks at what was rolled back.

    counted: rank 0's events that count, which tell where the state went back.
    """
    attempts = list_attempts(store, run_key)
    backs = [(event["attempt"], event["at"], event["back_to"]) for event in counted if event.get("back_to") is not None]
    return [
        event
        for attempt in attempts
        for event in _read_chunks(store, f"{_events(run_key)}/attempt-{attempt.number}/node-0")
        if _outlasts(event, attempts)
        and not any(
            number == attempt.number and event["at"] <= at and event["step"] > step for number, at, step in backs
        )
    ]


def read_ranks(store: Store, run_key: str, curve: Sequence[StepRecord]) -> dict[int, list[StepRecord]]:
    """Each rank's steps that count, by rank, of the attempts on as many ranks as the last one had.

    curve: of the run. Of a long training it is a sample, MOST_CHUNKS files of each rank and attempt, the same steps of
    all ranks: a thousand ranks have told more than anybody can read.
    """
    attempts = list_attempts(store, run_key)
    size = attempts[-1].world_size if attempts else 0
    counted = {(one.step, one.attempt) for one in curve}
    found: dict[int, list[StepRecord]] = {}
    for rank in range(size):
        folders = [
            f"{_events(run_key)}/attempt-{attempt.number}/rank-{rank}"
            for attempt in attempts
            if attempt.world_size == size
        ]
        events = (event for folder in folders for event in _read_chunks(store, folder, most=MOST_CHUNKS))
        records = curve_of(event for event in events if (event["step"], event["attempt"]) in counted)
        if records:
            found[rank] = records
    return found


def read_attempts(store: Store, run_key: str) -> list[AttemptRecord]:
    """Every attempt of the run, with why it ended where that is known."""
    last_steps: dict[int, int] = {}
    for event in read_events(store, run_key, rank=0):
        if event["event"] == "EndStepEvent":
            last_steps[event["attempt"]] = max(event["step"], last_steps.get(event["attempt"], 0))
    found = []
    for attempt in list_attempts(store, run_key):
        verdict = read_verdict(store, run_key, attempt.number)
        found.append(
            AttemptRecord(
                attempt=attempt.number,
                world_size=attempt.world_size,
                resumed_from_step=attempt.resumed_from_step,
                last_step=last_steps.get(attempt.number, attempt.resumed_from_step),
                ended=verdict["kind"] if verdict else None,
                exit_code=verdict["exit_code"] if verdict else None,
                verdict=verdict["message"] if verdict else "",
            )
        )
    return found


def read_events(store: Store, run_key: str, *, rank: int) -> Iterator[dict[str, Any]]:
    """One rank's published events by attempt, in the order they were told."""
    folder = _events(run_key)
    for attempt in sorted(store.children(folder), key=lambda name: int(name.removeprefix("attempt-"))):
        yield from _read_chunks(store, f"{folder}/{attempt}/rank-{rank}")


def _events(run_key: str) -> str:
    return f"runs/{run_key.removeprefix('runs/')}/events"


def _read_chunks(store: Store, folder: str, *, most: int | None = None) -> Iterator[dict[str, Any]]:
    """The events in a folder's files, in the order of the files; of `most` of these, evenly spread."""
    keys = sorted((stat.key for stat in store.list(folder)), key=_chunk_order)
    if most is not None and len(keys) > most:
        keys = [keys[position * len(keys) // most] for position in range(most)]
    for key in keys:
        for line in store.read(key).splitlines():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise StorageError(f"{store.uri(key)} is damaged: {error}") from error


def _chunk_order(key: str) -> tuple[bool, int, int]:
    """step-S.jsonl by S; those after the attempt went back to a commit (step-S-back-N) after those before; last what
    an agent published after a death (step-S-rest). Of a node: part-N.jsonl by N."""
    words = key.rpartition("/")[2].removesuffix(".jsonl").split("-")
    return words[-1] == "rest", int(words[3]) if "back" in words else 0, int(words[1])
