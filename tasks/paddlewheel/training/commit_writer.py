"""Writing a commit: each rank that holds something writes its files, rank 0 publishes COMMIT.json when all are there.

Rank 0 alone writes a state that all ranks hold alike. Where they hold pieces, the others leave part-R.json after their
files, with the digests: what rank 0 has not read there is not in the commit.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paddlewheel.errors import CheckpointError, StorageError
from paddlewheel.manifest import Input, Manifest, Shard, publish_file
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import COMMIT_NAME, Commit, Part, check_fence, commit_folder, parse_commit
from paddlewheel.training.pieces import Piece, missing_elements, whole_piece

POLL_SECONDS = 0.05
MOST_POLL_SECONDS = 1.0  # a store on S3 is asked three times and more at each look


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A host copy of all that one rank gives to a commit. `pieces`: of those tensors that are not whole here, by part
    and name. `ready`: returns when the copy is made."""

    step: int
    epoch: int
    step_in_epoch: int
    order: Mapping[int, int]
    model: Mapping[str, np.ndarray]
    optimizer: Mapping[str, np.ndarray]
    own: Mapping[str, np.ndarray] = field(default_factory=dict)
    pieces: Mapping[str, Mapping[str, Piece]] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    ready: Callable[[], None] = lambda: None


def publish_part(store: Store, run_key: str, snapshot: Snapshot, *, attempt: int, rank: int) -> None:
    """Publish the files of a rank other than 0, and part-R.json after them. Raises FencedError."""
    snapshot.ready()
    check_fence(store, run_key, attempt)
    folder = commit_folder(run_key, snapshot.step, attempt)
    files = _publish_files(store, folder, snapshot, rank)
    tree = {
        "files": [
            {"key": one.key, "bytes": one.bytes, "digest": one.digest, "facts": dict(one.facts)} for one in files
        ],
        "tensors": _told(snapshot),
    }
    store.publish(f"{folder}/{_part_name(rank)}", json.dumps(tree).encode())


def publish_commit(
    store: Store,
    run_key: str,
    snapshot: Snapshot,
    *,
    attempt: int,
    world_size: int,
    name: str,
    writers: Sequence[int] = (0,),
    recipe: str = "",
    inputs: tuple[Input, ...] = (),
    facts: Mapping[str, Any] | None = None,
) -> Commit:
    """Publish rank 0's files, wait for those of the other `writers`, then, unless a newer attempt has begun,
    COMMIT.json.

    Raises FencedError; CheckpointError where the ranks' pieces do not make up whole tensors.
    """
    folder = commit_folder(run_key, snapshot.step, attempt)
    snapshot.ready()
    check_fence(store, run_key, attempt)
    files = _publish_files(store, folder, snapshot, 0)
    told = [_told(snapshot)]
    for rank in writers:
        if rank != 0:
            tree = _wait_for_part(store, run_key, f"{folder}/{_part_name(rank)}", attempt)
            files += [Shard(**one) for one in tree["files"]]
            told.append(tree["tensors"])
    _check_whole(told, folder)
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
            "progress": dict(snapshot.progress),
        },
    )
    commit = parse_commit(manifest, folder)
    check_fence(store, run_key, attempt)
    store.publish(f"{folder}/{COMMIT_NAME}", manifest.to_json())
    return commit


def _publish_files(store: Store, folder: str, snapshot: Snapshot, rank: int) -> list[Shard]:
    from safetensors.numpy import save_file

    parts: dict[Part, Mapping[str, np.ndarray]] = {"model": snapshot.model, "optimizer": snapshot.optimizer}
    if snapshot.own:
        parts["own"] = snapshot.own
    files = []
    with store.staging() as staging:
        for part, arrays in parts.items():
            if not arrays and rank != 0:
                continue
            file_name = f"{part}.safetensors" if rank == 0 else f"{part}-{rank}.safetensors"
            save_file(dict(arrays), staging / file_name)
            shard = publish_file(store, f"{folder}/{file_name}", staging / file_name)
            facts: dict[str, Any] = {"part": part, "rank": rank}
            pieces = snapshot.pieces.get(part)
            if pieces:
                facts["pieces"] = {name: piece.to_json() for name, piece in sorted(pieces.items())}
            files.append(replace(shard, facts=facts))
    return files


def _told(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """Where the tensors lie in the whole, by part and name."""
    found: dict[str, dict[str, Any]] = {}
    for part, arrays in (("model", snapshot.model), ("optimizer", snapshot.optimizer)):
        pieces = snapshot.pieces.get(part, {})
        found[part] = {name: (pieces.get(name) or whole_piece(array.shape)).to_json() for name, array in arrays.items()}
    return found


def _check_whole(told: Sequence[Mapping[str, Mapping[str, Any]]], folder: str) -> None:
    faults = []
    for part in ("model", "optimizer"):
        pieces: dict[str, list[Piece]] = {}
        for one in told:
            for name, tree in one[part].items():
                pieces.setdefault(name, []).append(Piece.from_json(tree))
        found = {name: missing_elements(parts) for name, parts in sorted(pieces.items())}
        faults += [f"{name}: {fault}" for name, fault in found.items() if fault]
    if faults:
        raise CheckpointError(f"{folder} is not published, its tensors are not whole: {'; '.join(faults)}")


def _wait_for_part(store: Store, run_key: str, key: str, attempt: int) -> Any:
    """The record of another rank's part, once it is there. The agent's deadlines end a wait that is in vain."""
    pause = POLL_SECONDS
    while store.stat(key) is None:
        check_fence(store, run_key, attempt)
        if not threading.main_thread().is_alive():
            raise CheckpointError(f"{key} has not come, and this rank ends")
        time.sleep(pause)
        pause = min(2 * pause, MOST_POLL_SECONDS)
    try:
        return json.loads(store.read(key))
    except ValueError as error:
        raise StorageError(f"{store.uri(key)} is damaged: {error}") from error


def _part_name(rank: int) -> str:
    return f"part-{rank}.json"
