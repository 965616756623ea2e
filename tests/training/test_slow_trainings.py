"""Real trainings that are slow on purpose: the diagnosis names the cause, in the log and in the result; and the goodput
of one that died adds up to the clock's time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.manifest import read_manifest
from paddlewheel.training.curve import read_counted, read_curve, read_events, read_machines, read_ranks
from paddlewheel.training.goodput import LOSSES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HERE = str(Path(__file__).parent)
RUN_KEY = "0123456789abcdef0123"
ROWS, STEPS = 300, 38  # 2 epochs of 19 batches of 16


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that recipes name, on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def train(run: Any, *, ranks: int, **environment: str) -> tuple[dict[str, Any], str, float]:
    """Train with the agent: (the result's facts, what was said, the clock's seconds)."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root, "--ranks-per-node",
         str(ranks)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - begun
    assert done.returncode == 0, done.stdout
    return dict(read_manifest(run.store, f"runs/{RUN_KEY}/result.json").facts), done.stdout, seconds


def told(facts: dict[str, Any], kind: str) -> dict[str, Any]:
    """The finding of this kind; a machine with other load may give others beside it."""
    [finding] = [one for one in facts["diagnosis"] if one["kind"] == kind]
    return dict(finding)


def test_a_slow_rank_is_named_with_the_time_that_the_other_waits_for_it(new_run: Any) -> None:
    run = new_run("slow", rows=ROWS, overrides={"model.name": "slow_rank:build"})
    facts, said, _ = train(run, ranks=2)
    finding = told(facts, "straggler")
    # 16 rows a step are 8 a rank: 16 ms on rank 0 and 48 ms on rank 1, and the same few ms of deepfm on both.
    assert finding["figures"]["rank"] == 1
    assert finding["figures"]["seconds"] - finding["figures"]["others_seconds"] == pytest.approx(0.032, abs=0.016)
    assert "most of it in forward" in finding["text"]
    assert f"{finding['text']}; {finding['setting']}" in said


def test_a_slow_reader_is_data_bound(new_run: Any) -> None:
    run = new_run("slow", rows=ROWS, overrides={"model.name": "slow_reader:build"})
    facts, said, seconds = train(run, ranks=1)
    finding = told(facts, "data")
    assert 0.05 <= finding["figures"]["seconds"] < 0.08
    assert "data-bound: a step waits " in said
    goodput = facts["goodput"]
    assert goodput["parts"]["data"] == pytest.approx(STEPS * 0.05, rel=0.5)
    assert goodput["seconds"] == pytest.approx(goodput["steps"] + sum(goodput["losses"].values()), abs=0.01)
    assert goodput["seconds"] <= seconds
    assert f"goodput {goodput['steps'] / goodput['seconds']:.1%} of {goodput['seconds']:,.1f} s; lost: " in said


def test_the_goodput_of_a_training_that_died_is_that_of_the_clock(new_run: Any) -> None:
    run = new_run("dies", rows=ROWS, overrides={"training.handlers": ["pacing:pace", "fatal:die_once_at_step_31"]})
    facts, said, seconds = train(run, ranks=1)
    first, second = (one["resumed_from_step"] for one in facts["attempts"])
    assert first == 0
    assert second in (24, 28)  # the commit of step 28 may be under way still
    goodput, losses = facts["goodput"], facts["goodput"]["losses"]
    assert goodput["seconds"] == pytest.approx(seconds, abs=2.5)  # the agent's own start and end
    # The seconds of the steps since the commit are in the dead attempt's events; its handler slept 50 ms after each.
    lost = [
        event["seconds"]
        for event in read_events(run.store, RUN_KEY, rank=0)
        if event["event"] == "EndStepEvent" and event["attempt"] == 1 and event["step"] > second
    ]
    assert len(lost) == 31 - second
    assert losses["rolled_back"] == pytest.approx(sum(lost), abs=0.002)
    assert losses["other"] >= (STEPS + 31 - second - 1) * 0.05
    assert losses["startup"] > losses["waiting"] > 0
    assert f"lost: {LOSSES[max(losses, key=losses.__getitem__)]}" in said
    assert [len(steps) for steps in read_ranks(run.store, RUN_KEY, read_curve(run.store, RUN_KEY)).values()] == [STEPS]
    looks = read_machines(run.store, RUN_KEY, read_counted(run.store, RUN_KEY))
    assert {figures["rank"] for look in looks for figures in look["ranks"]} == {0}
    assert max(look["step"] for look in looks) <= STEPS
