"""The operator's process killed on its way to the deferral, at each point: the next try never starts a second job.

What is not real here: Airflow's task state store is a JSON file, since a process killed at a given line needs no
more of Airflow. Tests of a whole Airflow under SIGKILL are in test_airflow_deaths.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paddle_cluster.launchers import build_launcher

from .conftest import end_of, lines_of, wait_until

PLUGINS = str(Path(__file__).parents[2] / "plugins")
LATE = "the result comes after the first look"
TRY = """
import json, os, pathlib, signal, sys
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from paddle_cluster import job_operator
from paddle_cluster.job_operator import PaddleJobOperator
from paddle_cluster.launchers import local

LATE = "the result comes after the first look"
job, memory, point = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
ExecutorSafeguard.test_mode = True
die = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)

class Store:
    def get(self, key):
        return json.loads(memory.read_text()).get(key) if memory.exists() else None
    def set(self, key, value, retention):
        memory.write_text(json.dumps({key: value}))
    def delete(self, key):
        memory.unlink(missing_ok=True)

operator = PaddleJobOperator(task_id="train", job=job)
if point == "before the intent":
    Store.set = die
elif point == "after the intent":
    local.LocalLauncher.submit = die
elif point == "after the folder":
    local.LocalLauncher._start_once = die
elif point == "after the start":
    operator._await = die
elif point == LATE:
    looks, look = [], job_operator.read_result
    job_operator.read_result = lambda uri: look(uri) if looks else looks.append(uri)
try:
    done = operator.execute({"task_state_store": Store()})
    print("done", json.dumps(done))
except TaskDeferred as deferred:
    print("deferred", deferred.trigger.handle["name"], deferred.method_name)
except AirflowFailException as error:
    print("for good", error)
except AirflowException as error:
    print("retry", error)
"""


class Task:
    """A work whose task is tried in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = build_launcher("local", state_folder=folder / "jobs")

    def attempt(self, script: str, point: str = "", **more: Any) -> str:
        """One try of the task; what it ended with, or "" where it was killed."""
        job = {
            "name": "work",
            "command": ["sh", "-c", f"echo started >> {self.folder}/starts; {script}"],
            "launcher": "local",
            "result_uri": f"file://{self.folder}/result.json",
            "verdict_folder_uri": f"file://{self.folder}/absent",
            "state_folder": str(self.folder / "jobs"),
            **more,
        }
        done = subprocess.run(
            [sys.executable, "-c", TRY, json.dumps(job), str(self.folder / "memory.json"), point],
            env={**os.environ, "PYTHONPATH": PLUGINS, "AIRFLOW_HOME": str(self.folder / "airflow")},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        killed = point not in ("", LATE)
        assert done.returncode == (-signal.SIGKILL if killed else 0)
        return "" if killed else done.stdout.splitlines()[-1]

    @property
    def jobs(self) -> list[str]:
        """Names of all jobs there have been."""
        return sorted(path.name for path in (self.folder / "jobs").iterdir())

    @property
    def starts(self) -> int:
        """How often a command began."""
        return len(lines_of(self.folder / "starts"))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


@pytest.mark.parametrize("point", ["before the intent", "after the intent", "after the folder", "after the start"])
def test_one_job_runs_when_the_task_is_killed_and_tried_again(task: Task, point: str) -> None:
    assert task.attempt("sleep 300", point) == ""
    assert task.attempt("sleep 300") == "deferred work-1 execute_complete"
    wait_until(lambda: task.starts)
    assert task.jobs == ["work-1"]
    assert task.starts == 1
    handle = task.launcher.find("work-1")
    assert handle is not None
    task.launcher.cancel(handle)


def test_live_job_is_adopted_when_another_task_has_the_same_work(task: Task) -> None:
    task.attempt("sleep 300")
    (task.folder / "memory.json").unlink()
    assert task.attempt("sleep 300") == "deferred work-1 execute_complete"
    wait_until(lambda: task.starts)
    assert task.jobs == ["work-1"]
    handle = task.launcher.find("work-1")
    assert handle is not None
    task.launcher.cancel(handle)


def test_fault_of_user_code_is_told_once_when_nobody_had_judged_it(task: Task) -> None:
    task.attempt("exit 10")
    handle = task.launcher.find("work-1")
    assert handle is not None
    end_of(task.launcher, handle)
    assert task.attempt("exit 10").startswith("for good job work-1 failed with exit code 10, user code failed")
    assert task.jobs == ["work-1"]
    # The code was mended and the task cleared.
    assert task.attempt("exit 0") == "deferred work-2 execute_complete"


def test_next_job_is_started_when_an_unjudged_one_was_preempted(task: Task) -> None:
    task.attempt("exit 14")
    handle = task.launcher.find("work-1")
    assert handle is not None
    end_of(task.launcher, handle)
    assert task.attempt("exit 0") == "deferred work-2 execute_complete"
    assert task.jobs == ["work-1", "work-2"]


def test_no_second_job_is_started_when_the_first_ends_between_two_looks(task: Task) -> None:
    task.attempt("""echo '{"facts": {"steps": 5}}' > """ + f"{task.folder}/result.json")
    handle = task.launcher.find("work-1")
    assert handle is not None
    wait_until(lambda: task.launcher.poll(handle).state == "succeeded")
    said = task.attempt("true", LATE)
    assert '"name": "work-1"' in said
    assert task.jobs == ["work-1"]


def test_nothing_is_remembered_when_the_result_is_there(task: Task) -> None:
    task.attempt("sleep 0")
    (task.folder / "result.json").write_text('{"facts": {"steps": 5}}')
    assert task.attempt("sleep 0").startswith('done {"steps": 5, "digest": "sha256:')
    assert not (task.folder / "memory.json").exists()


def test_job_is_refused_with_what_it_lacks_when_it_is_incomplete(task: Task) -> None:
    assert task.attempt("true", command=[], result_uri="") == (
        "for good job lacks command, result_uri; it has command, launcher, name, result_uri, state_folder, "
        "verdict_folder_uri"
    )


def test_task_fails_for_good_when_the_launcher_cannot_run_such_a_job(task: Task) -> None:
    assert "resources.nodes is 2" in task.attempt("true", resources={"nodes": 2})
    assert "no launcher 'slarm'; this version has local" in task.attempt("true", launcher="slarm")
    assert not (task.folder / "jobs").exists()
