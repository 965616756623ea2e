"""Ends that reach the ranks as well as their agent, or that no rank can tell of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from paddlewheel.recipe import Resources
from paddlewheel.training.checkpoint import newest_commit
from paddlewheel.training.oom import count_oom_kills
from paddlewheel.training.ranks import Rank
from paddlewheel.training.watch import End, Watch

RUN_KEY = "0123456789abcdef0123"
HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def start_agent(run: Any, *options: str) -> subprocess.Popen[str]:
    """The agent of two ranks at the head of a process group of its own, as a shell or a scheduler starts it."""
    command = [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root]
    return subprocess.Popen(
        [*command, "--ranks-per-node", "2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def strike(agent: subprocess.Popen[str], run: Any, number: signal.Signals, *, after_step: int) -> str:
    """Send a signal to the agent's whole group once a commit after that step is there; what the agent said."""
    deadline = time.monotonic() + 60
    while True:
        commit = newest_commit(run.store, RUN_KEY)
        if commit is not None and commit.step > after_step:
            break
        assert time.monotonic() < deadline, "waited too long for a commit"
        time.sleep(0.05)
    os.killpg(agent.pid, number)
    return agent.communicate(timeout=60)[0]


def watch_of(tmp_path: Path, *commands: str, resources: Resources | None = None) -> Watch:
    """A watch over processes that are no ranks, but end like some, of a training that goes on from step 7."""
    processes = [subprocess.Popen(["sh", "-c", command]) for command in commands]
    ranks = [Rank(number=number, process=one, folder=tmp_path) for number, one in enumerate(processes)]
    return Watch(ranks=ranks, resources=resources or Resources(ranks_per_node=len(ranks)), step=7)


def end_of(watch: Watch) -> End:
    """How the watch judges, once it does; nothing is left running."""
    try:
        deadline = time.monotonic() + 20
        while (end := watch.look()) is None:
            assert time.monotonic() < deadline, "no judgement"
            time.sleep(0.05)
        return end
    finally:
        for rank in watch.ranks:
            rank.process.kill()
            rank.process.wait()


@pytest.mark.slow
def test_a_signal_to_the_whole_group_is_committed_when_it_is_an_interrupt_or_a_termination(new_run: Any) -> None:
    run = new_run("run", rows=300, overrides={"training.handlers": ["misbehaving:dawdle"]})
    reached = 0
    for number in (signal.SIGINT, signal.SIGTERM):
        agent = start_agent(run)
        output = strike(agent, run, number, after_step=reached)
        assert agent.returncode == 14, output
        commit = newest_commit(run.store, RUN_KEY)
        assert commit is not None
        assert reached < commit.step < 38
        reached = commit.step
    attempts = [json.loads(run.store.read(f"runs/{RUN_KEY}/attempts/{one}.verdict.json")) for one in (1, 2)]
    assert [one["kind"] for one in attempts] == ["stopped", "stopped"]
    assert attempts[1]["resumed_from_step"] == attempts[0]["step"] > 0
    assert attempts[1]["step"] == reached


@pytest.mark.slow
def test_a_users_exit_is_told_with_its_trace_when_its_code_is_0(new_run: Any) -> None:
    run = new_run("run", rows=300, overrides={"training.handlers": ["misbehaving:leave"]})
    agent = start_agent(run)
    output, _ = agent.communicate(timeout=60)
    assert agent.returncode == 10, output
    told = [line.partition("| ")[2] for line in output.splitlines() if line.startswith("rank ") and "| " in line]
    assert any("misbehaving.py" in line for line in told), output
    assert told[-1].startswith("SystemExit")
    assert f"logs of all ranks: {run.store.uri(f'runs/{RUN_KEY}/logs/attempt-1')}" in output
    assert "misbehaving.py" in run.store.read(f"runs/{RUN_KEY}/logs/attempt-1/rank-0.log").decode()


@pytest.mark.slow
def test_agent_is_fenced_off_when_another_began_just_before_its_result(new_run: Any) -> None:
    run = new_run("run", rows=40, overrides={"training.handlers": ["misbehaving:overtake_at_the_end"]})
    agent = start_agent(run, "--ranks-per-node", "1")
    output, _ = agent.communicate(timeout=60)
    assert agent.returncode == 17, output
    assert run.store.stat(f"runs/{RUN_KEY}/result.json") is None


def test_deadline_of_a_step_names_the_rank_that_is_behind(tmp_path: Path) -> None:
    resources = Resources(ranks_per_node=2, step_stall_seconds=1, step_stall_factor=2, first_step_seconds=60)
    watch = watch_of(tmp_path, "exec sleep 60", "exec sleep 60", resources=resources)
    for steps in ((7, 7), (8, 8), (9, 9), (10, 9)):
        for rank, step in enumerate(steps):
            beat = {"phase": "train", "step": step}
            (tmp_path / f"heartbeat-{rank}.json").write_text(json.dumps(beat))
        assert watch.look() is None
    end = end_of(watch)
    assert (end.kind, end.rank) == ("hang", 1)
    assert end.message == "step 10 has not ended on rank 1 in 1 s; the deadline is resources.step_stall_seconds"


