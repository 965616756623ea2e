"""Ranks killed with -9 at random moments, twenty times: the weights of a quiet run, each sample once an epoch.

KILLS_SEED, which is printed, chooses the ranks and, as shares of a quiet run's time, the moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from paddlewheel.manifest import read_manifest
from paddlewheel.training.checkpoint import newest_commit, open_arrays
from paddlewheel.training.curve import read_curve

pytestmark = [pytest.mark.kills, pytest.mark.timeout(1200)]
RUN_KEY = "0123456789abcdef0123"
HERE = Path(__file__).parent
KILLS, KILLS_A_TRAINING = 20, 5
ROWS, STEPS = 300, 114  # 6 epochs of 19 batches of 16, the last one short
SETTINGS = {
    "training.handlers": ["pacing:pace"],
    "training.epochs": 6,
    "training.checkpoint_every_steps": 3,
    "training.average_decay": 0.9,
}


def start_agent(run: Any) -> subprocess.Popen[str]:
    """The agent as a job runs it, two ranks; it starts them again as often as a training is struck."""
    command = [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*command, "--ranks-per-node", "2", "--max-restarts", str(KILLS_A_TRAINING)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def state_of(run: Any) -> dict[str, bytes]:
    """Weights, running averages and the optimizer's state of the last commit, and what the loop goes on from."""
    commit = newest_commit(run.store, RUN_KEY)
    assert commit is not None
    assert commit.step == STEPS
    state = {"progress": json.dumps(commit.progress, sort_keys=True).encode()}
    for part in ("model", "optimizer"):
        arrays = open_arrays(run.store, commit, part)
        state |= {f"{part} {name}": arrays[name].tobytes() for name in arrays}
    assert any(name.startswith("model average.") for name in state)
    assert any(name.endswith(".moment2") for name in state)
    return state


def strike(agent: subprocess.Popen[str], struck: set[int], chance: random.Random, longest: float) -> bool:
    """Kill one of the ranks that are new since the last strike, some time after they began; False: none came."""
    while agent.poll() is None:
        ranks = [one for one in psutil.Process(agent.pid).children() if one.pid not in struck]
        if len(ranks) == 2:
            time.sleep(chance.uniform(0.0, longest))
            victim = chance.choice(ranks)
            struck.update(rank.pid for rank in ranks)
            try:
                if victim.status() == psutil.STATUS_ZOMBIE:
                    return False
                os.kill(victim.pid, signal.SIGKILL)
            except (ProcessLookupError, psutil.NoSuchProcess):
                return False
            return True
        time.sleep(0.02)
    return False


def test_state_is_that_of_a_quiet_run_when_ranks_are_killed_twenty_times(
    new_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    seed = int(os.environ.get("KILLS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"KILLS_SEED={seed}")
    chance = random.Random(seed)
    quiet = new_run("quiet", rows=ROWS, overrides=SETTINGS)
    begin = time.monotonic()
    agent = start_agent(quiet)
    output, _ = agent.communicate(timeout=300)
    assert agent.returncode == 0, output
    longest = time.monotonic() - begin  # from the start of a process to its end, so that start-ups are struck too
    kills, resumed, number = 0, 0, 0
    while kills < KILLS:
        number += 1
        run = new_run(f"struck-{number}", rows=ROWS, overrides=SETTINGS)
        agent = start_agent(run)
        struck: set[int] = set()
        for _ in range(min(KILLS_A_TRAINING, KILLS - kills)):
            kills += strike(agent, struck, chance, longest)
        output, _ = agent.communicate(timeout=300)
        assert agent.returncode == 0, (seed, number, output)
        facts = read_manifest(run.store, f"runs/{RUN_KEY}/result.json").facts
        assert facts["order_ok"] is True, (seed, number)
        assert all(sums["seen"] == sums["expected"] != "0" for sums in facts["order"].values()), (seed, number)
        assert [record.step for record in read_curve(run.store, RUN_KEY)] == list(range(1, STEPS + 1)), (seed, number)
        assert state_of(run) == state_of(quiet), (seed, number)
        resumed += facts["resumes"]
    assert kills == KILLS
    print(f"{kills} kills in {number} trainings, {resumed} of them gone on from a commit")
    assert resumed > 0
