"""Launchers under test, each with a way to make its jobs; and what tests ask of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paddle_cluster.jobs import JobHandle, JobSpec, JobStatus
from paddle_cluster.launchers import Launcher, build_launcher


@pytest.fixture(params=["local"])
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """A launcher with a second of grace. Another kind joins the contract by a name here and its settings below."""
    settings: dict[str, dict[str, Any]] = {"local": {"state_folder": tmp_path / "jobs", "grace_seconds": 1.0}}
    built = build_launcher(request.param, **settings[request.param])
    submitted: list[JobHandle] = []
    submit = built.submit

    def remembering(spec: JobSpec) -> JobHandle:
        submitted.append(submit(spec))
        return submitted[-1]

    built.submit = remembering  # type: ignore[method-assign]
    yield built
    for handle in submitted:
        with suppress(OSError):
            built.cancel(handle)


def shell(name: str, script: str, **more: Any) -> JobSpec:
    """A job that runs one shell script."""
    return JobSpec(name=name, command=("sh", "-c", script), **more)


def wait_until(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    """What the condition returned once it was true. Fails the test when it is not in time."""
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < give_up, "it did not come true in time"
        time.sleep(0.02)
    return value


def end_of(launcher: Launcher, handle: JobHandle, seconds: float = 15.0) -> JobStatus:
    """The final status of a job."""

    def final() -> JobStatus | None:
        status = launcher.poll(handle)
        return status if status.state.final else None

    status: JobStatus = wait_until(final, seconds)
    return status


def process_lives(pid: int) -> bool:
    """Whether a process of this pid runs, zombies not counted."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def lines_of(path: Path) -> list[str]:
    """The file's lines; none where there is no file."""
    return path.read_text().splitlines() if path.exists() else []
