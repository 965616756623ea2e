"""Commits of a run: published whole or not at all, found again by the fencing rule, loaded without running any code.

`runs/KEY/checkpoints/step-S-attempt-N/`: model.safetensors (parameters and buffers by their names in the model, and
`average.` entries), optimizer.safetensors (`parameter.accumulator`), COMMIT.json last. Nothing here imports Paddle:
agents and readers look for commits too. Rejected: `paddle.save`, which is a pickle that executes what a file says, and
`paddle.distributed.save_state_dict`, which writes its metadata first and loads a flipped bit without a word.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlewheel.errors import CheckpointError, StorageError
from paddlewheel.manifest import Input, Manifest, Shard, publish_file, verify
from paddlewheel.storage import Store

COMMIT_NAME = "COMMIT.json"
MODEL_NAME, OPTIMIZER_NAME = "model.safetensors", "optimizer.safetensors"
AVERAGE = "average."
COMMIT_FOLDER = re.compile(r"step-(\d+)-attempt-(\d+)")
ATTEMPT_FILE = re.compile(r"(\d+)\.json")
log = logging.getLogger(__name__)


class FencedError(CheckpointError):
    """A newer attempt has taken the run over; this one must not write any more."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A published state of a run after `step` global steps. `order`: sums of sample hashes so far, by epoch."""

    key: str
    manifest: Manifest
    step: int
    epoch: int
    step_in_epoch: int
    attempt: int
    world_size: int
    order: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A host copy of all that a commit holds."""

    step: int
    epoch: int
    step_in_epoch: int
    order: Mapping[int, int]
    model: Mapping[str, np.ndarray]
    optimizer: Mapping[str, np.ndarray]


def commit_folder(run_key: str, step: int, attempt: int) -> str:
    """The key of a commit's folder."""
    return f"runs/{run_key}/checkpoints/step-{step}-attempt-{attempt}"


def read_fences(store: Store, run_key: str) -> dict[int, int]:
    """`resumed_from_step` of every attempt of the run, by attempt."""
    fences = {}
    for stat in store.list(f"runs/{run_key}/attempts"):
        found = ATTEMPT_FILE.fullmatch(stat.key.rpartition("/")[2])
        if found:
            try:
                fences[int(found[1])] = int(json.loads(store.read(stat.key))["resumed_from_step"])
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(f"{store.uri(stat.key)} is not the record of an attempt: {error!r}") from error
    return fences


def check_fence(store: Store, run_key: str, attempt: int) -> None:
    """Raises FencedError where a newer attempt than this one has begun."""
    newest = max(read_fences(store, run_key), default=0)
    if newest > attempt:
        raise FencedError(f"attempt {newest} of run {run_key} has begun; attempt {attempt} stops and commits no more")


def list_commits(store: Store, run_key: str, *, before_attempt: int | None = None) -> Iterator[Commit]:
    """The commits that count, newest first, their files not verified.

    A commit of attempt a at step s counts only if s <= the resumed_from_step of every later attempt. With
    `before_attempt`, that attempt and the later ones are looked away from. A commit that cannot be read is left out,
    with a warning.
    """
    fences = read_fences(store, run_key)
    if before_attempt is not None:
        fences = {attempt: step for attempt, step in fences.items() if attempt < before_attempt}
    found = []
    for name in store.children(f"runs/{run_key}/checkpoints"):
        match = COMMIT_FOLDER.fullmatch(name)
        if match:
            step, attempt = int(match[1]), int(match[2])
            newer = [fence for other, fence in fences.items() if other > attempt]
            if step <= min(newer, default=step) and (before_attempt is None or attempt < before_attempt):
                found.append((step, attempt))
    for step, attempt in sorted(found, reverse=True):
        key = f"{commit_folder(run_key, step, attempt)}/{COMMIT_NAME}"
        if store.stat(key) is not None:
            try:
                yield _parse_commit(Manifest.from_json(store.read(key), store.uri(key)), store.uri(key))
            except StorageError as error:
                log.warning("commit left out: %s", error)


