"""The local launcher when something is killed: the supervisor, the submitter at any point, what the job left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paddle_cluster.jobs import JobState
from paddle_cluster.launchers.local import LocalLauncher

from .conftest import end_of, lines_of, process_lives, shell, wait_until

PLUGINS = str(Path(__file__).parents[2] / "plugins")
# Submits a job and dies by SIGKILL at a named point of it.
DYING_SUBMITTER = """
import os, signal, sys
from paddle_cluster.jobs import JobSpec
from paddle_cluster.launchers import local
die = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
folder, script, point = sys.argv[1:]
launcher = local.LocalLauncher(state_folder=folder, grace_seconds=1.0)
if point == "before the folder is in place":
    local.os.rename = die
elif point == "before the start":
    launcher._start_once = die
elif point == "with the lock held":
    local.start_supervisor = die
launcher.submit(JobSpec(name="orphan", command=("sh", "-c", script)))
die()
"""


@pytest.fixture
def local(tmp_path: Path) -> LocalLauncher:
    return LocalLauncher(state_folder=tmp_path / "jobs", grace_seconds=1.0)


def submit_and_die(tmp_path: Path, script: str, point: str) -> None:
    """A process that submits `orphan` and is killed at this point."""
    done = subprocess.run(
        [sys.executable, "-c", DYING_SUBMITTER, str(tmp_path / "jobs"), script, point],
        env={**os.environ, "PYTHONPATH": PLUGINS},
        start_new_session=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def started(local: LocalLauncher, name: str) -> dict[str, int]:
    """started.json once the command runs."""
    path = local.state_folder / name / "started.json"
    tree: dict[str, int] = wait_until(
        lambda: path.exists() and "command_pid" in (tree := json.loads(path.read_text())) and tree
    )
    return tree


def test_job_is_lost_and_all_of_it_gone_when_its_supervisor_is_killed(local: LocalLauncher, tmp_path: Path) -> None:
    script = f"setsid sleep 300 & echo $! > {tmp_path}/escaped; (sleep 300 & echo $! > {tmp_path}/child); sleep 300"
    handle = local.submit(shell("lost", script))
    pids = started(local, "lost")
    wait_until(lambda: lines_of(tmp_path / "escaped") and lines_of(tmp_path / "child"))
    everyone = [pids["command_pid"], *(int(lines_of(tmp_path / name)[0]) for name in ("escaped", "child"))]
    assert all(process_lives(pid) for pid in everyone)
    os.kill(pids["supervisor_pid"], signal.SIGKILL)
    status = end_of(local, handle)
    assert (status.state, status.exit_code) == ("lost", None)
    assert "supervisor was killed" in status.reason
    wait_until(lambda: not any(process_lives(pid) for pid in everyone), seconds=5)


def kill_supervisor_and_keeper(pids: dict[str, int]) -> None:
    """SIGKILL both; returns when both are gone."""
    stat = Path(f"/proc/{pids['supervisor_pid']}/stat").read_text()
    keeper = int(stat.rpartition(")")[2].split()[1])
    for pid in (keeper, pids["supervisor_pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not (process_lives(keeper) or process_lives(pids["supervisor_pid"])))


def test_command_dies_when_supervisor_and_keeper_are_killed_together(local: LocalLauncher, tmp_path: Path) -> None:
    handle = local.submit(shell("both", "exec sleep 300"))
    pids = started(local, "both")
    kill_supervisor_and_keeper(pids)
    assert end_of(local, handle).state is JobState.LOST
    wait_until(lambda: not process_lives(pids["command_pid"]), seconds=5)


def test_job_is_not_lost_yet_when_a_process_of_it_outlives_supervisor_and_keeper(
    local: LocalLauncher, tmp_path: Path
) -> None:
    handle = local.submit(shell("half", f"sleep 300 & echo $! > {tmp_path}/rank; wait"))
    pids = started(local, "half")
    wait_until(lambda: lines_of(tmp_path / "rank"))
    kill_supervisor_and_keeper(pids)
    wait_until(lambda: not process_lives(pids["command_pid"]))
    assert local.poll(handle).state is JobState.RUNNING
    os.kill(int(lines_of(tmp_path / "rank")[0]), signal.SIGKILL)
    assert end_of(local, handle).state is JobState.LOST


def test_lost_job_is_not_started_again_when_submitted_again(local: LocalLauncher, tmp_path: Path) -> None:
    spec = shell("once", f"echo started >> {tmp_path}/starts; sleep 300")
    handle = local.submit(spec)
    pids = started(local, "once")
    wait_until((tmp_path / "starts").exists)
    os.kill(pids["supervisor_pid"], signal.SIGKILL)
    assert end_of(local, handle).state is JobState.LOST
    assert local.submit(spec) == handle
    assert local.poll(handle).state is JobState.LOST
    assert lines_of(tmp_path / "starts") == ["started"]


def test_job_goes_on_to_its_end_when_its_submitter_is_killed(local: LocalLauncher, tmp_path: Path) -> None:
    submit_and_die(tmp_path, f"sleep 0.5; echo done > {tmp_path}/done", "after the start")
    handle = local.find("orphan")
    assert handle is not None
    assert end_of(local, handle).state is JobState.SUCCEEDED
    assert lines_of(tmp_path / "done") == ["done"]


@pytest.mark.parametrize("point", ["before the folder is in place", "before the start", "with the lock held"])
def test_next_submit_starts_the_job_when_the_first_submitter_was_killed(
    local: LocalLauncher, tmp_path: Path, point: str
) -> None:
    script = f"echo started >> {tmp_path}/starts"
    submit_and_die(tmp_path, script, point)
    found = local.find("orphan")
    if point == "before the folder is in place":
        assert found is None
    else:
        assert found is not None
        assert local.poll(found).state is JobState.PENDING
    handle = local.submit(shell("orphan", script))
    assert end_of(local, handle).state is JobState.SUCCEEDED
    assert lines_of(tmp_path / "starts") == ["started"]


def test_command_never_starts_when_cancelled_before_the_start(local: LocalLauncher, tmp_path: Path) -> None:
    script = f"echo started >> {tmp_path}/starts"
    submit_and_die(tmp_path, script, "before the start")
    handle = local.find("orphan")
    assert handle is not None
    local.cancel(handle)
    assert local.poll(handle).state is JobState.CANCELLED
    local.submit(shell("orphan", script))
    assert end_of(local, handle).reason == "cancelled before it started"
    wait_until((local.state_folder / "orphan/exit.json").exists)
    time.sleep(0.2)
    assert lines_of(tmp_path / "starts") == []


def test_nothing_is_left_when_the_job_ends_before_what_it_started(local: LocalLauncher, tmp_path: Path) -> None:
    handle = local.submit(shell("leaves", f"setsid sleep 300 & echo $! > {tmp_path}/left; exit 0"))
    assert end_of(local, handle).state is JobState.SUCCEEDED
    assert not process_lives(int(lines_of(tmp_path / "left")[0]))


def test_job_is_told_and_preempted_when_its_supervisor_gets_sigterm(local: LocalLauncher, tmp_path: Path) -> None:
    script = f"trap 'exit 14' TERM; echo up > {tmp_path}/up; while :; do sleep 0.05; done"
    handle = local.submit(shell("host-goes-down", script))
    wait_until((tmp_path / "up").exists)
    os.kill(started(local, "host-goes-down")["supervisor_pid"], signal.SIGTERM)
    assert end_of(local, handle).state is JobState.PREEMPTED


def test_state_is_seen_when_polled_in_another_pid_namespace(local: LocalLauncher, tmp_path: Path) -> None:
    poll = (
        "import sys; from paddle_cluster.launchers import build_launcher; "
        "launcher = build_launcher('local', state_folder=sys.argv[1]); "
        "print(launcher.poll(launcher.find('elsewhere')).state.value)"
    )

    def state_from_elsewhere() -> str:
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", poll,
             str(local.state_folder)],
            env={**os.environ, "PYTHONPATH": PLUGINS},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0 and "unshare" in done.stderr:
            pytest.skip(f"no pid namespaces here: {done.stderr.strip()}")
        return done.stdout.strip()

    local.submit(shell("elsewhere", "sleep 300"))
    pids = started(local, "elsewhere")
    assert state_from_elsewhere() == "running"
    os.kill(pids["supervisor_pid"], signal.SIGKILL)
    wait_until(lambda: not process_lives(pids["command_pid"]))
    assert wait_until(lambda: (state := state_from_elsewhere()) != "running" and state) == "lost"
