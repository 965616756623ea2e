"""How one rank's training ends when something is wrong: exit code, what it leaves, and what counts afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.training.checkpoint import list_commits

HERE = str(Path(__file__).parent)
RUN_KEY = "0123456789abcdef0123"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def error_of(run: Any, attempt: int = 1) -> dict[str, str]:
    error: dict[str, str] = json.loads((run.work(attempt) / "error-0.json").read_text())
    return error


def test_user_fault_is_told_with_its_trace_when_a_handler_raises(new_run: Callable[..., Any]) -> None:
    run = new_run("run", rows=40, overrides={"training.handlers": ["observer:fail"]})
    assert run.train(1, FAIL_AT="2") == [10], run.logs(1)
    error = error_of(run)
    assert (error["kind"], error["type"], error["message"]) == ("user", "ZeroDivisionError", "a user's handler failed")
    assert "observer.py" in error["trace"]
    beat = json.loads((run.work(1) / "heartbeat-0.json").read_text())
    assert (beat["rank"], beat["phase"], beat["epoch"], beat["epochs"], beat["total_steps"]) == (0, "train", 1, 2, 6)


def test_data_fault_is_told_when_the_model_does_not_take_a_parameter(new_run: Callable[..., Any]) -> None:
    run = new_run("run", rows=40, overrides={"model.params": {"hiden": [8]}})
    assert run.train(1) == [11], run.logs(1)
    assert "did you mean 'hidden'?" in error_of(run)["message"]


def test_storage_fault_is_told_when_packed_rows_are_damaged(new_run: Callable[..., Any]) -> None:
    run = new_run("run", rows=40)
    path = run.folder / "root/datasets/small.packed/b/rows.parquet"
    path.write_bytes(path.read_bytes()[:-3])
    assert run.train(1) == [18], run.logs(1)
    assert "b/rows.parquet" in error_of(run)["message"]


def test_divergence_is_told_when_the_loss_is_no_number(new_run: Callable[..., Any]) -> None:
    optimizer = {"name": "sgd", "learning_rate": 1e30}
    run = new_run("run", rows=40, overrides={"training.optimizer": optimizer})
    assert run.train(1) == [10], run.logs(1)
    assert "lower training.optimizer.learning_rate" in error_of(run)["message"]


def test_fenced_rank_leaves_and_its_commits_do_not_count_when_a_newer_attempt_began(
    new_run: Callable[..., Any],
) -> None:
    run = new_run("run", rows=65, overrides={"training.handlers": ["observer:overtake"]})
    attempts = run.folder / f"root/runs/{RUN_KEY}/attempts"
    assert run.train(1, OVERTAKE_AT="6", ATTEMPTS=str(attempts)) == [17], run.logs(1)
    assert error_of(run)["kind"] == "fenced"
    assert [commit.step for commit in list_commits(run.store, RUN_KEY)] == [4]


def test_attempt_goes_on_from_the_commit_before_when_the_newest_is_damaged(new_run: Callable[..., Any]) -> None:
    run = new_run("run", rows=65, overrides={"training.handlers": ["observer:fail"]})
    assert run.train(1, FAIL_AT="9") == [10], run.logs(1)
    path = run.folder / f"root/runs/{RUN_KEY}/checkpoints/step-8-attempt-1/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run.train(2) == [0], run.logs(2)
    resumed = [event for event in run.events() if event["event"] == "ResumeEvent"]
    assert [(one["attempt"], one["step"]) for one in resumed] == [(2, 4)]
    assert run.commit().step == 10


def test_nothing_is_trained_again_when_the_last_commit_is_there(new_run: Callable[..., Any]) -> None:
    run = new_run("run", rows=40)
    assert run.train(1) == [0], run.logs(1)
    assert run.train(2) == [0], run.logs(2)
    assert [event["event"] for event in run.events() if event["attempt"] == 2] == ["ResumeEvent"]
    assert (run.commit().attempt, run.commit().step) == (1, 6)
