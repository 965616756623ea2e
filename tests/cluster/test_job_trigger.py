"""The trigger over real jobs: one event, deadlines kept, nothing blocked, the job ended only when it is unwanted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paddle_cluster import job_trigger
from paddle_cluster.job_trigger import JobTrigger
from paddle_cluster.jobs import JobHandle, JobState
from paddle_cluster.launchers import Launcher, build_launcher

from .conftest import end_of, shell


@pytest.fixture
def local(tmp_path: Path) -> Launcher:
    return build_launcher("local", state_folder=tmp_path / "jobs", grace_seconds=1.0)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Airflow behind it the trigger need not wait for the deferral."""
    monkeypatch.setattr(job_trigger, "LEAST_SLEEP_SECONDS", 0.1)


def build(handle: JobHandle, tmp_path: Path, **more: Any) -> JobTrigger:
    """A trigger that polls ten times a second."""
    settings = {"state_folder": str(tmp_path / "jobs")}
    return JobTrigger(handle=handle.to_json(), settings=settings, **{"poll_seconds": 0.1, **more})


async def events_of(trigger: JobTrigger) -> list[Any]:
    return [event.payload async for event in trigger.run()]


def test_trigger_says_nothing_for_five_seconds_when_the_job_has_long_ended(local: Launcher, tmp_path: Path) -> None:
    handle = local.submit(shell("short", "exit 0"))
    end_of(local, handle)
    began = time.monotonic()
    asyncio.run(events_of(build(handle, tmp_path)))
    assert time.monotonic() - began >= 5.0


@pytest.mark.usefixtures("soon")
def test_one_event_tells_the_end_when_the_job_failed(local: Launcher, tmp_path: Path) -> None:
    handle = local.submit(shell("failed", "sleep 0.4; exit 12"))
    assert asyncio.run(events_of(build(handle, tmp_path))) == [
        {"handle": handle.to_json(), "state": "failed", "reason": "", "exit_code": 12}
    ]


@pytest.mark.usefixtures("soon")
def test_event_is_a_timeout_when_the_deadline_passes_and_the_job_is_left_to_the_task(
    local: Launcher, tmp_path: Path
) -> None:
    handle = local.submit(shell("late", "sleep 300"))
    [event] = asyncio.run(events_of(build(handle, tmp_path, deadline_at=time.time() + 0.5)))
    assert (event["state"], event["reason"]) == ("timeout", "the job's deadline passed")
    assert local.poll(handle).state is JobState.RUNNING
    local.cancel(handle)


@pytest.mark.usefixtures("soon")
def test_event_is_a_timeout_with_the_queues_reason_when_the_job_is_not_admitted(
    local: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_start_once", lambda folder, spec: None)
    handle = local.submit(shell("queued", "true"))
    [event] = asyncio.run(events_of(build(handle, tmp_path, admission_at=time.time() + 0.3)))
    assert event["state"] == "timeout"
    assert event["reason"] == (
        "the job was not admitted in time; the queue says: created created but not started; the next submit starts it"
    )


@pytest.mark.usefixtures("soon")
def test_running_job_is_left_alone_when_its_admission_deadline_has_passed(local: Launcher, tmp_path: Path) -> None:
    handle = local.submit(shell("admitted", "sleep 0.6"))
    [event] = asyncio.run(events_of(build(handle, tmp_path, admission_at=time.time() + 0.3)))
    assert event["state"] == "succeeded"


@pytest.mark.usefixtures("soon")
def test_event_comes_all_the_same_when_the_launcher_did_not_answer_for_a_while(local: Launcher, tmp_path: Path) -> None:
    handle = local.submit(shell("unreadable", "sleep 0.3; exit 14"))
    lock = tmp_path / "jobs/unreadable/job.lock"
    lock.rename(lock.with_suffix(".away"))
    trigger = build(handle, tmp_path)

    async def watch() -> list[Any]:
        watching = asyncio.create_task(events_of(trigger))
        await asyncio.sleep(0.25)
        assert not watching.done()
        lock.with_suffix(".away").rename(lock)
        return await watching

    assert [event["state"] for event in asyncio.run(watch())] == ["preempted"]


@pytest.mark.usefixtures("soon")
def test_job_runs_on_when_the_trigger_is_stopped_and_another_watches_it_to_its_end(
    local: Launcher, tmp_path: Path
) -> None:
    handle = local.submit(shell("watched", "sleep 1"))
    trigger = build(handle, tmp_path)

    async def stop() -> None:
        watching = asyncio.create_task(events_of(trigger))
        await asyncio.sleep(0.3)
        watching.cancel()
        await trigger.cleanup()

    asyncio.run(stop())
    assert local.poll(handle).state is JobState.RUNNING
    path, arguments = trigger.serialize()
    assert path == "paddle_cluster.job_trigger.JobTrigger"
    assert [event["state"] for event in asyncio.run(events_of(JobTrigger(**arguments)))] == ["succeeded"]


def test_job_is_cancelled_when_the_task_is_killed_while_deferred(local: Launcher, tmp_path: Path) -> None:
    handle = local.submit(shell("unwanted", "sleep 300"))
    asyncio.run(build(handle, tmp_path).on_kill())
    assert end_of(local, handle).state is JobState.CANCELLED


def test_event_loop_goes_on_when_a_poll_hangs(
    local: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    handle = local.submit(shell("hanging", "exit 0"))
    end_of(local, handle)
    poll = type(local).poll
    monkeypatch.setattr(type(local), "poll", lambda self, handle: time.sleep(0.5) or poll(self, handle))

    async def count() -> int:
        watching = asyncio.create_task(events_of(build(handle, tmp_path)))
        ticks = 0
        while not watching.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(count()) > 20


def test_nothing_heavy_is_imported_when_the_operator_and_its_trigger_are() -> None:
    code = (
        "import sys, paddle_cluster.job_operator, paddle_cluster.job_trigger, paddle_cluster.verdict, "
        "paddle_cluster.launchers.local; "
        "print(sorted({'paddle', 'paddlewheel', 'pandas', 'polars', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_supervisor_killed_is_a_lost_job_when_the_trigger_looks(local: Launcher, tmp_path: Path, soon: None) -> None:
    handle = local.submit(shell("gone", f"echo $PPID > {tmp_path}/supervisor; sleep 300"))
    trigger = build(handle, tmp_path)

    async def kill_and_watch() -> list[Any]:
        watching = asyncio.create_task(events_of(trigger))
        while not (tmp_path / "supervisor").exists() or not (tmp_path / "supervisor").read_text():
            await asyncio.sleep(0.02)
        os.kill(int((tmp_path / "supervisor").read_text()), signal.SIGKILL)
        return await watching

    [event] = asyncio.run(kill_and_watch())
    assert (event["state"], event["exit_code"]) == ("lost", None)
