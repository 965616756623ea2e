"""Trainings by real ranks joined by gloo: equal to one process, the same again, and the same after deaths."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.data.order import sample_hash
from paddlewheel.training.checkpoint import load_weights, open_arrays

HERE = str(Path(__file__).parent)
# Global batches of 16 over 65 rows: the fifth of an epoch has one row, so that rank 0 of 2 has none.
ROWS, STEPS = 65, 10
# What draws at random, and what a commit must carry.
LIVELY = {
    "model.params": {"embedding": 4, "hidden": [8], "dropout": 0.3, "embedding_dropout": 0.1},
    "training.average_decay": 0.9,
    "training.schedule": {"name": "cosine", "warmup_steps": 3},
    "training.handlers": ["observer:kill", "observer:stop"],
}


def observed(*names: str) -> dict[str, Any]:
    return {"training.handlers": [f"observer:{name}" for name in names]}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def digests(run: Any) -> tuple[int, list[str]]:
    commit = run.commit()
    return commit.step, [shard.digest for shard in commit.manifest.files]


def losses(run: Any, rank: int = 0) -> dict[int, float]:
    """By step; of the newest attempt where several took it."""
    told = [event for event in run.events() if event["event"] == "EndStepEvent" and event["rank"] == rank]
    told.sort(key=lambda event: event["attempt"])
    return dict(sorted({event["step"]: event["loss"] for event in told}.items()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "clip_norm": 0.5},
        {"name": "momentum", "learning_rate": 0.1},
    ],
    ids=["adamw", "momentum"],
)
def test_two_ranks_equal_one_when_last_batch_is_short_and_a_slice_empty(
    new_run: Callable[..., Any], optimizer: dict[str, Any]
) -> None:
    runs = [new_run(str(size), rows=ROWS, overrides={"training.optimizer": optimizer}) for size in (1, 2)]
    for size, run in enumerate(runs, 1):
        assert run.train(1, world_size=size) == [0] * size, run.logs(1)
    one, two = (run.commit() for run in runs)
    assert (one.step, two.step, two.world_size) == (STEPS, STEPS, 2)
    weights, others = load_weights(runs[0].store, one), load_weights(runs[1].store, two)
    assert weights.keys() == others.keys()
    assert max(np.abs(weights[name] - others[name]).max() for name in weights) <= 1e-6
    assert losses(runs[1], 0) == losses(runs[1], 1)
    assert list(losses(runs[1])) == list(range(1, STEPS + 1))
    np.testing.assert_allclose(list(losses(runs[0]).values()), list(losses(runs[1]).values()), rtol=1e-6)
    assert one.order == two.order == {1: sample_hash(runs[0].ids), 2: sample_hash(runs[0].ids)}


@pytest.mark.slow
def test_resumed_training_is_bit_identical_when_a_rank_was_killed_or_asked_to_stop(
    new_run: Callable[..., Any],
) -> None:
    whole, again, killed, stopped = (new_run(name, rows=ROWS, overrides=LIVELY) for name in "abcd")
    assert whole.train(1, world_size=2) == [0, 0], whole.logs(1)
    assert again.train(1, world_size=2) == [0, 0], again.logs(1)
    assert digests(again) == digests(whole)
    assert losses(again) == losses(whole)

    assert killed.train(1, world_size=2, KILL_AT="1:6") == [13, -9], killed.logs(1)
    error = json.loads((killed.work(1) / "error-0.json").read_text())
    assert (error["kind"], error["type"]) == ("node", "PeerError")
    assert killed.commit().step == 4
    assert killed.train(2, world_size=2) == [0, 0], killed.logs(2)
    assert digests(killed) == digests(whole)
    resumed = [event for event in killed.events() if event["event"] == "ResumeEvent"]
    assert [(one["rank"], one["step"], one["from_attempt"]) for one in resumed] == [(0, 4, 1), (1, 4, 1)]

    # Asked after step 5, which is no multiple of checkpoint_every_steps: committed at the end of step 6, on all ranks.
    assert stopped.train(1, world_size=2, STOP_AT="5", WORK=str(stopped.work(1))) == [14, 14], stopped.logs(1)
    assert stopped.commit().step == 6
    assert stopped.train(2, world_size=2) == [0, 0], stopped.logs(2)
    assert digests(stopped) == digests(whole)
    assert losses(stopped) == losses(whole)


@pytest.mark.slow
def test_each_sample_counts_once_when_two_ranks_were_killed_and_one_goes_on(new_run: Callable[..., Any]) -> None:
    run = new_run("run", rows=ROWS, overrides=observed("kill"))
    assert run.train(1, world_size=2, KILL_AT="0:7") == [-9, 13], run.logs(1)
    assert run.train(2, world_size=1) == [0], run.logs(2)
    commit = run.commit()
    assert (commit.step, commit.attempt, commit.world_size) == (STEPS, 2, 1)
    assert commit.order == {1: sample_hash(run.ids), 2: sample_hash(run.ids)}
    uninterrupted = new_run("whole", rows=ROWS, overrides=observed("kill"))
    assert uninterrupted.train(1) == [0]
    weights, others = (load_weights(one.store, one.commit()) for one in (run, uninterrupted))
    assert max(np.abs(weights[name] - others[name]).max() for name in weights) <= 1e-6
    moments, other_moments = (open_arrays(one.store, one.commit(), "optimizer") for one in (run, uninterrupted))
    assert "deep.layers.0.weight.moment1" in moments
    assert max(np.abs(moments[name] - other_moments[name]).max() for name in moments) <= 1e-6
