"""Out of memory: real ranks under a limit go on with smaller micro-batches, to the same weights, or say why not."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.manifest import read_manifest
from paddlewheel.recipe import Parallel, Training
from paddlewheel.training.attempts import Attempt
from paddlewheel.training.checkpoint import load_weights
from paddlewheel.training.less_memory import rows_at_once, with_less
from paddlewheel.training.watch import End

HERE = str(Path(__file__).parent)
RUN_KEY = "0123456789abcdef0123"
END = End(kind="memory", message="rank 1: MemoryError: 9 bytes", rank=1)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def attempt(world_size: int, micro_batch: int | None = None) -> Attempt:
    started = "2013-11-02T03:00:00+00:00"
    return Attempt(
        number=1,
        resumed_from_step=0,
        world_size=world_size,
        host="node-1",
        pid=1,
        started=started,
        micro_batch=micro_batch,
    )


@pytest.mark.parametrize(
    ("recipe", "ranks", "recorded", "rows"),
    [(None, 1, None, 100), (None, 3, None, 34), (8, 3, None, 8), (80, 3, None, 34), (8, 3, 4, 4), (None, 3, 50, 34)],
)
def test_rows_at_once_are_those_of_the_attempt_then_of_the_recipe_then_of_a_slice(
    recipe: int | None, ranks: int, recorded: int | None, rows: int
) -> None:
    training = Training(epochs=1, global_batch=100, micro_batch=recipe)
    assert rows_at_once(training, attempt(ranks, recorded)) == rows
    meshed = Training(epochs=1, global_batch=100, micro_batch=recipe, parallel=Parallel(tensor=2, pipeline=2))
    assert rows_at_once(meshed, attempt(4 * ranks, recorded)) == rows


def test_rows_are_halved_upwards_and_one_row_is_the_end() -> None:
    training = Training(epochs=1, global_batch=9)
    end = with_less(END, training, attempt(1), "train")
    assert (end.next_micro_batch, end.retry) == (5, True)
    assert end.message.endswith(
        "the next attempt takes micro-batches of 5 rows instead of 9, and adds up twice as many"
    )
    last = with_less(END, training, attempt(1, 1), "train")
    assert (last.next_micro_batch, last.retry) == (None, False)
    assert "with micro-batches of 1 row already: give each node more memory" in last.message


def test_rows_are_not_halved_when_memory_was_short_before_the_first_step() -> None:
    end = with_less(END, Training(epochs=1, global_batch=9), attempt(1), "load")
    assert (end.next_micro_batch, end.retry) == (None, True)
    assert "before the first step" in end.message


def run_agent(run: Any, *options: str) -> tuple[int, str]:
    """Exit code and output of an agent of two ranks."""
    command = [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root]
    ended = subprocess.run(
        [*command, "--ranks-per-node", "2", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    return ended.returncode, ended.stdout


def read_json(run: Any, name: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(run.store.read(f"runs/{RUN_KEY}/attempts/{name}"))
    return tree


@pytest.mark.slow
def test_ranks_under_a_limit_go_on_with_half_the_rows_until_they_fit(new_run: Any) -> None:
    settings = {
        "model": {"name": "hungry:build", "params": {"limited": True}},
        "training.epochs": 1,
        "training.global_batch": 128,
        "training.optimizer": {"name": "sgd", "learning_rate": 0.01},
    }
    run = new_run("run", rows=256, overrides=settings)
    code, output = run_agent(run, "--max-restarts", "0")
    assert code == 12, output
    assert "MemoryError" in output
    told = "the next attempt takes micro-batches of 32 rows instead of 64, and adds up twice as many"
    assert told in output
    verdict = read_json(run, "1.verdict.json")
    assert (verdict["kind"], verdict["exit_code"], verdict["next_micro_batch"]) == ("memory", 12, 32)
    assert told in verdict["message"]
    # Another agent, as an operator's retry starts it, knows what the one before came to.
    code, output = run_agent(run)
    assert code == 0, output
    attempts = [read_json(run, f"{number}.json")["micro_batch"] for number in range(2, 5) if has(run, number)]
    assert attempts[0] == 32
    assert all(later == earlier // 2 for earlier, later in itertools.pairwise(attempts))
    assert f"micro-batches of {attempts[-1]} rows" in output
    assert read_manifest(run.store, f"runs/{RUN_KEY}/result.json").facts["order_ok"] is True

    settings["model"] = {"name": "hungry:build"}
    free = new_run("free", rows=256, overrides=settings)
    assert free.train(1, world_size=2) == [0, 0], free.logs(1)
    weights, others = (load_weights(one.store, one.commit()) for one in (run, free))
    assert max(float(np.abs(weights[name] - others[name]).max()) for name in weights) <= 1e-6


def has(run: Any, number: int) -> bool:
    return run.store.stat(f"runs/{RUN_KEY}/attempts/{number}.json") is not None


@pytest.mark.slow
def test_the_agent_ends_with_12_and_says_that_no_retry_helps_when_one_row_is_too_much(new_run: Any) -> None:
    run = new_run("run", rows=24, overrides={"training.global_batch": 8, "training.handlers": ["hungry:starve"]})
    code, output = run_agent(run, "--max-restarts", "9")
    assert code == 12, output
    assert [read_json(run, f"{number}.json")["micro_batch"] for number in (1, 2, 3)] == [None, 2, 1]
    assert not has(run, 4)
    verdict = read_json(run, "3.verdict.json")
    assert (verdict["kind"], verdict["retry"], verdict["next_micro_batch"]) == ("memory", False, None)
    assert "with micro-batches of 1 row already" in output


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_micro_batches_add_up_to_the_whole_batch(new_run: Any, world_size: int) -> None:
    linear = {"training.optimizer": {"name": "sgd", "learning_rate": 0.2}}
    whole = new_run("whole", rows=65, overrides=linear)
    parts = new_run("parts", rows=65, overrides={**linear, "training.micro_batch": 3})
    assert whole.train(1) == [0], whole.logs(1)
    assert parts.train(1, world_size=world_size) == [0] * world_size, parts.logs(1)
    weights, others = (load_weights(one.store, one.commit()) for one in (whole, parts))
    assert max(float(np.abs(weights[name] - others[name]).max()) for name in weights) <= 1e-6
    losses = [
        {event["step"]: event["loss"] for event in run.events() if event["event"] == "EndStepEvent"}
        for run in (whole, parts)
    ]
    np.testing.assert_allclose(list(losses[0].values()), [losses[1][step] for step in losses[0]], rtol=1e-6)
