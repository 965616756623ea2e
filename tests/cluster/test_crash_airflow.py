"""A task of a running Airflow killed around its submit, marked or cleared while deferred: one job at a time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
import pytest

from paddle_cluster.jobs import JobState
from paddle_cluster.launchers import Launcher, build_launcher

from .airflow_home import AirflowHome, build_home
from .conftest import end_of, lines_of, process_lives, wait_until
from .test_airflow_deaths import Services, answers, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
RUNS = "/api/v2/dags/held_job/dagRuns"


class Site:
    """A running Airflow with the DAG held_job, over its REST API."""

    def __init__(self, home: AirflowHome, url: str) -> None:
        self.home, self.url, self.token = home, url, ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call; its JSON answer."""
        request = Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def trigger(self, name: str, hold: str = "") -> str:
        """Start a run whose job has this name; the run's id."""
        body = {"logical_date": None, "conf": {"name": name, "hold": hold}}
        run: str = self.call("POST", RUNS, body)["dag_run_id"]
        return run

    def task(self, run: str) -> dict[str, Any]:
        """The run's one task as Airflow sees it."""
        found: dict[str, Any] = self.call("GET", f"{RUNS}/{run}/taskInstances/train")
        return found

    def wait_for(self, run: str, *states: str, seconds: float = 90) -> dict[str, Any]:
        """The task once it is in one of the states. Fails the test when it is not in time."""
        wait_until(lambda: self.task(run)["state"] in states, seconds)
        return self.task(run)

    @property
    def launcher(self) -> Launcher:
        """The launcher of the jobs."""
        return build_launcher("local", state_folder=self.home.works / "jobs")

    def state_of(self, job: str) -> JobState:
        """How a job stands."""
        handle = self.launcher.find(job)
        assert handle is not None, job
        return self.launcher.poll(handle).state

    def jobs(self, name: str) -> list[str]:
        """Names of the jobs of one work."""
        return sorted(path.name for path in (self.home.works / "jobs").glob(f"{name}-*"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    home = build_home(
        tmp_path_factory.mktemp("crash") / "airflow",
        Path(__file__).with_name("held_job_dag.py"),
        AIRFLOW__API__HOST="127.0.0.1",
        AIRFLOW__API__PORT=str(port),
        AIRFLOW__API__WORKERS="1",
        AIRFLOW__API__BASE_URL=url,
        AIRFLOW__CORE__EXECUTION_API_SERVER_URL=f"{url}/execution/",
        AIRFLOW__CORE__EXECUTOR="LocalExecutor",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="True",
        AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
        AIRFLOW__API__SECRET_KEY="a key of the tests",
        AIRFLOW__API_AUTH__JWT_SECRET="a secret of the tests, long enough to sign tokens with it: 0123456789abcdef",
        AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT=str(free_port()),
        AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT=str(free_port()),
        AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT="8",
        AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL="2",
        AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL="1",
    )
    home.works.mkdir()
    services, site = Services(home), Site(home, url)
    for name in ("api-server", "dag-processor", "scheduler", "triggerer"):
        services.start(name)
    try:
        wait_until(lambda: answers(f"{url}/api/v2/version"), seconds=120)
        site.token = site.call("GET", "/auth/token")["access_token"]
        wait_until(lambda: site.call("GET", "/api/v2/dags")["total_entries"] == 1, seconds=90)
        yield site
    finally:
        for name in list(services.running):
            services.kill(name)
        for folder in (home.works / "jobs").glob("*"):
            if (handle := site.launcher.find(folder.name)) is not None:
                site.launcher.cancel(handle)


@pytest.mark.parametrize(("point", "victim"), [("before", "task"), ("after", "task"), ("after", "worker")])
def test_one_job_runs_when_the_task_is_killed_around_its_submit(site: Site, point: str, victim: str) -> None:
    name, works = f"{point}-{victim}", site.home.works
    run = site.trigger(name, point)
    wait_until(lambda: lines_of(works / f"{name}.held"), seconds=60)
    task = psutil.Process(int((works / f"{name}.held").read_text()))
    doomed = [task] if victim == "task" else [task.parent(), task]  # the executor's worker watches over the task
    assert site.jobs(name) == ([] if point == "before" else [f"{name}-1"])
    for process in doomed:
        os.kill(process.pid, signal.SIGKILL)

    site.wait_for(run, "deferred")
    assert site.task(run)["try_number"] == 2
    assert site.jobs(name) == [f"{name}-1"]
    (works / f"{name}.finish").touch()
    site.wait_for(run, "success", "failed")
    assert site.task(run)["state"] == "success"
    assert site.jobs(name) == [f"{name}-1"]
    assert len(lines_of(works / f"{name}.starts")) == 1


def test_the_job_is_cancelled_when_its_task_is_marked_failed(site: Site) -> None:
    run = site.trigger("marked")
    site.wait_for(run, "deferred")
    (pid,) = wait_until(lambda: lines_of(site.home.works / "marked.starts"))
    time.sleep(6)  # the triggerer has it
    site.call("PATCH", f"{RUNS}/{run}/taskInstances/train", {"new_state": "failed"})
    handle = site.launcher.find("marked-1")
    assert handle is not None
    assert end_of(site.launcher, handle, seconds=60).state is JobState.CANCELLED
    assert not process_lives(int(pid))
    assert site.task(run)["state"] == "failed"


def test_a_cleared_task_ends_well_with_one_job_at_a_time(site: Site) -> None:
    works = site.home.works
    run = site.trigger("cleared")
    site.wait_for(run, "deferred")
    (first,) = wait_until(lambda: lines_of(works / "cleared.starts"))
    time.sleep(6)
    cleared = {"dry_run": False, "dag_run_id": run, "task_ids": ["train"], "only_failed": False, "only_running": False}
    site.call("POST", "/api/v2/dags/held_job/clearTaskInstances", cleared)
    # Airflow ends the old trigger, which cancels the job, while the new try may find it alive still.
    wait_until(lambda: not process_lives(int(first)), seconds=60)
    second = wait_until(lambda: lines_of(works / "cleared.starts")[1:], seconds=90)
    assert [process_lives(int(pid)) for pid in (first, *second)] == [False, True]
    assert site.state_of("cleared-1") is JobState.CANCELLED
    (works / "cleared.finish").touch()
    site.wait_for(run, "success", "failed")
    assert site.task(run)["state"] == "success"
    assert site.jobs("cleared") == ["cleared-1", "cleared-2"]
