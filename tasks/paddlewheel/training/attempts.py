"""Attempts of a run: numbered create-only, so that the number is a fencing token; and the verdict on each."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from paddlewheel.errors import StorageError
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import ATTEMPT_FILE, COMMIT_NAME
from paddlewheel.training.damaged import settle_commit
from paddlewheel.training.events import stamp


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a run's ranks. A commit of an older attempt beyond `resumed_from_step` does not count any more.

    micro_batch: rows at once, where an earlier attempt had not the memory for what the recipe says.
    """

    number: int
    resumed_from_step: int
    world_size: int
    host: str
    pid: int
    started: str
    micro_batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why an attempt ended. `kind` is the agent's word for `exit_code` (docs/architecture.md).

    next_micro_batch, retry: as in `watch.End`. `at`: when it was passed, as in events.
    """

    attempt: int
    exit_code: int
    kind: str
    message: str
    step: int
    resumed_from_step: int
    rank: int | None = None
    signal: int | None = None
    trace: str = ""
    stacks: str = ""
    log_tail: str = ""
    next_micro_batch: int | None = None
    retry: bool = True
    at: float = field(default_factory=stamp)


def open_attempt(store: Store, run_key: str, *, world_size: int) -> Attempt:
    """Take the next number of the run; whoever held the one before is fenced off from now on."""
    for _ in range(100):
        earlier = list_attempts(store, run_key)
        number = max((attempt.number for attempt in earlier), default=0) + 1
        commit = settle_commit(store, run_key, found_by=number)
        attempt = Attempt(
            number=number,
            resumed_from_step=commit.step if commit else 0,
            world_size=world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            micro_batch=_next_micro_batch(store, run_key, earlier[-1]) if earlier else None,
        )
        key = f"runs/{run_key}/attempts/{number}.json"
        if store.stat(key) is not None:
            continue
        tree = {"attempt": number, **asdict(attempt), "nonce": os.urandom(8).hex()}
        del tree["number"]
        try:
            store.publish(key, json.dumps(tree, sort_keys=True).encode())
        except StorageError:
            if store.stat(key) is None:
                raise
            continue  # somebody else took the number between the look and the publish
        if commit is not None and store.stat(f"{commit.key}/{COMMIT_NAME}") is None:
            continue  # whoever had the run committed meanwhile, and removed it: another number, and another look
        return attempt
    raise StorageError(f"no attempt of run {run_key} could be opened: a hundred others were faster")


def list_attempts(store: Store, run_key: str) -> list[Attempt]:
    """Every attempt of the run, oldest first. Raises StorageError for a record that is damaged."""
    found = []
    for stat in store.list(f"runs/{run_key.removeprefix('runs/')}/attempts"):
        match = ATTEMPT_FILE.fullmatch(stat.key.rpartition("/")[2])
        if match:
            try:
                tree = json.loads(store.read(stat.key))
                tree = {"micro_batch": None, **tree, "number": tree["attempt"]}
                found.append(Attempt(**{name: tree[name] for name in Attempt.__dataclass_fields__}))
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(f"{store.uri(stat.key)} is not the record of an attempt: {error!r}") from error
    return sorted(found, key=lambda attempt: attempt.number)


def publish_verdict(store: Store, run_key: str, verdict: Verdict) -> None:
    """Publish attempts/N.verdict.json. One that is there stands: an attempt ends once."""
    key = f"runs/{run_key}/attempts/{verdict.attempt}.verdict.json"
    if store.stat(key) is None:
        store.publish(key, json.dumps(asdict(verdict), sort_keys=True, indent=1).encode())


def read_verdict(store: Store, run_key: str, attempt: int) -> dict[str, Any] | None:
    """The verdict on an attempt, or None while it runs (or where it was killed with its agent)."""
    key = f"runs/{run_key.removeprefix('runs/')}/attempts/{attempt}.verdict.json"
    if store.stat(key) is None:
        return None
    tree: dict[str, Any] = json.loads(store.read(key))
    return tree


def _next_micro_batch(store: Store, run_key: str, before: Attempt) -> int | None:
    """What the attempt before said that this one is to take; else what it took itself."""
    verdict = read_verdict(store, run_key, before.number)
    told = verdict.get("next_micro_batch") if verdict is not None else None
    return before.micro_batch if told is None else int(told)