def newest_commit(store: Store, run_key: str, *, before_attempt: int | None = None) -> Commit | None:
    """The newest commit that counts, its digests verified; None where there is none.

    A damaged one is named in a warning, and the one before it is taken.
    """
    for commit in list_commits(store, run_key, before_attempt=before_attempt):
        try:
            verify(store, commit.manifest)
        except StorageError as error:
            log.warning("commit at step %d left out, the one before it is taken: %s", commit.step, error)
            continue
        return commit
    return None


def load_weights(store: Store, commit: Commit, *, averaged: bool = True) -> dict[str, np.ndarray]:
    """Parameters and buffers by their names in the model; the parameters averaged, where the run kept averages."""
    arrays = read_arrays(store, commit, MODEL_NAME)
    weights = {name: array for name, array in arrays.items() if not name.startswith(AVERAGE)}
    if averaged:
        weights.update(
            {name.removeprefix(AVERAGE): array for name, array in arrays.items() if name.startswith(AVERAGE)}
        )
    return weights


def read_arrays(store: Store, commit: Commit, name: str) -> dict[str, np.ndarray]:
    """All arrays of one file of a commit. Raises CheckpointError where it is not whole."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = store.local_path(f"{commit.key}/{name}")
    try:
        arrays: dict[str, np.ndarray] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error
    return arrays


def publish_commit(
    store: Store,
    run_key: str,
    snapshot: Snapshot,
    *,
    attempt: int,
    world_size: int,
    name: str,
    recipe: str = "",
    inputs: tuple[Input, ...] = (),
    facts: Mapping[str, Any] | None = None,
) -> Commit:
    """Publish a snapshot: its files, then, unless a newer attempt has begun, COMMIT.json. Raises FencedError."""
    from safetensors.numpy import save_file

    folder = commit_folder(run_key, snapshot.step, attempt)
    files: list[Shard] = []
    check_fence(store, run_key, attempt)
    with store.staging() as staging:
        for file_name, arrays in ((MODEL_NAME, snapshot.model), (OPTIMIZER_NAME, snapshot.optimizer)):
            save_file(dict(arrays), staging / file_name)
            files.append(publish_file(store, f"{folder}/{file_name}", staging / file_name))
    manifest = Manifest(
        kind="commit",
        name=name,
        key=folder,
        files=tuple(files),
        inputs=inputs,
        recipe=recipe,
        facts={
            **(facts or {}),
            "step": snapshot.step,
            "epoch": snapshot.epoch,
            "step_in_epoch": snapshot.step_in_epoch,
            "attempt": attempt,
            "world_size": world_size,
            "order": {str(epoch): str(total) for epoch, total in sorted(snapshot.order.items())},
        },
    )
    check_fence(store, run_key, attempt)
    store.publish(f"{folder}/{COMMIT_NAME}", manifest.to_json())
    return _parse_commit(manifest, folder)


def remove_old_commits(store: Store, run_key: str, *, keep: int, attempt: int) -> list[str]:
    """Remove all but the newest `keep` commits that count, and what earlier attempts left unfinished; removed folders.

    COMMIT.json goes first: a commit that is half removed is none.
    """
    commits = list(list_commits(store, run_key))
    kept = {commit.key for commit in commits[:keep]}
    removed = []
    for name in store.children(f"runs/{run_key}/checkpoints"):
        folder, match = f"runs/{run_key}/checkpoints/{name}", COMMIT_FOLDER.fullmatch(name)
        # A folder of this attempt may be in the making; one of a newer attempt is not this one's to judge.
        finished = store.stat(f"{folder}/{COMMIT_NAME}") is not None
        if match and folder not in kept and (int(match[2]) < attempt or (finished and int(match[2]) == attempt)):
            store.remove(f"{folder}/{COMMIT_NAME}")
            for stat in list(store.list(folder)):
                store.remove(stat.key)
            removed.append(folder)
    return removed


def _parse_commit(manifest: Manifest, where: str) -> Commit:
    try:
        facts = manifest.facts
        return Commit(
            key=manifest.key,
            manifest=manifest,
            step=int(facts["step"]),
            epoch=int(facts["epoch"]),
            step_in_epoch=int(facts["step_in_epoch"]),
            attempt=int(facts["attempt"]),
            world_size=int(facts["world_size"]),
            order={int(epoch): int(total) for epoch, total in facts["order"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{where} is not the manifest of a commit: {error!r}") from error
