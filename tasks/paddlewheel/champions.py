"""The champion's pointer and the versions of a model: what they say, and how the pointer moves.

`champion.json` holds the pointer and its whole history, and it alone moves, by compare-and-swap. A version counts once
the history has it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paddlewheel.errors import StorageError
from paddlewheel.manifest import read_manifest
from paddlewheel.storage import Store

CHAMPION_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Change:
    """One move of the pointer: to which version, of which run and partition, when (UTC), by whom and why."""

    version: int
    run: str
    partition: str
    action: str
    by: str
    reason: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Champion:
    """The version in service. `etag` is the state of the pointer that `swap` compares; `history` oldest first."""

    name: str
    version: int
    run: str
    partition: str
    etag: str
    history: tuple[Change, ...]

    @property
    def manifest(self) -> str:
        """Key of the version's manifest."""
        return version_key(self.name, self.version)

    def to_json(self) -> dict[str, Any]:
        """What verdicts and cards say of it."""
        return {"version": self.version, "run": self.run, "partition": self.partition}


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """A published model; `manifest`, `evaluation` and `verdict` are keys. `data`, `code`, `recipe` are digests."""

    name: str
    version: int
    run: str
    partition: str
    manifest: str
    evaluation: str
    verdict: str
    data: str
    code: str
    recipe: str
    metrics: Mapping[str, Any]


def version_key(name: str, version: int) -> str:
    """Key of the manifest of a version."""
    return f"models/{name}/versions/{version}/manifest.json"


def champion(store: Store, name: str) -> Champion | None:
    """The model's champion, or None before the first. Raises StorageError for a damaged pointer."""
    key = f"models/{name}/champion.json"
    stat = store.stat(key)  # before the content: were it moved between the two, the swap would only be refused
    if stat is None:
        return None
    try:
        tree = json.loads(store.read(key))
        history = tuple(Change(**change) for change in tree["history"])
        last = history[-1]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StorageError(f"{store.uri(key)} is not a champion's pointer: {error!r}; restore it") from error
    return Champion(
        name=name,
        version=last.version,
        run=last.run,
        partition=last.partition,
        etag=stat.version,
        history=history,
    )


def list_versions(store: Store, name: str) -> list[ModelVersion]:
    """Every version that is or was champion, the oldest first."""
    current = champion(store, name)
    numbers = sorted({change.version for change in current.history}) if current else []
    return [_read_version(store, name, number) for number in numbers]


def version_of_run(store: Store, name: str, run_key: str) -> ModelVersion | None:
    """The version that a run became, or None. `run_key` as `runs/KEY` or KEY."""
    run_key, current = run_key.removeprefix("runs/"), champion(store, name)
    for change in current.history if current else ():
        if change.run == run_key:
            return _read_version(store, name, change.version)
    return None


def move(store: Store, name: str, current: Champion | None, change: Change) -> Champion:
    """Move the pointer, if it still is where `current` says. Raises SwapConflict."""
    key, history = f"models/{name}/champion.json", (*(current.history if current else ()), change)
    pointer = {
        "version": CHAMPION_VERSION,
        "name": name,
        "champion": {"version": change.version, "run": change.run, "partition": change.partition},
        "history": [asdict(one) for one in history],
    }
    content = (json.dumps(pointer, sort_keys=True, indent=1) + "\n").encode()
    stat = store.swap(key, content, expected=current.etag if current else None)
    return Champion(
        name=name,
        version=change.version,
        run=change.run,
        partition=change.partition,
        etag=stat.version,
        history=history,
    )


def now() -> str:
    """This moment in UTC, for the history."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _read_version(store: Store, name: str, number: int) -> ModelVersion:
    manifest = read_manifest(store, version_key(name, number))
    facts = manifest.facts
    return ModelVersion(
        name=name,
        version=number,
        run=facts["run"],
        partition=facts["partition"],
        manifest=version_key(name, number),
        evaluation=facts["evaluation"],
        verdict=facts["verdict"],
        data=facts["data"],
        code=manifest.code,
        recipe=manifest.recipe,
        metrics=facts["metrics"],
    )
