"""A whole Airflow (API server, DAG processor, scheduler with LocalExecutor, triggerer) under SIGKILL."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from paddle_cluster.launchers import build_launcher

from .airflow_home import AirflowHome, build_home
from .conftest import lines_of, process_lives, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
DAG = Path(__file__).with_name("slow_job_dag.py")


class Services:
    """Airflow's processes, each with what it started in a session of its own."""

    def __init__(self, home: AirflowHome) -> None:
        self.home = home
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start `airflow NAME`; its output goes to NAME.log in the home."""
        with open(self.home.folder / f"{name}.log", "ab") as output:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "airflow", name],
                env=self.home.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self, name: str) -> list[int]:
        """SIGKILL a service and all that it started, at once; the pids that were killed."""
        process = self.running.pop(name)
        killed = set()
        while alive := [pid for pid in members_of_session(process.pid) if process_lives(pid)]:
            killed.update(alive)
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()
        return sorted(killed)

    def states(self) -> dict[str, str]:
        """States of the tasks."""
        return {task: state for task, (state, _) in self.home.tasks().items()}


def members_of_session(session: int) -> list[int]:
    """Pids of all processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(folder.name))
    return found


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(address: str) -> bool:
    """Whether an HTTP GET is answered with 200."""
    try:
        with urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    port = free_port()
    home = build_home(
        tmp_path / "airflow",
        DAG,
        AIRFLOW__API__HOST="127.0.0.1",
        AIRFLOW__API__PORT=str(port),
        AIRFLOW__API__WORKERS="1",
        AIRFLOW__API__BASE_URL=f"http://127.0.0.1:{port}",
        AIRFLOW__CORE__EXECUTION_API_SERVER_URL=f"http://127.0.0.1:{port}/execution/",
        AIRFLOW__CORE__EXECUTOR="LocalExecutor",
        AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
        AIRFLOW__API__SECRET_KEY="a key of the tests",
        AIRFLOW__API_AUTH__JWT_SECRET="a secret of the tests, long enough to sign tokens with it: 0123456789abcdef",
        AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT=str(free_port()),
        AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT=str(free_port()),
        AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT="15",
        AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL="3",
        AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL="10",
        AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC="2",
    )
    for work in ("deferred", "attended"):
        (home.works / work).mkdir(parents=True)
    running = Services(home)
    for name in ("api-server", "dag-processor", "scheduler", "triggerer"):
        running.start(name)
    yield running
    for name in list(running.running):
        running.kill(name)
    launcher = build_launcher("local", state_folder=home.works / "jobs", grace_seconds=1.0)
    for folder in (home.works / "jobs").glob("*"):
        if (handle := launcher.find(folder.name)) is not None:
            launcher.cancel(handle)
    wait_until(lambda: answers(f"http://127.0.0.1:{port}/api/v2/version") is False)


def test_each_work_has_one_job_when_workers_and_triggerer_are_killed_meanwhile(services: Services) -> None:
    home = services.home
    wait_until(lambda: answers(f"{home.environment['AIRFLOW__API__BASE_URL']}/api/v2/version"), seconds=120)
    wait_until(lambda: home.run("dags", "trigger", "slow_jobs").returncode == 0, seconds=90)
    wait_until(lambda: services.states() == {"deferred": "deferred", "attended": "running"}, seconds=90)
    wait_until(lambda: all(lines_of(home.works / work / "starts") for work in ("deferred", "attended")), seconds=60)
    time.sleep(6)  # both have polled

    # The workers of the LocalExecutor and the process of the task that does not defer are in the scheduler's session.
    killed = services.kill("triggerer") + services.kill("scheduler")
    assert len(killed) > 3
    launcher = build_launcher("local", state_folder=home.works / "jobs")
    for name in ("deferred-1", "attended-1"):
        handle = launcher.find(name)
        assert handle is not None
        assert launcher.poll(handle).state == "running"

    services.start("scheduler")
    services.start("triggerer")
    wait_until(lambda: home.tasks()["attended"] == ("running", 2), seconds=120)
    (home.works / "finish").touch()
    wait_until(lambda: set(services.states().values()) <= {"success", "failed"}, seconds=120)
    assert home.tasks() == {"deferred": ("success", 1), "attended": ("success", 2)}
    assert home.returned("deferred")["name"] == "deferred-1"
    # The second try is "running" before it has looked: on a busy machine it finds the work done.
    assert home.returned("attended")["name"] in ("attended-1", "attended")
    assert sorted(path.name for path in (home.works / "jobs").iterdir()) == ["attended-1", "deferred-1"]
    assert [lines_of(home.works / work / "starts") for work in ("deferred", "attended")] == [["started"], ["started"]]
