"""Commits that were found damaged, set aside by name, so that no later attempt tries them or counts on them.

`runs/KEY/damaged/step-S-attempt-N.json`, beside the commits, which a store does not rename: it tells what was wrong,
which attempt found it, and from which step that went on. The damaged files themselves go when old commits go.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from paddlewheel.errors import StorageError
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import DAMAGED_FILE, Commit, find_whole
from paddlewheel.training.events import stamp

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A commit that does not count any more. found_by: the attempt that went on from step `went_on_from` instead."""

    step: int
    attempt: int
    reason: str
    found_by: int
    went_on_from: int
    at: float = field(default_factory=stamp)

    @property
    def lost_steps(self) -> int:
        """Steps that were done again for it."""
        return self.step - self.went_on_from


def settle_commit(store: Store, run_key: str, *, found_by: int) -> Commit | None:
    """The newest commit that counts and is whole, its digests verified; those that are not are set aside, with a
    warning that tells the steps lost. None where there is none.

    found_by: the attempt that will go on from it. Raises StorageError where the store cannot be read, which proves no
    damage: then nothing is set aside.
    """
    found, damaged = find_whole(store, run_key)
    start = found.step if found is not None else 0
    for step, attempt, reason in damaged:
        told = Damaged(step=step, attempt=attempt, reason=reason, found_by=found_by, went_on_from=start)
        set_aside(store, run_key, told)
    return found


def set_aside(store: Store, run_key: str, damaged: Damaged, *, removed: bool = False) -> None:
    """Publish the record, and warn. One that is there stands. A store that cannot be written costs the record alone.

    removed: the commit itself was removed, and another one of its step and attempt may come.
    """
    log.warning(
        "the commit at step %d of attempt %d is damaged and set aside (%s): attempt %d goes on from step %d, %d steps "
        "are done again",
        damaged.step, damaged.attempt, damaged.reason, damaged.found_by, damaged.went_on_from, damaged.lost_steps,
    )  # fmt: skip
    ending = f"-removed-{int(1000 * damaged.at)}" if removed else ""
    key = f"runs/{run_key}/damaged/step-{damaged.step}-attempt-{damaged.attempt}{ending}.json"
    try:
        if store.stat(key) is None:
            store.publish(key, json.dumps(asdict(damaged), sort_keys=True).encode())
    except StorageError as error:
        log.warning("%s could not be written: %s", store.uri(key), error)


def read_damaged(store: Store, run_key: str) -> Sequence[Damaged]:
    """All commits of a run that were set aside, in the order in which they were found."""
    found = []
    for stat in store.list(f"runs/{run_key}/damaged"):
        if DAMAGED_FILE.fullmatch(stat.key.rpartition("/")[2]):
            try:
                found.append(Damaged(**json.loads(store.read(stat.key))))
            except (ValueError, TypeError) as error:
                log.warning("%s is not the record of a damaged commit: %s", store.uri(stat.key), error)
    return sorted(found, key=lambda one: (one.at, -one.step))
