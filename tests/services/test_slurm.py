"""Jobs on a real Slurm of three hosts: one job a name, the right end for each way of ending, secrets nowhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paddle_cluster.jobs import JobHandle, JobSpec, JobState, JobStatus, Resources, SubmitError
from paddle_cluster.launchers.slurm import SlurmLauncher

from .slurm.cluster import NoSlurm, SlurmCluster, running

SECRET = "planted-4711-secret"
pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm that forgets jobs two minutes after their end, the least that it takes."""
    try:
        with running(tmp_path_factory.mktemp("slurm")) as found:
            yield found
    except NoSlurm as error:
        pytest.skip(str(error))


@pytest.fixture
def launcher(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmLauncher:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return SlurmLauncher(state_folder=str(tmp_path / "jobs"))


def shell(name: str, script: str, **more: Any) -> JobSpec:
    return JobSpec(name=name, command=("sh", "-c", script), **more)


def wait_until(condition: Callable[[], Any], seconds: float = 40.0) -> Any:
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < give_up, "it did not come true in time"
        time.sleep(0.1)
    return value


def end_of(launcher: SlurmLauncher, handle: JobHandle, seconds: float = 40.0) -> JobStatus:
    def final() -> JobStatus | None:
        status = launcher.poll(handle)
        return status if status.state.final else None

    status: JobStatus = wait_until(final, seconds)
    return status


def jobs_of(cluster: SlurmCluster, name: str) -> list[str]:
    return cluster.run("squeue", "-h", "-t", "all", f"--name={name}", "-o", "%i").split()


def test_one_job_runs_when_six_submit_one_name_at_once(
    cluster: SlurmCluster, launcher: SlurmLauncher, tmp_path: Path
) -> None:
    spec = shell("raced", f"echo started >> {tmp_path}/starts")
    handles: list[JobHandle] = []
    racers = [threading.Thread(target=lambda: handles.append(launcher.submit(spec))) for _ in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(handles) == 6
    assert len(set(handles)) == 1
    assert end_of(launcher, handles[0]).state is JobState.SUCCEEDED
    assert launcher.submit(spec) == launcher.find("raced") == handles[0]
    assert (tmp_path / "starts").read_text() == "started\n"
    assert jobs_of(cluster, "raced") == [handles[0].native_id]


def test_job_is_adopted_when_its_submitter_died_before_it_wrote_the_number_down(
    cluster: SlurmCluster, launcher: SlurmLauncher
) -> None:
    handle = launcher.submit(shell("adopted", "sleep 0.2"))
    Path(handle.location, "jobid").unlink()
    assert launcher.find("adopted") == handle
    assert launcher.submit(shell("adopted", "sleep 0.2")) == handle
    assert jobs_of(cluster, "adopted") == [handle.native_id]
    assert launcher.find("never") is None


@pytest.mark.parametrize(
    ("name", "script", "expected"),
    [
        ("fine", "exit 0", ("succeeded", 0, "")),
        ("user", "exit 10", ("failed", 10, "NonZeroExitCode")),
        ("preempted", "exit 14", ("preempted", 14, "NonZeroExitCode")),
        ("killed", "kill -9 $$", ("failed", 137, "killed by SIGKILL")),
    ],
)
def test_state_follows_the_commands_exit_code_when_it_ended(
    launcher: SlurmLauncher, name: str, script: str, expected: tuple[str, int, str]
) -> None:
    status = end_of(launcher, launcher.submit(shell(name, script)))
    assert (status.state, status.exit_code, status.reason) == expected


def test_job_says_why_when_its_command_does_not_exist(launcher: SlurmLauncher) -> None:
    handle = launcher.submit(JobSpec(name="absent", command=("no-such-program",)))
    status = end_of(launcher, handle)
    assert (status.state, status.exit_code) == ("failed", 127)
    assert "no-such-program" in launcher.logs(handle, 5)


def test_job_is_ended_when_it_passes_its_time_limit_of_seconds(launcher: SlurmLauncher) -> None:
    status = end_of(launcher, launcher.submit(shell("slow", "sleep 60", time_limit_seconds=1)))
    assert (status.state, status.exit_code, status.reason) == ("failed", 143, "passed its time limit of 1 s")


def test_command_runs_once_on_each_node_with_its_own_devices_when_two_nodes_are_asked_for(
    cluster: SlurmCluster, launcher: SlurmLauncher
) -> None:
    script = 'echo "$JOB_NODE_RANK of $JOB_NODES led by $JOB_LEADER_HOST on $(hostname) with $CUDA_VISIBLE_DEVICES"'
    spec = shell("wide", script, resources=Resources(nodes=2, gpus_per_node=2))
    handle = launcher.submit(spec)
    assert end_of(launcher, handle).state is JobState.SUCCEEDED
    first, second = cluster.hosts[:2]
    assert launcher.logs(handle, 5).splitlines() == [
        "---- log-0.txt ----",
        f"0 of 2 led by {first} on {first} with 0,1",
        "---- log-1.txt ----",
        f"1 of 2 led by {first} on {second} with 0,1",
    ]


def test_job_ends_by_its_own_word_when_it_is_cancelled_and_heeds_the_signal(launcher: SlurmLauncher) -> None:
    script = "trap 'echo told; exit 14' TERM; echo up; while :; do sleep 0.05; done"
    handle = launcher.submit(shell("cancelled", script))
    wait_until(lambda: "up" in launcher.logs(handle, 5))
    assert launcher.poll(handle).state is JobState.RUNNING
    launcher.cancel(handle)
    launcher.cancel(handle)
    assert end_of(launcher, handle).state is JobState.CANCELLED
    assert "told" in launcher.logs(handle, 5)


def test_held_job_waits_with_the_queues_own_reason(cluster: SlurmCluster, launcher: SlurmLauncher) -> None:
    handle = launcher.submit(shell("held", "true", options={"begin": "now+1hour"}))
    status = wait_until(lambda: (found := launcher.poll(handle)).reason and found)
    assert (status.state, status.native_state, status.reason) == ("pending", "PENDING", "BeginTime")
    cluster.run("scancel", handle.native_id)  # from outside
    assert end_of(launcher, handle).state is JobState.CANCELLED


def test_job_is_lost_when_its_host_is_cut_off(cluster: SlurmCluster, launcher: SlurmLauncher) -> None:
    host = cluster.hosts[2]
    handle = launcher.submit(shell("cut", "echo up; sleep 120", options={"nodelist": host}))
    wait_until(lambda: "up" in launcher.logs(handle, 5))
    cluster.cut_off(host)
    try:
        status = end_of(launcher, handle, seconds=90)
    finally:
        cluster.put_back(host)
        cluster.wait_until_idle(60)
    assert (status.state, status.native_state) == ("lost", "NODE_FAIL")
    assert host in status.reason


def test_secret_reaches_the_job_and_no_file_when_it_is_given(
    cluster: SlurmCluster, launcher: SlurmLauncher, tmp_path: Path
) -> None:
    script = 'test "$TOKEN" = "' + SECRET[:8] + '""' + SECRET[8:] + '"'
    handle = launcher.submit(shell("secret", script, secrets={"TOKEN": SECRET}))
    assert end_of(launcher, handle).state is JobState.SUCCEEDED
    assert SECRET not in launcher.render(shell("secret", script, secrets={"TOKEN": SECRET}))
    assert SECRET not in cluster.run("scontrol", "show", "job", handle.native_id)
    written = [path for path in (tmp_path / "jobs").rglob("*") if path.is_file()]
    written += [path for path in (cluster.folder / "log").rglob("*") if path.is_file()]
    assert len(written) > 5
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (shell("../up", "true"), "job name '../up'"),
        (shell("odd", "true", options={"partitoin": "x"}), "partitoin: the options are account, begin"),
        (shell("odd", "true", options={"partition": "a;reboot"}), "partition: 'a;reboot' has characters"),
        (shell("odd", "true", options={"partition": "nowhere"}), "sbatch refused it: .*invalid partition"),
    ],
)
def test_submit_refuses_what_cannot_be_with_slurms_words(launcher: SlurmLauncher, spec: JobSpec, told: str) -> None:
    with pytest.raises(SubmitError, match=told):
        launcher.submit(spec)
