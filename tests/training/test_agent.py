"""The agent over real ranks: whatever is killed, the run ends well, once, with the weights of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from paddlewheel.manifest import read_manifest
from paddlewheel.training.checkpoint import load_weights, newest_commit
from paddlewheel.training.curve import read_attempts, read_curve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RUN_KEY = "0123456789abcdef0123"
HERE = Path(__file__).parent
ROWS, STEPS = 300, 38  # 2 epochs of 19 batches of 16, the last one short
PACED = {"training.handlers": ["pacing:pace"]}


def start_agent(run: Any, *options: str, **environment: str) -> subprocess.Popen[str]:
    """The agent as a job runs it, two ranks."""
    command = [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root]
    return subprocess.Popen(
        [*command, "--ranks-per-node", "2", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ranks_of(agent: subprocess.Popen[str]) -> list[psutil.Process]:
    """The agent's ranks, by their start."""
    return sorted(psutil.Process(agent.pid).children(), key=lambda process: process.create_time())


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until the condition holds; fails with its name."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def has_commit(run: Any, step: int = 4) -> bool:
    """Whether a commit at this step or later is there."""
    commits = run.store.children(f"runs/{RUN_KEY}/checkpoints")
    return any(
        int(name.split("-")[1]) >= step and run.store.stat(f"runs/{RUN_KEY}/checkpoints/{name}/COMMIT.json")
        for name in commits
    )


def result_facts(run: Any) -> dict[str, Any]:
    """Facts of the run's result."""
    return dict(read_manifest(run.store, f"runs/{RUN_KEY}/result.json").facts)


def weights(run: Any) -> dict[str, np.ndarray]:
    """The final weights."""
    commit = newest_commit(run.store, RUN_KEY)
    assert commit is not None
    assert commit.step == STEPS
    return load_weights(run.store, commit)


def assert_equal_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


