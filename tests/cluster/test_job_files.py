"""What a job leaves behind is found wherever the root lies, and an end is held against a task only once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from paddle_cluster.job_operator import PaddleJobOperator
from paddle_cluster.job_work import describe_failure, read_result
from paddle_cluster.jobs import JobHandle, JobSpec
from paddle_cluster.launchers.local import LocalLauncher
from paddle_cluster.verdict import newest_verdict
from paddlewheel.storage import path_to_uri


class Memory(dict[str, Any]):
    """Stands for Airflow's store of a task's state, which lives behind its API server."""

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose URI is percent-encoded, as `path_to_uri` writes it."""
    folder = tmp_path / "Meine Läufe 100%"
    folder.mkdir()
    return folder


def test_a_result_is_found_when_its_uri_is_percent_encoded(folder: Path) -> None:
    uri = path_to_uri(folder / "result.json")
    assert "%20" in uri
    assert read_result(uri) is None
    (folder / "result.json").write_text(json.dumps({"facts": {"steps": 7, "attempts": [1]}}))
    found = read_result(uri)
    assert found is not None
    assert found["steps"] == 7
    assert "attempts" not in found


def test_the_newest_verdict_is_by_number_when_its_folder_is_percent_encoded(folder: Path) -> None:
    for number in (2, 10):
        tree = {"attempt": number, "exit_code": 10, "message": f"of {number}", "trace": ""}
        (folder / f"{number}.verdict.json").write_text(json.dumps(tree))
    found = newest_verdict(path_to_uri(folder))
    assert found is not None
    assert (found.attempt, found.message) == (10, "of 10")


@pytest.mark.parametrize(
    ("told", "retry", "ends"),
    [
        ({}, True, "half the rows; a retry takes half the micro-batch and twice the accumulation; log: here"),
        ({"retry": True, "next_micro_batch": 4}, True, "half the micro-batch and twice the accumulation; log: here"),
        ({"retry": False}, False, "attempt 3 on rank 1: half the rows; log: here"),
    ],
)
def test_out_of_memory_is_retried_unless_the_agent_says_that_it_is_no_use(
    folder: Path, told: dict[str, Any], retry: bool, ends: str
) -> None:
    tree = {"attempt": 3, "exit_code": 12, "message": "half the rows", "trace": "", "rank": 1, **told}
    (folder / "3.verdict.json").write_text(json.dumps(tree))
    job = {"result_uri": path_to_uri(folder / "result.json"), "verdict_folder_uri": path_to_uri(folder)}
    handle = JobHandle(launcher="local", name="run-a-1", native_id="7", location="here")
    failure = describe_failure(job, handle, "failed", "", 12)
    assert failure.retry is retry
    assert "exit code 12, out of memory" in failure.message
    assert failure.message.endswith(ends)


def test_a_cleared_task_gets_a_new_job_when_the_fault_of_the_old_one_was_told(folder: Path) -> None:
    job = {
        "name": "run-a",
        "command": [sys.executable, "-c", "raise SystemExit(10)"],
        "launcher": "local",
        "state_folder": str(folder / "jobs"),
        "result_uri": path_to_uri(folder / "result.json"),
    }
    launcher = LocalLauncher(state_folder=folder / "jobs")
    handle = launcher.submit(JobSpec(name="run-a-1", command=tuple(job["command"])))
    until = time.monotonic() + 10
    while not launcher.poll(handle).state.final and time.monotonic() < until:
        time.sleep(0.05)
    # The worker died after the submit: nobody has judged the job's end.
    memory = Memory(paddle_job={"work": "run-a", "number": 1, "judged": False, "deadline_at": None})
    operator = PaddleJobOperator(task_id="train", job=job)
    with pytest.raises(AirflowFailException, match="exit code 10, user code failed"):
        operator.execute({"task_state_store": memory})
    assert launcher.find("run-a-2") is None
    with pytest.raises(TaskDeferred):
        operator.execute({"task_state_store": memory})
    assert launcher.find("run-a-2") is not None
    assert launcher.find("run-a-3") is None
