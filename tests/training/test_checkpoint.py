"""Which commits count, what of them is kept, and what happens to damaged ones: real files, no Paddle."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.errors import CheckpointError, StorageError
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.attempts import open_attempt
from paddlewheel.training.checkpoint import (
    FencedError,
    Retention,
    list_commits,
    load_weights,
    newest_commit,
    open_arrays,
    open_own,
    remove_old_commits,
)
from paddlewheel.training.commit_writer import Snapshot, publish_commit, publish_part
from paddlewheel.training.damaged import read_damaged
from paddlewheel.training.pieces import Piece

KEY = "feedbeef"


def begin(store: LocalStore, attempt: int, resumed_from_step: int) -> None:
    record = {"attempt": attempt, "resumed_from_step": resumed_from_step, "world_size": 1, "host": "h", "pid": 7}
    record["started"] = "2013-11-02T03:00:00+00:00"
    store.publish(f"runs/{KEY}/attempts/{attempt}.json", json.dumps(record).encode())


def commit(store: LocalStore, step: int, attempt: int, progress: dict[str, Any] | None = None) -> None:
    snapshot = Snapshot(
        progress=progress or {},
        step=step,
        epoch=1,
        step_in_epoch=step,
        order={1: 2**64 - step},
        model={
            "weight": np.full((2, 3), step, np.float32),
            "mean": np.zeros(3, np.float32),
            "average.weight": np.full((2, 3), step + 0.5, np.float32),
        },
        optimizer={"weight.moment1": np.ones((2, 3), np.float32)},
    )
    publish_commit(store, KEY, snapshot, attempt=attempt, world_size=2, name="x")


def counting(store: LocalStore, before_attempt: int | None = None) -> list[tuple[int, int]]:
    return [(one.step, one.attempt) for one in list_commits(store, KEY, before_attempt=before_attempt)]


def test_newest_commit_comes_back_with_its_facts_when_one_attempt_made_several(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert newest_commit(store, KEY) is None
    begin(store, 1, 0)
    for step in (9, 10, 100):
        commit(store, step, 1)
    found = newest_commit(store, KEY)
    assert found is not None
    assert (found.step, found.attempt, found.world_size, found.order) == (100, 1, 2, {1: 18446744073709551516})


def test_commit_of_a_stale_attempt_never_counts_when_it_comes_after_a_newer_attempt_began(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    commit(store, 10, 1)
    commit(store, 20, 1)
    begin(store, 2, 10)  # found only step 10, say since 20 was damaged or came a moment later
    assert counting(store) == [(10, 1)]
    with pytest.raises(FencedError, match="attempt 2 of run feedbeef has begun; attempt 1 stops"):
        commit(store, 30, 1)
    commit(store, 15, 2)
    assert counting(store) == [(15, 2), (10, 1)]
    assert counting(store, before_attempt=2) == [(20, 1), (10, 1)]
    begin(store, 3, 15)
    commit(store, 40, 3)
    assert counting(store) == [(40, 3), (15, 2), (10, 1)]
    assert counting(store, before_attempt=3) == [(15, 2), (10, 1)]


def test_files_without_commit_marker_do_not_count_when_a_writer_died(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    commit(store, 10, 1)
    commit(store, 20, 1)
    store.remove(f"runs/{KEY}/checkpoints/step-20-attempt-1/COMMIT.json")
    assert counting(store) == [(10, 1)]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "COMMIT.json"])
def test_commit_before_is_taken_and_the_damaged_file_named_when_a_byte_has_flipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    commit(store, 10, 1)
    commit(store, 20, 1)
    path = tmp_path / f"runs/{KEY}/checkpoints/step-20-attempt-1/{name}"
    raw = bytearray(path.read_bytes())
    raw[0 if name == "COMMIT.json" else len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with caplog.at_level(logging.WARNING):
        found = newest_commit(store, KEY)
    assert found is not None
    assert found.step == 10
    assert f"step-20-attempt-1/{name}" in caplog.text


def test_averages_are_the_weights_when_asked_and_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    commit(store, 10, 1)
    found = newest_commit(store, KEY)
    assert found is not None
    averaged, plain = load_weights(store, found), load_weights(store, found, averaged=False)
    assert sorted(averaged) == sorted(plain) == ["mean", "weight"]
    assert averaged["weight"].tolist() == [[10.5] * 3] * 2
    assert plain["weight"].tolist() == [[10.0] * 3] * 2


def test_old_commits_and_remains_of_dead_attempts_go_when_newer_ones_are_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    for step in (10, 20, 30):
        commit(store, step, 1)
    store.remove(f"runs/{KEY}/checkpoints/step-30-attempt-1/COMMIT.json")
    begin(store, 2, 20)
    commit(store, 30, 2)
    store.publish(f"runs/{KEY}/checkpoints/step-40-attempt-2/model.safetensors", b"in the making")
    store.publish(f"runs/{KEY}/checkpoints/step-50-attempt-3/model.safetensors", b"somebody else's")
    remove_old_commits(store, KEY, retention=Retention(last=2), attempt=2)
    assert store.children(f"runs/{KEY}/checkpoints") == [
        "step-20-attempt-1",
        "step-30-attempt-2",
        "step-40-attempt-2",
        "step-50-attempt-3",
    ]
    assert counting(store) == [(30, 2), (20, 1)]


def test_best_measured_commit_stays_when_it_is_older_than_those_that_are_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    for step in (10, 20, 30, 40):
        commit(store, step, 1, progress={"validation": {"best_step": min(step, 20), "best_value": 0.5}})
    remove_old_commits(store, KEY, retention=Retention(last=1, best=True), attempt=1)
    assert counting(store) == [(40, 1), (30, 1), (20, 1)]  # two at the least, and the best
    remove_old_commits(store, KEY, retention=Retention(last=1), attempt=1)
    assert counting(store) == [(40, 1), (30, 1)]


def test_a_commit_of_every_two_hours_stays_when_others_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    for step, hour in ((10, 0.0), (20, 1.0), (30, 1.9), (40, 2.0), (50, 3.5), (60, 7.0), (70, 7.5)):
        commit(store, step, 1)
        at = 1_386_000_000 + 3600 * hour
        os.utime(tmp_path / f"runs/{KEY}/checkpoints/step-{step}-attempt-1/COMMIT.json", (at, at))
    remove_old_commits(store, KEY, retention=Retention(last=1, every_hours=2), attempt=1)
    assert counting(store) == [(70, 1), (60, 1), (40, 1), (10, 1)]


def test_damaged_commits_are_set_aside_by_name_and_not_counted_when_an_attempt_begins(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    for step in (10, 20, 30, 40):
        commit(store, step, 1)
    flip(tmp_path / f"runs/{KEY}/checkpoints/step-40-attempt-1/model.safetensors")
    (tmp_path / f"runs/{KEY}/checkpoints/step-30-attempt-1/COMMIT.json").write_bytes(b'{"kind": "commit"')
    attempt = open_attempt(store, KEY, world_size=1)
    assert (attempt.number, attempt.resumed_from_step) == (2, 20)
    assert [(one.step, one.attempt, one.found_by, one.lost_steps) for one in read_damaged(store, KEY)] == [
        (40, 1, 2, 20),
        (30, 1, 2, 10),
    ]
    assert "step-40-attempt-1/model.safetensors" in read_damaged(store, KEY)[0].reason
    assert counting(store) == [(20, 1), (10, 1)]
    # Two are kept, the damaged ones not among them, and their files are gone.
    commit(store, 30, 2)
    remove_old_commits(store, KEY, retention=Retention(last=2), attempt=2)
    assert store.children(f"runs/{KEY}/checkpoints") == ["step-20-attempt-1", "step-30-attempt-2"]
    assert open_attempt(store, KEY, world_size=1).resumed_from_step == 30
    assert len(read_damaged(store, KEY)) == 2


def test_nothing_is_set_aside_and_no_attempt_begins_when_the_store_cannot_be_read_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    for step in (10, 20):
        commit(store, step, 1)
    with monkeypatch.context() as patch:

        def out_of_reach(key: str) -> str:
            raise StorageError(f"cannot read {key}: timed out")

        patch.setattr(store, "digest", out_of_reach)
        for ask in (lambda: newest_commit(store, KEY), lambda: open_attempt(store, KEY, world_size=1)):
            with pytest.raises(StorageError, match="timed out"):
                ask()
    assert read_damaged(store, KEY) == []
    assert open_attempt(store, KEY, world_size=1).resumed_from_step == 20


def test_an_attempt_takes_another_number_when_its_commit_is_removed_before_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    commit(store, 10, 1)
    publish = store.publish

    def commit_first(key: str, content: bytes | Path) -> Any:
        """The older attempt commits twice, and cleans up, just before the newer one tells of itself."""
        if key.endswith("attempts/2.json"):
            for step in (20, 30):
                commit(store, step, 1)
            remove_old_commits(store, KEY, retention=Retention(last=1), attempt=1)
        return publish(key, content)

    monkeypatch.setattr(store, "publish", commit_first)
    attempt = open_attempt(store, KEY, world_size=1)
    assert (attempt.number, attempt.resumed_from_step) == (3, 0)
    with pytest.raises(FencedError, match="attempt 3 of run feedbeef has begun"):
        commit(store, 40, 1)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_record_of_an_attempt_that_cannot_be_read_is_an_error_rather_than_no_fence(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.publish(f"runs/{KEY}/attempts/1.json", b'{"attempt": 1')
    with pytest.raises(StorageError, match=r"attempts/1\.json is not the record of an attempt"):
        newest_commit(store, KEY)


def test_fenced_is_a_checkpoint_error() -> None:
    assert issubclass(FencedError, CheckpointError)


def test_finding_a_commit_imports_no_paddle(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from paddlewheel.storage.local import LocalStore; "
        "from paddlewheel.training import checkpoint, committer, events, monitor; "
        f"print(checkpoint.newest_commit(LocalStore(Path({str(tmp_path)!r})), 'k'), 'paddle' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"files.0.key": "../../../etc/passwd"}, "its file '../../../etc/passwd' is not one of"),
        ({"files.0.key": "/etc/passwd"}, "its file '/etc/passwd' is not one of"),
        ({"files.0.key": f"runs/{KEY}/checkpoints/step-10-attempt-1/model.safetensors"}, "is not one of"),
        ({"files.0.key": "runs/deadbeef/checkpoints/step-20-attempt-1/model.safetensors"}, "is not one of"),
        ({"facts.step": 30}, "it tells of step-30-attempt-1 and lies in"),
        ({"key": f"runs/{KEY}/checkpoints/step-10-attempt-1"}, "it tells of step-20-attempt-1 and lies in"),
    ],
    ids=[
        "outside_of_the_root",
        "absolute",
        "another_commits_file",
        "another_runs_file",
        "another_step",
        "another_place",
    ],
)
def test_commit_before_is_taken_when_a_commit_tells_of_what_is_not_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], told: str
) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    commit(store, 10, 1)
    commit(store, 20, 1)
    path = tmp_path / f"runs/{KEY}/checkpoints/step-20-attempt-1/COMMIT.json"
    tree = json.loads(path.read_bytes())
    for place, value in change.items():
        *parents, last = place.split(".")
        node = tree
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        node[last] = value
    path.write_text(json.dumps(tree))
    with caplog.at_level(logging.WARNING):
        found = newest_commit(store, KEY)
    assert found is not None
    assert found.step == 10
    assert told in caplog.text


def test_commit_of_two_ranks_is_whole_when_both_have_written_their_pieces(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    whole = np.arange(8, dtype=np.float32).reshape(2, 4)
    for rank in (1, 0):
        piece = Piece(shape=(2, 4), start=(0, 2 * rank), size=(2, 2))
        snapshot = Snapshot(
            step=5,
            epoch=1,
            step_in_epoch=5,
            order={1: 7},
            model={"w": piece.cut(whole).copy()},
            optimizer={"w.moment1": piece.cut(whole).copy() + 1},
            own={"residual.w": np.full(2, rank, np.float32)},
            pieces={"model": {"w": piece}, "optimizer": {"w.moment1": piece}},
        )
        if rank:
            publish_part(store, KEY, snapshot, attempt=1, rank=rank)
        else:
            publish_commit(store, KEY, snapshot, attempt=1, world_size=2, name="x", writers=(0, 1))
    found = newest_commit(store, KEY)
    assert found is not None
    assert load_weights(store, found)["w"].tolist() == whole.tolist()
    assert open_arrays(store, found, "optimizer")["w.moment1"].tolist() == (whole + 1).tolist()
    assert [open_own(store, found)[rank]["residual.w"].tolist() for rank in (0, 1)] == [[0, 0], [1, 1]]
    store.remove(f"{found.key}/model-1.safetensors")
    assert newest_commit(store, KEY) is None


def test_nothing_is_published_when_the_ranks_pieces_are_not_whole(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, 1, 0)
    piece = Piece(shape=(2, 4), start=(0, 0), size=(2, 2))
    snapshot = Snapshot(
        step=5,
        epoch=1,
        step_in_epoch=5,
        order={},
        model={"w": np.zeros((2, 2), np.float32)},
        optimizer={},
        pieces={"model": {"w": piece}},
    )
    with pytest.raises(CheckpointError, match="w: 4 of its 8 elements are there"):
        publish_commit(store, KEY, snapshot, attempt=1, world_size=2, name="x")
    assert newest_commit(store, KEY) is None
