"""Damage of each kind of file of a commit, files that would run code, late writers, full disks: never a silent load."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.errors import CheckpointError, StorageError
from paddlewheel.storage import digest_file
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.attempts import open_attempt
from paddlewheel.training.checkpoint import list_commits, load_weights, newest_commit, open_arrays
from paddlewheel.training.commit_writer import Snapshot, publish_commit, publish_part
from paddlewheel.training.damaged import read_damaged
from paddlewheel.training.pieces import Piece

KEY = "feedbeef"
WHOLE = np.arange(8, dtype=np.float32).reshape(2, 4)


def commit(store: LocalStore, step: int, attempt: int = 1, *, weight: np.ndarray = WHOLE) -> None:
    """Of two ranks that hold half of each tensor, and something of their own."""
    half = weight.shape[1] // 2
    for rank in (1, 0):
        piece = Piece(shape=weight.shape, start=(0, half * rank), size=(weight.shape[0], half))
        snapshot = Snapshot(
            step=step,
            epoch=1,
            step_in_epoch=step,
            order={1: 7},
            model={"w": piece.cut(weight) + step},
            optimizer={"w.moment1": piece.cut(weight) + 1},
            own={"residual.w": np.full(2, rank, np.float32)},
            pieces={"model": {"w": piece}, "optimizer": {"w.moment1": piece}},
        )
        if rank:
            publish_part(store, KEY, snapshot, attempt=attempt, rank=rank)
        else:
            publish_commit(store, KEY, snapshot, attempt=attempt, world_size=2, name="x", writers=(0, 1))


def folder(root: Path, step: int, attempt: int = 1) -> Path:
    return root / f"runs/{KEY}/checkpoints/step-{step}-attempt-{attempt}"


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("spoil", [flip, halve, Path.unlink], ids=["one bit", "cut in half", "missing"])
@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "optimizer.safetensors", "own.safetensors", "COMMIT.json"),
        *("model-1.safetensors", "optimizer-1.safetensors", "own-1.safetensors"),
    ],
)
def test_commit_before_is_taken_when_any_file_of_the_newest_is_spoilt(
    tmp_path: Path, name: str, spoil: Callable[[Path], Any]
) -> None:
    store = LocalStore(tmp_path)
    open_attempt(store, KEY, world_size=2)
    commit(store, 10)
    commit(store, 20)
    spoil(folder(tmp_path, 20) / name)
    found = newest_commit(store, KEY)
    assert found is not None
    assert found.step == 10
    assert load_weights(store, found)["w"].tolist() == (WHOLE + 10).tolist()
    assert open_attempt(store, KEY, world_size=2).resumed_from_step == 10
    # Without COMMIT.json there is no commit; what is there and damaged is told.
    told = [] if (name, spoil) == ("COMMIT.json", Path.unlink) else [(20, 10)]
    assert [(one.step, one.lost_steps) for one in read_damaged(store, KEY)] == told


def test_commit_counts_when_a_stale_temporary_and_a_foreign_part_lie_beside_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    open_attempt(store, KEY, world_size=2)
    commit(store, 10)
    (folder(tmp_path, 10) / ".tmp-model.safetensors").write_bytes(b"half of")
    flip(folder(tmp_path, 10) / "part-1.json")  # whose content COMMIT.json has taken in
    found = newest_commit(store, KEY)
    assert found is not None
    assert load_weights(store, found)["w"].tolist() == (WHOLE + 10).tolist()


class Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("pickled_as", ["model.safetensors", "optimizer-1.safetensors"])
def test_nothing_runs_when_a_commit_holds_a_pickle_with_the_right_digest(tmp_path: Path, pickled_as: str) -> None:
    store = LocalStore(tmp_path)
    open_attempt(store, KEY, world_size=2)
    commit(store, 10)
    mark, path = tmp_path / "it-ran", folder(tmp_path, 10) / pickled_as
    path.write_bytes(pickle.dumps(Evil(mark)))
    (path.parent / "model.pdparams").write_bytes(pickle.dumps(Evil(mark)))
    tree = json.loads((path.parent / "COMMIT.json").read_bytes())
    for shard in tree["files"]:
        if shard["key"].endswith(f"/{pickled_as}"):
            shard["bytes"], shard["digest"] = path.stat().st_size, digest_file(path)
    (path.parent / "COMMIT.json").write_text(json.dumps(tree))
    found = newest_commit(store, KEY)
    assert found is not None  # by its digests
    with pytest.raises(CheckpointError, match=f"{pickled_as} is not a readable safetensors file"):
        open_arrays(store, found, "model" if pickled_as.startswith("model") else "optimizer")
    assert not mark.exists()
    assert pickle.loads(pickle.dumps(Evil(mark))) is None  # so it would have
    assert mark.exists()


LATE = """
import os, signal, sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
import numpy as np
from paddlewheel.storage.local import LocalStore
from paddlewheel.training import commit_writer
checks, check = [], commit_writer.check_fence
def check_and_stand(*given):
    check(*given)
    checks.append(1)
    if len(checks) == 2:  # the last look before COMMIT.json
        Path(sys.argv[2]).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
commit_writer.check_fence = check_and_stand
snapshot = commit_writer.Snapshot(
    step=20, epoch=1, step_in_epoch=20, order={1: 7}, model={"w": np.full((2, 4), 99, np.float32)}, optimizer={}
)
commit_writer.publish_commit(LocalStore(Path(sys.argv[1])), "feedbeef", snapshot, attempt=1, world_size=1, name="x")
"""


def test_commit_of_an_overtaken_attempt_counts_for_nobody_when_it_stood_still_before_its_last_word(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "root")
    open_attempt(store, KEY, world_size=2)
    commit(store, 10)
    stands = tmp_path / "stands"
    command = [sys.executable, "-c", LATE, str(tmp_path / "root"), str(stands), *sys.path]
    late = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while not stands.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert open_attempt(store, KEY, world_size=2).resumed_from_step == 10
    os.kill(late.pid, signal.SIGCONT)
    assert late.wait(timeout=60) == 0
    assert (folder(tmp_path / "root", 20) / "COMMIT.json").exists()
    assert [(one.step, one.attempt) for one in list_commits(store, KEY)] == [(10, 1)]
    commit(store, 20, attempt=2)
    assert [(one.step, one.attempt) for one in list_commits(store, KEY)] == [(20, 2), (10, 1)]
    found = newest_commit(store, KEY)
    assert found is not None
    assert load_weights(store, found)["w"].tolist() == (WHOLE + 20).tolist()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_commit_before_counts_when_the_disk_is_full_in_mid_save(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    open_attempt(store, KEY, world_size=2)
    commit(store, 10)
    with pytest.raises(StorageError, match="No space left on device"):
        commit(store, 20, weight=np.zeros((1024, 512), np.float32))  # 2 MiB
    found = newest_commit(store, KEY)
    assert found is not None
    assert found.step == 10
    # The failed one left nothing that fills the disk: a smaller one fits.
    commit(store, 30)
    assert [one.step for one in list_commits(store, KEY)] == [30, 10]
