"""Real processes killed with -9 in the middle of a night's training: the night still ends well, once, and says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

Run = Callable[..., Any]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parents[2]
LONG = ("training.epochs=30", "training.checkpoint_every_steps=20")
WAIT_SECONDS = 180


@pytest.fixture
def root(tmp_path: Path, landing: Path) -> Path:
    (tmp_path / "root/landing").mkdir(parents=True)
    (tmp_path / "root/landing/flights").symlink_to(landing)
    return tmp_path / "root"


def _processes(module: str, root: Path) -> list[psutil.Process]:
    """Processes that run this module for this root."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if module in line and any(str(root) in part for part in line):
            found.append(process)
    return found


def _wait_for_commit(root: Path, night: subprocess.Popen[str], least: int = 1) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and night.poll() is None:
        if len(list(root.glob("runs/*/checkpoints/*/COMMIT.json"))) >= least:
            return
        time.sleep(0.05)
    output, _ = night.communicate(timeout=10)
    raise AssertionError(f"no commit was seen:\n{output[-4000:]}")


def _result(root: Path) -> dict[str, Any]:
    (path,) = root.glob("runs/*/result.json")
    facts: dict[str, Any] = json.loads(path.read_text())["facts"]
    return facts


def _card(root: Path) -> str:
    (path,) = root.glob("runs/*/cards/*/card.html")
    return path.read_text()


def test_a_killed_rank_resumes_in_place_and_each_sample_counts_once(
    root: Path, small_recipe: tuple[str, ...], paddlewheel: Run
) -> None:
    command = [sys.executable, "-m", "paddlewheel.cli", "run", "--partition", "2013-11-01", "--root", str(root)]
    with subprocess.Popen(
        [*command, *small_recipe, *LONG], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as night:
        _wait_for_commit(root, night)
        ranks = _processes("paddlewheel.training.entry", root)
        assert len(ranks) == 2
        os.kill(ranks[1].pid, signal.SIGKILL)
        output, _ = night.communicate(timeout=WAIT_SECONDS)
    assert night.returncode == 0, output[-4000:]
    facts = _result(root)
    assert facts["order_ok"] is True
    assert [attempt["attempt"] for attempt in facts["attempts"]] == [1, 2]
    resumed = facts["attempts"][1]["resumed_from_step"]
    assert resumed >= 20
    assert f"step {resumed}" in _card(root)
    assert _processes("paddlewheel.training.entry", root) == []


def test_a_killed_command_goes_on_from_the_last_commit_at_another_number_of_ranks(
    root: Path, small_recipe: tuple[str, ...], paddlewheel: Run
) -> None:
    command = [sys.executable, "-m", "paddlewheel.cli", "run", "--partition", "2013-11-01", "--root", str(root)]
    with subprocess.Popen(
        [*command, *small_recipe, *LONG], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as night:
        _wait_for_commit(root, night)
        os.kill(night.pid, signal.SIGKILL)
        night.communicate(timeout=30)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and _processes("paddlewheel.training.entry", root):
        time.sleep(0.1)
    assert _processes("paddlewheel.training.entry", root) == []  # no orphan goes on training
    again = paddlewheel(
        "run", "--partition", "2013-11-01", "--root", root, *small_recipe, *LONG, "resources.ranks_per_node=1"
    )
    assert "champion" in again.out
    facts = _result(root)
    assert facts["order_ok"] is True
    assert [attempt["world_size"] for attempt in facts["attempts"]] == [2, 1]
    assert facts["attempts"][1]["resumed_from_step"] >= 20


def test_a_killed_agent_is_followed_by_one_new_job_of_the_same_task(root: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment |= {"AIRFLOW_HOME": str(tmp_path / "airflow"), "PADDLEWHEEL_ROOT": str(root)}
    airflow = str(PROJECT / "bin/airflow")
    subprocess.run([airflow, "db", "migrate"], env=environment, capture_output=True, check=True)
    conf = {
        "partition": "2013-11-01",
        "data.window.train_days": 8,
        "data.window.holdout_days": 2,
        "training.epochs": 60,
    }
    with subprocess.Popen(
        [airflow, "dags", "test", "nightly_retrain", "2013-11-01", "--conf", json.dumps(conf)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as night:  # fmt: skip
        _wait_for_commit(root, night)
        agents = _processes("paddlewheel.training.agent", root)
        victims = [
            process for process in agents if "paddle_cluster.launchers.local_supervisor" not in process.cmdline()
        ]
        assert len(victims) == 1, [process.cmdline() for process in agents]
        os.kill(victims[0].pid, signal.SIGKILL)
        output, _ = night.communicate(timeout=WAIT_SECONDS * 2)
    assert night.returncode == 0, output[-6000:]
    assert len(list((root / "jobs").iterdir())) == 2  # the killed one and its successor, never more
    facts = _result(root)
    assert facts["order_ok"] is True
    assert len(facts["attempts"]) == 2
    assert facts["attempts"][1]["resumed_from_step"] > 0
