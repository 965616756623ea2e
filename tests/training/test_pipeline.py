"""Pipelines and meshes by real ranks: the plain model's steps under either schedule; resumed, killed, cut by hand."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.training.checkpoint import load_weights
from paddlewheel.training.strategies.stages import balance

from .conftest import run_script

pytestmark = pytest.mark.slow
RUN_KEY = "0123456789abcdef0123"
HERE = str(Path(__file__).parent)
# 65 rows in global batches of 16: ten steps, the fifth of an epoch with one row; in micro-batches of 3, the last of 1.
ROWS = 65
TEXT: dict[str, Any] = {"id_sizes": (13,) * 6, "num_dense": 0}
GPT = {"model": {"name": "gpt", "params": {"layers": 2, "width": 16, "heads": 4}}, "training.micro_batch": 3}
OWN = {"model": {"name": "staged:build"}, "training.micro_batch": 3}
ADAMW = {"training.optimizer": {"name": "adamw", "learning_rate": 0.002, "weight_decay": 0.1, "clip_norm": 0.5}}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network's and the handlers' modules on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def mesh(ranks: int, **parallel: Any) -> dict[str, Any]:
    return {
        "training.strategy": "mesh",
        "training.parallel": parallel,
        "resources": {"launcher": "local", "ranks_per_node": ranks},
    }


def weights_of(run: Any) -> dict[str, np.ndarray]:
    return load_weights(run.store, run.commit(), averaged=False)


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def digests(run: Any) -> list[str]:
    return [shard.digest for shard in run.commit().manifest.files]


@pytest.mark.parametrize(
    ("ranks", "parallel"),
    [
        (2, {"pipeline": 2}),
        (4, {"pipeline": 4, "schedule": "1f1b"}),
        (4, {"pipeline": 4, "schedule": "gpipe"}),
        (4, {"pipeline": 2}),
        (4, {"pipeline": 2, "tensor": 2}),
    ],
    ids=["2 stages", "4 stages 1f1b", "4 stages gpipe", "2 data x 2 stages", "2 stages x 2 tensor"],
)
def test_ten_steps_are_those_of_one_process_when_a_gpt_is_cut_by_layers(
    new_run: Any, ranks: int, parallel: dict[str, Any]
) -> None:
    alone = new_run("alone", rows=ROWS, overrides=GPT | ADAMW, **TEXT)
    assert alone.train(1) == [0], alone.logs(1)
    cut = new_run("cut", rows=ROWS, overrides=GPT | ADAMW | mesh(ranks, **parallel), **TEXT)
    assert cut.train(1, world_size=ranks) == [0] * ranks, cut.logs(1)
    assert cut.commit().step == alone.commit().step == 10
    assert distance(weights_of(cut), weights_of(alone)) <= 1e-5
    losses = [
        [event["loss"] for event in run.events() if event["event"] == "EndStepEvent" and event["rank"] == 0]
        for run in (alone, cut)
    ]
    assert len(losses[0]) == 10
    assert np.abs(np.subtract(*losses)).max() <= 1e-5


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_running_means_are_those_of_one_process_when_layers_hand_on_two_tensors(new_run: Any, schedule: str) -> None:
    alone = new_run("alone", rows=ROWS, overrides=OWN | ADAMW)
    assert alone.train(1) == [0], alone.logs(1)
    layout = mesh(2, pipeline=2, schedule=schedule, stages=["mix"])
    cut = new_run("cut", rows=ROWS, overrides=OWN | ADAMW | layout)
    assert cut.train(1, world_size=2) == [0, 0], cut.logs(1)
    assert distance(weights_of(cut), weights_of(alone)) <= 1e-5
    assert "norm._mean" in weights_of(cut)


@pytest.mark.parametrize("stages", [["mix"], []], ids=["cut by hand", "cut as measured"])
def test_training_resumes_as_it_was_when_a_stage_is_killed(new_run: Any, stages: list[str]) -> None:
    settings = OWN | ADAMW | mesh(2, pipeline=2, stages=stages) | {"training.handlers": ["observer:kill"]}
    quiet, killed = (new_run(name, rows=ROWS, overrides=settings) for name in ("quiet", "killed"))
    assert quiet.train(1, world_size=2) == [0, 0], quiet.logs(1)
    begin = time.monotonic()
    assert killed.train(1, world_size=2, KILL_AT="1:6") == [13, -signal.SIGKILL], killed.logs(1)
    assert time.monotonic() - begin < 50
    laid = killed.commit().progress["layout"]
    assert laid["stages"][0] == "halves"
    assert len(laid["stages"]) == 2
    assert killed.train(2, world_size=2) == [0, 0], killed.logs(2)
    assert killed.commit().progress["layout"] == laid  # a measured cut holds for all attempts
    if quiet.commit().progress["layout"] == laid:
        assert digests(killed) == digests(quiet)
    else:  # two measurements of two trainings: the norm's squares are added up in another order
        assert not stages
        assert distance(weights_of(killed), weights_of(quiet)) <= 1e-6


@pytest.mark.parametrize(
    "layouts",
    [[(2, mesh(2, pipeline=2)), (1, {}), (4, mesh(4, pipeline=2))], [(1, {}), (4, mesh(4, pipeline=4)), (1, {})]],
    ids=["2 stages, 1, 2x2", "1, 4 stages, 1"],
)
def test_training_goes_on_as_if_nothing_had_changed_when_the_layout_changes(
    new_run: Any, layouts: list[tuple[int, dict[str, Any]]]
) -> None:
    settings = {**OWN, **ADAMW, "training.handlers": ["observer:stop"], "training.average_decay": 0.9}
    quiet = new_run("quiet", rows=ROWS, overrides=settings)
    assert quiet.train(1, STOP_AT="-1", WORK=str(quiet.work(1))) == [0], quiet.logs(1)
    before: Any = None
    for attempt, (ranks, layout) in enumerate(layouts, 1):
        run = new_run(f"run-{attempt}", rows=ROWS, overrides=settings | layout)
        if before is not None:
            for part in ("checkpoints", "attempts"):
                shutil.copytree(
                    before.folder / f"root/runs/{RUN_KEY}/{part}", run.folder / f"root/runs/{RUN_KEY}/{part}"
                )
        last = attempt == len(layouts)
        stop = "-1" if last else str(4 * attempt)
        ends = run.train(attempt, world_size=ranks, STOP_AT=stop, WORK=str(run.work(attempt)))
        assert ends == [0 if last else 14] * ranks, run.logs(attempt)
        before = run
    for averaged in (False, True):
        ours, theirs = (load_weights(run.store, run.commit(), averaged=averaged) for run in (before, quiet))
        # Two data ranks take the running means of their halves of a batch.
        names = [name for name in ours if "._" not in name or "2x2" not in str(layouts)]
        assert distance({name: ours[name] for name in names}, {name: theirs[name] for name in names}) <= 1e-5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (OWN | mesh(2, pipeline=2, stages=["mixed"]), "mixed must be 1 of the layers behind the first, in their order"),
        (OWN | mesh(2, pipeline=2, stages=["halves"]), "halves, mix, norm, tanh, out"),
        (
            OWN | {"model": {"name": "staged:build_loose"}} | mesh(2, pipeline=2),
            "scale of Loose are in none of its layers",
        ),
        ({"training.micro_batch": 4, "model": {"name": "normed:build"}} | mesh(2, pipeline=2), "has no stages"),
    ],
)
def test_ranks_end_with_the_fault_named_when_a_network_cannot_be_cut_so(
    new_run: Any, settings: dict[str, Any], said: str
) -> None:
    run = new_run("cut", rows=ROWS, overrides=settings)
    assert run.train(1, world_size=2) == [11, 11]
    assert said in run.logs(1)


@pytest.mark.parametrize(
    ("schedule", "stages", "held"),
    [("1f1b", 2, ["2", "1"]), ("1f1b", 4, ["4", "3", "2", "1"]), ("gpipe", 2, ["6", "6"])],
)
def test_stages_hold_as_many_micro_batches_as_their_schedule_says_when_there_are_six(
    schedule: str, stages: int, held: list[str]
) -> None:
    assert run_script("alive", schedule, stages, world_size=stages) == held


def test_dearest_stage_is_as_cheap_as_can_be_when_costs_are_uneven() -> None:
    assert balance([1.0, 1.0, 1.0, 5.0, 1.0], 2) == [0, 3]
    assert balance([4.0, 1.0, 1.0, 1.0, 1.0], 2) == [0, 1]
    assert balance([1.0, 2.0, 3.0], 3) == [0, 1, 2]
    assert balance([0.0, 0.0, 0.0], 2) == [0, 1]