def test_deadline_of_the_first_step_holds_when_a_resumed_training_has_not_made_one(tmp_path: Path) -> None:
    resources = Resources(ranks_per_node=1, step_stall_seconds=60, first_step_seconds=1)
    watch = watch_of(tmp_path, "exec sleep 60", resources=resources)
    (tmp_path / "heartbeat-0.json").write_text(json.dumps({"phase": "train", "step": 7}))
    end = end_of(watch)
    assert (end.kind, end.rank) == ("hang", None)
    assert end.message == "no step in 1 s (phase train); the deadline is resources.first_step_seconds"


def test_steps_done_again_and_chunks_measured_are_no_hang_but_standing_still_after_them_is(tmp_path: Path) -> None:
    resources = Resources(ranks_per_node=2, step_stall_seconds=1, step_stall_factor=2, first_step_seconds=60)
    watch = watch_of(tmp_path, "exec sleep 60", "exec sleep 60", resources=resources)

    def beat(step: int, moves: int) -> None:
        for rank in (0, 1):
            told = {"phase": "train", "step": step, "moves": moves}
            (tmp_path / f"heartbeat-{rank}.json").write_text(json.dumps(told))
        assert watch.look() is None

    for step in (7, 8, 30):
        beat(step, 0)
    for moves in (1, 2, 3):  # chunks, for three times as long as a step may take
        time.sleep(0.7)
        beat(30, moves)
    beat(9, 4)  # back to the commit of step 9
    for step in (10, 11, 12):
        time.sleep(0.7)
        beat(step, 4)
    end = end_of(watch)
    assert end.message == "step 13 has not ended in 1 s; the deadline is resources.step_stall_seconds"


def test_a_silent_rank_is_a_hang_when_the_others_gave_it_up(tmp_path: Path) -> None:
    error = {"kind": "node", "type": "PeerError", "message": "an exchange failed", "trace": ""}
    (tmp_path / "error-0.json").write_text(json.dumps(error))
    end = end_of(watch_of(tmp_path, "exit 13", "exec sleep 60"))
    assert (end.kind, end.rank) == ("hang", 1)
    assert end.message.startswith("rank 1 has not answered the others since step 7")


@pytest.mark.parametrize(("kills_before", "kind"), [(-1, "memory"), (0, "died"), (None, "died")])
def test_a_killed_rank_is_out_of_memory_when_the_kernel_counts_another_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills_before: int | None, kind: str
) -> None:
    monkeypatch.setattr("paddlewheel.training.watch.count_oom_kills", lambda: 5)  # no test may starve this host
    watch = watch_of(tmp_path, "kill -9 $$", "exit 13")
    watch.oom_kills = None if kills_before is None else 5 + kills_before
    end = end_of(watch)
    assert (end.kind, end.rank, end.signal) == (kind, 0, signal.SIGKILL)


V1 = "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "low 0\noom 9\noom_kill 3\n"}, 3),
        ({"proc/self/cgroup": "4:cpu,memory:/job\n", f"{V1}/job/memory.oom_control": "under_oom 0\noom_kill 2\n"}, 2),
        ({"proc/self/cgroup": "4:memory:/host/9\n", f"{V1}/memory.oom_control": "oom_kill 4\n"}, 4),
        ({"proc/self/cgroup": "0::/\n", "proc/vmstat": "nr_free_pages 7\noom_kill 1\n"}, 1),
        ({"proc/vmstat": "nr_free_pages 7\n"}, None),
    ],
    ids=["cgroup-v2", "cgroup-v1", "cgroup-v1-in-a-container", "host", "nobody-counts"],
)
def test_kills_are_counted_where_the_kernel_tells_them(
    tmp_path: Path, files: dict[str, str], kills: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_oom_kills(tmp_path) == kills


@pytest.mark.slow
def test_ranks_that_do_not_commit_in_time_are_killed_when_asked_to_stop(new_run: Any) -> None:
    run = new_run("run", rows=300, overrides={"training.handlers": ["pacing:hang"]})
    agent = start_agent(run, "--shutdown-seconds", "2")
    output = strike(agent, run, signal.SIGTERM, after_step=3)
    assert agent.returncode == 14, output
    assert "resources.shutdown_seconds" in output
    assert not [one for one in psutil.process_iter(["cmdline"]) if run.uri in (one.info["cmdline"] or [])]
