"""When commits are made: by steps, by rank 0's clock, at a stop; and what a step waited for them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.recipe import Training
from paddlewheel.training.checkpoint import list_commits
from paddlewheel.training.loop import Due

HERE = str(Path(__file__).parent)
RUN_KEY = "0123456789abcdef0123"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def test_a_commit_stays_due_until_it_is_begun_when_it_could_not_be_made() -> None:
    due = Due(Training(epochs=1, global_batch=1, checkpoint_every_steps=3))
    assert [due.after(step, asked=False) for step in (1, 2, 3, 4, 5)] == [False, False, True, True, True]
    due.done()
    assert [due.after(step, asked=step == 8) for step in (7, 8)] == [False, True]


def test_seconds_count_from_the_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    due = Due(Training(epochs=1, global_batch=1, checkpoint_every_steps=None, checkpoint_every_seconds=60))
    told = []
    for second in (130.0, 159.9, 160.0, 161.0):
        now[0] = second
        told.append(due.by_time())
    assert told == [False, False, True, True]
    due.done()
    now[0] = 220.9
    assert not due.by_time()
    now[0] = 221.0
    assert due.by_time()
    assert not Due(Training(epochs=1, global_batch=1)).by_time()


def commits(run: Any) -> list[int]:
    return sorted(commit.step for commit in list_commits(run.store, RUN_KEY))


@pytest.mark.slow
def test_all_ranks_commit_when_rank_0s_clock_says_so(new_run: Callable[..., Any]) -> None:
    settings = {
        "training.checkpoint_every_steps": None,
        "training.checkpoint_every_seconds": 1,
        "training.keep_checkpoints": 99,
        "training.handlers": ["pacing:pace"],  # 50 ms a step: a second is some 18 steps
    }
    run = new_run("run", rows=480, overrides=settings)
    assert run.train(1, world_size=2) == [0, 0], run.logs(1)
    made = commits(run)
    assert made[-1] == 60
    assert 2 <= len(made) - 1 <= 4
    assert all(10 <= later - earlier <= 25 for earlier, later in zip([0, *made[:-2]], made[:-1], strict=True))
    told = [one for one in run.events() if one["event"] == "EndStepEvent"]
    for rank in (0, 1):
        waited = sorted(one["step"] - 1 for one in told if one["rank"] == rank and one["parts"].get("checkpoint", 0))
        # A step after a commit waited for the host copy, and no part of its own seconds is that.
        assert set(made[:-1]) <= set(waited)
    first = next(one for one in told if one["step"] == made[0] + 1)
    own = sum(value for name, value in first["parts"].items() if name != "checkpoint")
    assert own == pytest.approx(first["seconds"], abs=1e-4)


@pytest.mark.slow
def test_a_stop_is_heeded_at_the_end_of_a_round_when_ranks_differ_before(new_run: Callable[..., Any]) -> None:
    settings = {
        "training.sync": "local_sgd",
        "training.exchange": {"steps": 4},
        "training.checkpoint_every_steps": 3,
        "training.handlers": ["observer:stop"],
    }
    whole, stopped = (new_run(name, rows=160, overrides=settings) for name in ("whole", "stopped"))
    assert whole.train(1, world_size=2) == [0, 0], whole.logs(1)
    assert stopped.train(1, world_size=2, STOP_AT="5", WORK=str(stopped.work(1))) == [14, 14], stopped.logs(1)
    assert stopped.commit().step == 8
    assert set(commits(stopped)) == {4, 8}  # due at 3 and 6, made where all ranks are equal
    assert stopped.train(2, world_size=2) == [0, 0], stopped.logs(2)
    digests = [[shard.digest for shard in run.commit().manifest.files] for run in (whole, stopped)]
    assert digests[0] == digests[1]
    resumed = [one for one in stopped.events() if one["event"] == "ResumeEvent"]
    assert [(one["rank"], one["step"]) for one in resumed] == [(0, 8), (1, 8)]
    assert json.loads((stopped.work(2) / "heartbeat-1.json").read_text())["phase"] == "done"
