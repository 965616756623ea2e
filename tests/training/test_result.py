"""A result is published once, and only with the proof that each sample was trained on once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.errors import CheckpointError, StorageError
from paddlewheel.manifest import Manifest, publish_manifest, read_manifest, verify
from paddlewheel.recipe import Training
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.attempts import list_attempts, open_attempt
from paddlewheel.training.commit_writer import Snapshot, publish_commit
from paddlewheel.training.events import EndStepEvent, to_line
from paddlewheel.training.result import publish_result

KEY = "0123456789abcdef0123"
EXPECTED = 2**63 + 11
TRAINING = Training(epochs=2, global_batch=20)
FACTS = {"partition": "2013-11-01", "total_steps": 6, "epochs": 2, "order_expected": str(EXPECTED)}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


@pytest.fixture
def run(store: LocalStore) -> Manifest:
    """An open run of six steps."""
    manifest = Manifest(kind="run", name="small", key=f"runs/{KEY}", facts=FACTS)
    publish_manifest(store, manifest)
    return manifest


def train(store: LocalStore, *, step: int = 6, order: dict[int, int] | None = None, losses: int = 6) -> int:
    """What an attempt leaves: a commit at `step` with these sums by epoch, and events of the first `losses` steps."""
    attempt = open_attempt(store, KEY, world_size=2)
    snapshot = Snapshot(
        step=step,
        epoch=2,
        step_in_epoch=step - 3,
        order=order or {1: EXPECTED, 2: EXPECTED},
        model={"w": np.ones(3, np.float32)},
        optimizer={"w.m": np.zeros(3, np.float32)},
    )
    publish_commit(store, KEY, snapshot, attempt=attempt.number, world_size=2, name="small")
    lines = [
        to_line(
            EndStepEvent(
                attempt=attempt.number,
                rank=0,
                epoch=1 + at // 4,
                step=at,
                loss=1 / at,
                learning_rate=0.5,
                rows=20,
                seconds=0.25,
                parts={},
                rss_bytes=1,
            )
        )
        for at in range(1, losses + 1)
    ]
    store.publish(f"runs/{KEY}/events/attempt-{attempt.number}/rank-0/step-{losses}.jsonl", b"".join(lines))
    return attempt.number


def facts_of(store: LocalStore) -> dict[str, Any]:
    return dict(read_manifest(store, f"runs/{KEY}/result.json").facts)


def test_result_has_the_final_commits_files_and_the_proof(store: LocalStore, run: Manifest) -> None:
    train(store)
    uri = publish_result(store, run, list_attempts(store, KEY), TRAINING)
    assert uri == f"{store.root}/runs/{KEY}/result.json"
    result = read_manifest(store, uri)
    verify(store, result)
    folder = f"runs/{KEY}/checkpoints/step-6-attempt-1"
    assert [shard.key for shard in result.files] == [f"{folder}/model.safetensors", f"{folder}/optimizer.safetensors"]
    assert [entry.key for entry in result.inputs] == [f"runs/{KEY}/manifest.json"]
    facts = dict(result.facts)
    proof = {"expected": "9223372036854775819", "seen": "9223372036854775819", "ok": True}
    assert facts.pop("order") == {"1": proof, "2": proof}
    assert facts.pop("attempts")[0]["last_step"] == 6
    goodput = facts.pop("goodput")  # the attempt ends with its last event, since no agent gave a verdict
    assert (goodput["steps"], goodput["parts"], facts.pop("diagnosis")) == (1.5, {}, [])
    assert facts == {
        "partition": "2013-11-01",
        "steps": 6,
        "epochs": 2,
        "order_ok": True,
        "resumes": 0,
        "final_loss": 1 / 6,
        "rows_per_second": 80.0,
        "seconds": 1.5,
        "commit": f"{folder}/COMMIT.json",
    }


def test_there_is_no_result_when_a_sample_was_missed_or_trained_on_twice(store: LocalStore, run: Manifest) -> None:
    train(store, order={1: EXPECTED, 2: EXPECTED + 1})
    with pytest.raises(CheckpointError, match="did not train on each sample once: epoch 2"):
        publish_result(store, run, list_attempts(store, KEY), TRAINING)
    assert store.stat(f"runs/{KEY}/result.json") is None


@pytest.mark.parametrize(("step", "found"), [(5, r"\(step 5\)"), (None, r"\(none\)")])
def test_there_is_no_result_when_the_last_step_was_not_committed(
    store: LocalStore, run: Manifest, step: int | None, found: str
) -> None:
    if step is not None:
        train(store, step=step)
    with pytest.raises(CheckpointError, match=f"without a commit at step 6 {found}"):
        publish_result(store, run, list_attempts(store, KEY), TRAINING)


def test_a_commit_of_an_overtaken_attempt_gives_no_result(store: LocalStore, run: Manifest) -> None:
    open_attempt(store, KEY, world_size=1)
    record = {"attempt": 2, "resumed_from_step": 3}
    store.publish(f"runs/{KEY}/attempts/2.json", json.dumps(record).encode())
    snapshot = Snapshot(step=6, epoch=2, step_in_epoch=3, order={1: EXPECTED, 2: EXPECTED}, model={}, optimizer={})
    with pytest.raises(CheckpointError, match="attempt 2 of run"):
        publish_commit(store, KEY, snapshot, attempt=1, world_size=1, name="small")
    with pytest.raises(CheckpointError, match="without a commit at step 6"):
        publish_result(store, run, [], TRAINING)


def test_the_first_result_stands_when_a_second_agent_ends_too(store: LocalStore, run: Manifest) -> None:
    train(store)
    uri = publish_result(store, run, list_attempts(store, KEY), TRAINING)
    before = store.read(f"runs/{KEY}/result.json")
    open_attempt(store, KEY, world_size=1)  # its result would name two attempts
    assert publish_result(store, run, list_attempts(store, KEY), TRAINING) == uri
    assert store.read(f"runs/{KEY}/result.json") == before


def test_a_damaged_result_is_an_error_and_not_taken(store: LocalStore, run: Manifest) -> None:
    train(store)
    uri = publish_result(store, run, list_attempts(store, KEY), TRAINING)
    path = store.local_path(read_manifest(store, uri).files[0].key)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StorageError, match="has the digest"):
        publish_result(store, run, list_attempts(store, KEY), TRAINING)


def test_final_loss_is_unknown_when_the_last_steps_events_are_lost(store: LocalStore, run: Manifest) -> None:
    train(store, losses=5)
    publish_result(store, run, list_attempts(store, KEY), TRAINING)
    assert facts_of(store)["final_loss"] is None


def test_resumes_count_the_attempts_that_went_on_from_a_commit(store: LocalStore, run: Manifest) -> None:
    open_attempt(store, KEY, world_size=2)  # died before its first commit
    train(store, step=4)
    train(store)
    publish_result(store, run, list_attempts(store, KEY), TRAINING)
    facts = facts_of(store)
    assert (facts["resumes"], [one["resumed_from_step"] for one in facts["attempts"]]) == (1, [0, 0, 4])
