"""What every launcher owes the operator, tried with real jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paddle_cluster.jobs import JobHandle, JobSpec, JobState, Resources, SubmitError
from paddle_cluster.launchers import Launcher, build_launcher

from .conftest import end_of, lines_of, shell, wait_until

SECRET = "hunter2-6f1d"


def test_one_job_runs_when_submitted_twice(launcher: Launcher, tmp_path: Path) -> None:
    spec = shell("twice", f"echo started >> {tmp_path}/starts; sleep 0.3")
    first, second = launcher.submit(spec), launcher.submit(spec)
    assert first == second
    assert end_of(launcher, first).state is JobState.SUCCEEDED
    assert launcher.submit(spec) == first
    assert launcher.poll(first).state is JobState.SUCCEEDED
    assert lines_of(tmp_path / "starts") == ["started"]


@pytest.mark.parametrize(
    ("code", "state"), [(0, "succeeded"), (1, "failed"), (10, "failed"), (14, "preempted"), (137, "failed")]
)
def test_state_follows_the_exit_code_when_the_job_ended(launcher: Launcher, code: int, state: str) -> None:
    status = end_of(launcher, launcher.submit(shell(f"code-{code}", f"exit {code}")))
    assert (status.state, status.exit_code) == (state, code)


def test_exit_code_is_128_and_the_signal_when_one_killed_it(launcher: Launcher) -> None:
    status = end_of(launcher, launcher.submit(shell("killed", "kill -9 $$")))
    assert (status.state, status.exit_code, status.reason) == ("failed", 137, "killed by SIGKILL")


def test_job_is_found_by_name_only_when_there_has_been_one(launcher: Launcher) -> None:
    assert launcher.find("never") is None
    handle = launcher.submit(shell("once", "true"))
    end_of(launcher, handle)
    assert launcher.find("once") == handle


def test_handle_finds_the_job_when_it_went_through_json(launcher: Launcher) -> None:
    handle = launcher.submit(shell("json", "exit 3"))
    assert end_of(launcher, JobHandle.from_json(handle.to_json())).exit_code == 3


def test_job_is_cancelled_when_asked_while_it_runs(launcher: Launcher, tmp_path: Path) -> None:
    script = f"trap 'echo told >> {tmp_path}/told; exit 0' TERM; echo up > {tmp_path}/up; while :; do sleep 0.05; done"
    handle = launcher.submit(shell("cancelled", script))
    wait_until((tmp_path / "up").exists)
    assert launcher.poll(handle).state is JobState.RUNNING
    launcher.cancel(handle)
    launcher.cancel(handle)
    assert end_of(launcher, handle).state is JobState.CANCELLED
    assert lines_of(tmp_path / "told") == ["told"]


def test_job_is_killed_when_it_does_not_heed_the_cancel(launcher: Launcher, tmp_path: Path) -> None:
    handle = launcher.submit(shell("deaf", f"trap '' TERM; echo up > {tmp_path}/up; while :; do sleep 0.05; done"))
    wait_until((tmp_path / "up").exists)
    launcher.cancel(handle)
    status = end_of(launcher, handle, seconds=8)
    assert (status.state, status.exit_code) == ("cancelled", 137)


def test_state_stays_when_cancelled_after_the_end(launcher: Launcher) -> None:
    handle = launcher.submit(shell("ended", "exit 14"))
    end_of(launcher, handle)
    launcher.cancel(handle)
    assert launcher.poll(handle).state is JobState.PREEMPTED


def test_logs_give_the_last_lines_of_both_streams_when_asked(launcher: Launcher) -> None:
    handle = launcher.submit(shell("logs", "seq 1 30000; echo broken >&2"))
    end_of(launcher, handle)
    assert launcher.logs(handle, 3) == "29999\n30000\nbroken"
    assert launcher.logs(handle, 0) == ""
    assert len(launcher.logs(handle, 100000).splitlines()) == 30001


def test_job_is_ended_when_it_passes_its_time_limit(launcher: Launcher) -> None:
    status = end_of(launcher, launcher.submit(shell("slow", "sleep 60", time_limit_seconds=1)), seconds=10)
    assert (status.state, status.exit_code, status.reason) == ("failed", 143, "passed its time limit of 1 s")


def test_job_says_why_when_its_command_does_not_exist(launcher: Launcher) -> None:
    handle = launcher.submit(JobSpec(name="absent", command=("no-such-program",)))
    status = end_of(launcher, handle)
    assert (status.state, status.exit_code) == ("failed", 127)
    assert "no-such-program" in status.reason
    assert "no-such-program" in launcher.logs(handle, 5)


def test_job_gets_the_specs_environment_and_no_secret_when_it_starts(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", SECRET)
    monkeypatch.setenv("HOME", "/home/of-the-test")
    spec = shell("clean", f"env > {tmp_path}/env", environment={"STORE_TOKEN": "given-4711"})
    end_of(launcher, launcher.submit(spec))
    got = lines_of(tmp_path / "env")
    assert "STORE_TOKEN=given-4711" in got
    assert "HOME=/home/of-the-test" in got
    assert not any("FERNET" in line or SECRET in line for line in got)
    written = b"".join(path.read_bytes() for path in (tmp_path / "jobs").rglob("*") if path.is_file())
    assert SECRET.encode() not in written
    assert b"given-4711" not in written


def test_working_directory_and_command_arrive_unchanged_when_they_have_blanks(
    launcher: Launcher, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    command = ("sh", "-c", 'printf "%s|" "$@" > out', "sh", "a b", "$HOME", "'q'", "")
    end_of(launcher, launcher.submit(JobSpec(name="blanks", command=command, working_directory=str(folder))))
    assert (folder / "out").read_text() == "a b|$HOME|'q'||"


def test_poll_returns_at_once_when_the_job_runs_on(launcher: Launcher) -> None:
    handle = launcher.submit(shell("long", "sleep 30"))
    began = time.monotonic()
    for _ in range(50):
        assert not launcher.poll(handle).state.final
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 201])
def test_submit_refuses_a_name_when_it_is_unfit(launcher: Launcher, name: str) -> None:
    with pytest.raises(SubmitError, match="job name"):
        launcher.submit(shell(name, "true"))


def test_local_launcher_refuses_a_job_when_it_wants_two_nodes(tmp_path: Path) -> None:
    local = build_launcher("local", state_folder=tmp_path)
    with pytest.raises(SubmitError, match=r"resources\.nodes is 2.*set it to 1"):
        local.render(shell("wide", "true", resources=Resources(nodes=2)))
    assert list(tmp_path.iterdir()) == []


def test_unknown_launcher_is_refused_with_those_that_exist_when_asked_for() -> None:
    with pytest.raises(SubmitError, match="no launcher 'lokal'; this version has local"):
        build_launcher("lokal")


def test_render_is_a_script_that_does_the_same_when_run(launcher: Launcher, tmp_path: Path) -> None:
    spec = shell(
        "text", 'echo "$WORDS" > out', environment={"WORDS": "two words"}, working_directory=str(tmp_path)
    )  # fmt: skip
    text = launcher.render(spec)
    assert text == (
        f"# text: 1 ranks on this host\ncd {tmp_path}\nexport WORDS='two words'\nsh -c 'echo \"$WORDS\" > out'\n"
    )
    subprocess.run(["sh", "-c", text], check=True)
    assert (tmp_path / "out").read_text() == "two words\n"


RACER = """
import sys, time
from paddle_cluster.jobs import JobSpec
from paddle_cluster.launchers import build_launcher
launcher = build_launcher("local", state_folder=sys.argv[1])
spec = JobSpec(name="raced", command=("sh", "-c", f"echo started >> {sys.argv[2]}; sleep 0.5"))
while time.time() < float(sys.argv[3]):
    pass
print(launcher.submit(spec).location)
"""


def test_one_job_runs_when_eight_processes_submit_at_once(tmp_path: Path) -> None:
    plugins = str(Path(__file__).parents[2] / "plugins")
    together = str(time.time() + 1.0)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "jobs"), str(tmp_path / "starts"), together],
            env={**os.environ, "PYTHONPATH": plugins},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    answers = {racer.communicate(timeout=30)[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 8
    assert answers == {str(tmp_path / "jobs/raced")}
    local = build_launcher("local", state_folder=tmp_path / "jobs")
    handle = local.find("raced")
    assert handle is not None
    assert end_of(local, handle).state is JobState.SUCCEEDED
    assert lines_of(tmp_path / "starts") == ["started"]
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["raced"]