@pytest.fixture(scope="module", autouse=True)
def handlers_on_path() -> Iterator[None]:
    """Recipes are checked here too: their handlers' module must be found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Weights of the same training without any trouble."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("training_conftest", HERE / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    run = module.make_run(tmp_path_factory.mktemp("undisturbed"), rows=ROWS, overrides=PACED)
    agent = start_agent(run)
    output, _ = agent.communicate(timeout=120)
    assert agent.returncode == 0, output
    facts = result_facts(run)
    assert (facts["steps"], facts["order_ok"], len(facts["attempts"])) == (STEPS, True, 1)
    assert "step" in output
    again = start_agent(run)
    said, _ = again.communicate(timeout=60)
    assert again.returncode == 0
    assert "already done" in said
    return weights(run)


def test_a_killed_rank_is_restarted_in_place_to_the_same_bits(new_run: Any, undisturbed: dict[str, np.ndarray]) -> None:
    run = new_run("killed", rows=ROWS, overrides=PACED)
    agent = start_agent(run)
    wait_for(lambda: has_commit(run))
    victim = ranks_of(agent)[1]
    os.kill(victim.pid, signal.SIGKILL)
    output, _ = agent.communicate(timeout=120)
    assert agent.returncode == 0, output
    assert "rank 1 was killed by SIGKILL" in output
    facts = result_facts(run)
    assert [entry["ended"] for entry in facts["attempts"]] == ["died", "done"]
    assert facts["attempts"][1]["resumed_from_step"] >= 4
    assert facts["order_ok"] is True
    for sums in facts["order"].values():
        assert sums["seen"] == sums["expected"] != "0"
    assert_equal_bits(weights(run), undisturbed)
    curve = read_curve(run.store, RUN_KEY)
    assert [record.step for record in curve] == list(range(1, STEPS + 1))
    assert {record.attempt for record in curve} == {1, 2}


def test_a_killed_agent_leaves_no_rank_and_the_next_goes_on_at_one_rank(new_run: Any) -> None:
    run = new_run("agent", rows=ROWS, overrides=PACED)
    agent = start_agent(run)
    wait_for(lambda: has_commit(run, 8))
    ranks = ranks_of(agent)
    os.kill(agent.pid, signal.SIGKILL)
    agent.communicate(timeout=30)
    wait_for(lambda: not any(rank.is_running() and rank.status() != "zombie" for rank in ranks), 10)
    after = start_agent(run, "--ranks-per-node", "1")
    output, _ = after.communicate(timeout=120)
    assert after.returncode == 0, output
    attempts = read_attempts(run.store, RUN_KEY)
    assert [(attempt.world_size, attempt.ended) for attempt in attempts] == [(2, None), (1, "done")]
    assert attempts[1].resumed_from_step >= 8
    assert result_facts(run)["order_ok"] is True


def test_a_preemption_commits_and_ends_with_14(new_run: Any, undisturbed: dict[str, np.ndarray]) -> None:
    run = new_run("preempted", rows=ROWS, overrides={**PACED, "training.checkpoint_every_steps": 1000})
    agent = start_agent(run)
    wait_for(lambda: _trains(agent))
    time.sleep(0.4)
    agent.send_signal(signal.SIGTERM)
    output, _ = agent.communicate(timeout=60)
    assert agent.returncode == 14, output
    commit = newest_commit(run.store, RUN_KEY)
    assert commit is not None
    assert 0 < commit.step < STEPS
    after = start_agent(run)
    output, _ = after.communicate(timeout=120)
    assert after.returncode == 0, output
    assert f"from the commit at step {commit.step}" in output
    assert_equal_bits(weights(run), undisturbed)


def _trains(agent: subprocess.Popen[str]) -> bool:
    """Whether the ranks have begun to train: their heartbeats say so."""
    for folder in Path("/tmp").glob("paddlewheel-*"):
        for path in folder.glob("heartbeat-0.json"):
            beat = json.loads(path.read_text())
            alive = beat["phase"] == "train" and psutil.pid_exists(beat["pid"])
            if alive and psutil.Process(beat["pid"]).ppid() == agent.pid:
                return True
    return False


def test_a_users_mistake_ends_at_once_with_its_trace(new_run: Any) -> None:
    run = new_run("mistake", rows=ROWS, overrides={"training.handlers": ["pacing:fail"]})
    agent = start_agent(run)
    output, _ = agent.communicate(timeout=120)
    assert agent.returncode == 10, output
    verdict = json.loads(run.store.read(f"runs/{RUN_KEY}/attempts/1.verdict.json"))
    assert (verdict["kind"], verdict["rank"], verdict["exit_code"]) == ("user", 0, 10)
    assert "a user's handler failed" in verdict["message"]
    assert "pacing.py" in verdict["trace"]
    assert run.store.stat(f"runs/{RUN_KEY}/attempts/2.json") is None
    assert run.store.stat(f"runs/{RUN_KEY}/result.json") is None


def test_a_hang_is_told_with_the_stacks_of_all_ranks(new_run: Any) -> None:
    run = new_run("hang", rows=ROWS, overrides={"training.handlers": ["pacing:hang"]})
    agent = start_agent(run, "--step-stall-seconds", "4", "--first-step-seconds", "20", "--max-restarts", "0")
    output, _ = agent.communicate(timeout=200)
    assert agent.returncode == 15, output
    assert "resources.max_restarts is 0" in output
    verdict = json.loads(run.store.read(f"runs/{RUN_KEY}/attempts/1.verdict.json"))
    assert verdict["kind"] == "hang"
    assert "stand_still" in verdict["stacks"]
    assert "resources.step_stall_seconds" in verdict["message"]
    assert "rank 0:" in verdict["stacks"]


def test_a_second_agent_fences_the_first_and_the_run_ends_once(new_run: Any) -> None:
    run = new_run("fence", rows=ROWS, overrides=PACED)
    first = start_agent(run)
    wait_for(lambda: has_commit(run))
    second = start_agent(run)
    said, _ = first.communicate(timeout=60)
    output, _ = second.communicate(timeout=120)
    assert first.returncode == 17, said
    assert second.returncode == 0, output
    facts = result_facts(run)
    assert facts["order_ok"] is True
    assert [entry["ended"] for entry in facts["attempts"]] == ["fenced", "done"]


def test_a_rank_sees_no_secret_of_the_agents_environment(new_run: Any) -> None:
    run = new_run("secret", rows=ROWS, overrides={"training.handlers": ["pacing:show_environment"]})
    agent = start_agent(run, AWS_SECRET_ACCESS_KEY="hunter2-secret", AIRFLOW__CORE__FERNET_KEY="hunter2-fernet")
    output, _ = agent.communicate(timeout=120)
    assert agent.returncode == 10, output
    verdict = run.store.read(f"runs/{RUN_KEY}/attempts/1.verdict.json").decode()
    assert "PADDLE_TRAINER_ID" in verdict
    assert "hunter2" not in verdict + output
    everything = b"".join(path.read_bytes() for path in Path(run.folder).rglob("*") if path.is_file())
    assert b"hunter2" not in everything
