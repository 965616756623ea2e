"""Commits of a run: published whole or not at all, found again by the fencing rule, loaded without running any code.

`runs/KEY/checkpoints/step-S-attempt-N/`: model.safetensors (parameters and buffers by their names in the model, and
`average.` entries), optimizer.safetensors (`parameter.accumulator`), own.safetensors (what a rank alone holds), those
of other ranks than 0 with their number (model-1.safetensors), COMMIT.json last; it tells of each file which tensors
are pieces (`pieces.Piece`). Written by `commit_writer`. Nothing here imports Paddle: agents and readers look for
commits too. Rejected: `paddle.save`, which is a pickle that executes what a file says, and
`paddle.distributed.save_state_dict`, which writes its metadata first and loads a flipped bit without a word.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from paddlewheel.errors import CheckpointError, StorageError
from paddlewheel.manifest import Manifest, verify
from paddlewheel.storage import ObjectDamaged, Store
from paddlewheel.training.pieces import Arrays, Piece

COMMIT_NAME = "COMMIT.json"
Part = Literal["model", "optimizer", "own"]
AVERAGE = "average."
COMMIT_FOLDER = re.compile(r"step-(\d+)-attempt-(\d+)")
DAMAGED_FILE = re.compile(r"step-(\d+)-attempt-(\d+)(-removed-\d+)?\.json")
ATTEMPT_FILE = re.compile(r"(\d+)\.json")
# What proves that a commit is not whole; another StorageError says that the store could not be read.
DAMAGE = (ObjectDamaged, CheckpointError)
FEWEST_KEPT = 2  # a successor may have chosen the one before the newest, and not yet said so
log = logging.getLogger(__name__)


class FencedError(CheckpointError):
    """A newer attempt has taken the run over; this one must not write any more."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A published state of a run after `step` global steps. `order`: sums of sample hashes so far, by epoch.

    progress: what the loop goes on from besides tensors, plain JSON (the guard's norms, the scale of a loss, …).
    """

    key: str
    manifest: Manifest
    step: int
    epoch: int
    step_in_epoch: int
    attempt: int
    world_size: int
    order: Mapping[int, int]
    progress: Mapping[str, Any] = field(default_factory=dict)


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

    A commit of attempt a at step s counts only if s <= the resumed_from_step of every later attempt, and if it was not
    set aside as damaged. With `before_attempt`, that attempt and the later ones are looked away from. One whose
    COMMIT.json is damaged is left out, with a warning. Raises StorageError where the store cannot be read.
    """
    for step, attempt in candidates(store, run_key, before_attempt=before_attempt):
        try:
            yield read_commit(store, run_key, step, attempt)
        except DAMAGE as error:
            log.warning("commit left out: %s", error)


def candidates(store: Store, run_key: str, *, before_attempt: int | None = None) -> Iterator[tuple[int, int]]:
    """Steps and attempts of the commits that count, as `list_commits`, newest first, without a look into them."""
    aside = set_aside_commits(store, run_key)
    fences = read_fences(store, run_key)
    if before_attempt is not None:
        fences = {attempt: step for attempt, step in fences.items() if attempt < before_attempt}
    found = []
    for name in store.children(f"runs/{run_key}/checkpoints"):
        match = COMMIT_FOLDER.fullmatch(name)
        if match:
            step, attempt = int(match[1]), int(match[2])
            newer = [fence for other, fence in fences.items() if other > attempt]
            fenced = step > min(newer, default=step) or (before_attempt is not None and attempt >= before_attempt)
            if not fenced and (step, attempt) not in aside:
                found.append((step, attempt))
    for step, attempt in sorted(found, reverse=True):
        if store.stat(f"{commit_folder(run_key, step, attempt)}/{COMMIT_NAME}") is not None:
            yield step, attempt


def read_commit(store: Store, run_key: str, step: int, attempt: int) -> Commit:
    """One commit as its COMMIT.json tells it, its files not verified. Raises StorageError."""
    key = f"{commit_folder(run_key, step, attempt)}/{COMMIT_NAME}"
    commit = parse_commit(Manifest.from_json(store.read(key), store.uri(key)), store.uri(key))
    if commit.key != commit_folder(run_key, step, attempt):
        raise CheckpointError(f"{store.uri(key)} is the commit {commit.key}, in the wrong place")
    return commit


def set_aside_commits(store: Store, run_key: str) -> set[tuple[int, int]]:
    """Steps and attempts of the commits that `damaged` has set aside."""
    names = (stat.key.rpartition("/")[2] for stat in store.list(f"runs/{run_key}/damaged"))
    matches = (DAMAGED_FILE.fullmatch(name) for name in names)
    return {(int(match[1]), int(match[2])) for match in matches if match and not match[3]}


def newest_commit(store: Store, run_key: str, *, before_attempt: int | None = None) -> Commit | None:
    """The newest commit that counts, its digests verified; None where there is none.

    A damaged one is named in a warning, and the one before it is taken. Raises StorageError where the store cannot be
    read: then nobody knows which commit is whole.
    """
    found, damaged = find_whole(store, run_key, before_attempt=before_attempt)
    for step, _, reason in damaged:
        log.warning("commit at step %d left out, the one before it is taken: %s", step, reason)
    return found


def find_whole(
    store: Store, run_key: str, *, before_attempt: int | None = None
) -> tuple[Commit | None, list[tuple[int, int, str]]]:
    """As `newest_commit`, and the step, attempt and damage of each newer one that is not whole."""
    damaged = []
    for step, attempt in candidates(store, run_key, before_attempt=before_attempt):
        try:
            commit = read_commit(store, run_key, step, attempt)
            verify(store, commit.manifest)
        except DAMAGE as error:
            damaged.append((step, attempt, str(error)))
            continue
        return commit, damaged
    return None, damaged


def load_weights(store: Store, commit: Commit, *, averaged: bool = True) -> dict[str, np.ndarray]:
    """Parameters and buffers by their names in the model; the parameters averaged, where the run kept averages."""
    arrays = open_arrays(store, commit, "model")
    weights = {name: arrays[name] for name in arrays if not name.startswith(AVERAGE)}
    if averaged:
        weights.update({name.removeprefix(AVERAGE): arrays[name] for name in arrays if name.startswith(AVERAGE)})
    return weights


def open_arrays(store: Store, commit: Commit, part: Literal["model", "optimizer"]) -> Arrays:
    """All tensors of one part of a commit, whole, however the ranks that saved them had split them.

    Raises CheckpointError where a file cannot be read or a tensor is not whole.
    """
    return Arrays(
        [
            (
                store.local_path(shard.key),
                {name: Piece.from_json(tree) for name, tree in shard.facts.get("pieces", {}).items()},
            )
            for shard in commit.manifest.files
            if shard.facts.get("part") == part
        ]
    )


def open_own(store: Store, commit: Commit) -> dict[int, Arrays]:
    """What each rank alone held, by its rank in the world that saved it."""
    return {
        int(shard.facts["rank"]): Arrays([(store.local_path(shard.key), {})])
        for shard in commit.manifest.files
        if shard.facts.get("part") == "own"
    }


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which commits stay: the newest `last`, but two at the least; the best one; of each `every_hours` the first."""

    last: int
    best: bool = False
    every_hours: float | None = None


def remove_old_commits(store: Store, run_key: str, *, retention: Retention, attempt: int) -> list[str]:
    """Remove the commits that need not stay, and what earlier attempts left unfinished or damaged; removed folders.

    Counted are those that count and were not found damaged. The best one is what the newest one tells.

    COMMIT.json goes first: a commit that is half removed is none. Raises FencedError where a newer attempt has begun,
    whose commits this one knows nothing of.
    """
    commits = list(list_commits(store, run_key))
    kept = {commit.key for commit in commits[: max(retention.last, FEWEST_KEPT)]}
    if retention.every_hours is not None:
        kept |= _spread(store, commits, retention.every_hours * 3600)
    if retention.best and commits:
        best_step = commits[0].progress.get("validation", {}).get("best_step")
        kept |= {commit.key for commit in commits if commit.step == best_step}
    removed = []
    for name in store.children(f"runs/{run_key}/checkpoints"):
        folder, match = f"runs/{run_key}/checkpoints/{name}", COMMIT_FOLDER.fullmatch(name)
        # A folder of this attempt may be in the making; one of a newer attempt is not this one's to judge.
        finished = store.stat(f"{folder}/{COMMIT_NAME}") is not None
        if match and folder not in kept and (int(match[2]) < attempt or (finished and int(match[2]) == attempt)):
            check_fence(store, run_key, attempt)
            store.remove(f"{folder}/{COMMIT_NAME}")
            for stat in list(store.list(folder)):
                store.remove(stat.key)
            removed.append(folder)
    return removed


def _spread(store: Store, commits: Sequence[Commit], seconds: float) -> set[str]:
    """Keys of the oldest commit and, from there, of each that was written at least so long after the last one kept."""
    kept, last = set(), -math.inf
    for commit in reversed(commits):
        stat = store.stat(f"{commit.key}/{COMMIT_NAME}")
        if stat is not None and stat.modified_seconds >= last + seconds:
            kept.add(commit.key)
            last = stat.modified_seconds
    return kept


def _check_place(manifest: Manifest) -> None:
    """Raises ValueError where a commit tells of another folder than its step's and attempt's, or of files elsewhere."""
    folder = f"step-{manifest.facts['step']}-attempt-{manifest.facts['attempt']}"
    if not COMMIT_FOLDER.fullmatch(folder) or manifest.key.rpartition("/")[2] != folder:
        raise ValueError(f"it tells of {folder} and lies in {manifest.key}")
    for shard in manifest.files:
        if not re.fullmatch(re.escape(manifest.key) + r"/[A-Za-z0-9-]+\.safetensors", shard.key):
            raise ValueError(f"its file {shard.key!r} is not one of {manifest.key}")


def parse_commit(manifest: Manifest, where: str) -> Commit:
    """A commit as its COMMIT.json tells it. Raises CheckpointError, with `where` it lies, if that is something else."""
    try:
        facts = manifest.facts
        _check_place(manifest)
        return Commit(
            key=manifest.key,
            manifest=manifest,
            step=int(facts["step"]),
            epoch=int(facts["epoch"]),
            step_in_epoch=int(facts["step_in_epoch"]),
            attempt=int(facts["attempt"]),
            world_size=int(facts["world_size"]),
            order={int(epoch): int(total) for epoch, total in facts["order"].items()},
            progress=facts.get("progress", {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{where} is not the manifest of a commit: {error!r}") from error
