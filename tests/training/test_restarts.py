"""Restarts in place have an end: real ranks that die at the same step in every attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.training.checkpoint import newest_commit
from paddlewheel.training.curve import read_attempts, read_curve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RUN_KEY = "0123456789abcdef0123"
HERE = str(Path(__file__).parent)


def test_the_agent_gives_up_with_16_when_ranks_die_more_often_than_max_restarts(
    new_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HERE)
    run = new_run("fatal", rows=300, overrides={"training.handlers": ["fatal:die_at_step_6"]})
    command = [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root]
    ended = subprocess.run(
        [*command, "--ranks-per-node", "2", "--max-restarts", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 16, ended.stdout
    assert "resources.max_restarts is 1" in ended.stdout
    for attempt, resumed_from_step in ((1, 0), (2, 4)):
        verdict = json.loads(run.store.read(f"runs/{RUN_KEY}/attempts/{attempt}.verdict.json"))
        cause = (verdict["exit_code"], verdict["kind"], verdict["rank"], verdict["signal"])
        assert cause == (16, "died", 1, 9), verdict
        assert verdict["resumed_from_step"] == resumed_from_step
    assert run.store.stat(f"runs/{RUN_KEY}/attempts/3.json") is None
    assert run.store.stat(f"runs/{RUN_KEY}/result.json") is None
    commit = newest_commit(run.store, RUN_KEY)
    assert commit is not None
    assert commit.step == 4
    # Rank 0 had told of step 5, perhaps of step 6, when its peer was gone: the agent published what it had not.
    assert [record.step for record in read_curve(run.store, RUN_KEY)][:5] == [1, 2, 3, 4, 5]
    assert [attempt.last_step >= 5 for attempt in read_attempts(run.store, RUN_KEY)] == [True, True]
