"""Tensor parallelism by real ranks: the plain model's gradients and steps, whatever is split; plans that cannot be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.training.checkpoint import load_weights, open_arrays

RUN_KEY = "0123456789abcdef0123"
HERE = str(Path(__file__).parent)
pytestmark = pytest.mark.slow
# 65 rows in global batches of 16: ten steps, the fifth of an epoch with one row. SGD's update is the gradient itself.
ROWS = 65
TEXT: dict[str, Any] = {"id_sizes": (13,) * 6, "num_dense": 0}
GPT = {"model": {"name": "gpt", "params": {"layers": 2, "width": 16, "heads": 4}}}
SGD = {"training.optimizer": {"name": "sgd", "learning_rate": 0.2, "clip_norm": 0.5}}
ADAMW = {"training.optimizer": {"name": "adamw", "learning_rate": 0.002, "weight_decay": 0.1, "clip_norm": 0.5}}
WIDE_PLAN = [
    {"layers": "table.rows_RK", "by": "vocabulary"},
    {"layers": "wide.ids.rows_RK", "by": "vocabulary"},
    {"layers": "deep.layers.0", "by": "column"},
    {"layers": "deep.layers.2", "by": "row"},
]
DATA = {"resources": {"launcher": "local", "ranks_per_node": 2}}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def tensor(ranks: int, parts: int, **parallel: Any) -> dict[str, Any]:
    return {
        "training.strategy": "tensor_parallel",
        "training.parallel": {"tensor": parts, **parallel},
        "resources": {"launcher": "local", "ranks_per_node": ranks},
    }


def weights_of(run: Any) -> dict[str, np.ndarray]:
    return load_weights(run.store, run.commit(), averaged=False)


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.parametrize(
    ("ranks", "parts", "optimizer"),
    [(2, 2, SGD), (4, 4, ADAMW), (4, 2, ADAMW)],
    ids=["2 tensor", "4 tensor", "2 data x 2 tensor"],
)
def test_ten_steps_are_those_of_one_process_when_a_gpt_is_split_by_its_own_plan(
    new_run: Any, ranks: int, parts: int, optimizer: dict[str, Any]
) -> None:
    settings = {**GPT, **optimizer, "training.micro_batch": 3}
    alone = new_run("alone", rows=ROWS, overrides=settings, **TEXT)
    assert alone.train(1) == [0], alone.logs(1)
    split = new_run("split", rows=ROWS, overrides=settings | tensor(ranks, parts), **TEXT)
    assert split.train(1, world_size=ranks) == [0] * ranks, split.logs(1)
    assert split.commit().step == alone.commit().step == 10
    assert distance(weights_of(split), weights_of(alone)) <= 1e-5
    losses = [
        [event["loss"] for event in run.events() if event["event"] == "EndStepEvent" and event["rank"] == 0]
        for run in (alone, split)
    ]
    assert len(losses[0]) == 10
    assert np.abs(np.subtract(*losses)).max() <= 1e-5


def test_ten_steps_are_those_of_one_process_when_tables_and_a_perceptron_are_split_by_the_recipe(new_run: Any) -> None:
    settings = {"model": {"name": "wide_deep", "params": {"embedding": 4, "hidden": [8, 6]}}, **SGD}
    alone = new_run("alone", rows=ROWS, overrides=settings)
    assert alone.train(1) == [0], alone.logs(1)
    split = new_run("split", rows=ROWS, overrides=settings | tensor(2, 2, plan=WIDE_PLAN))
    assert split.train(1, world_size=2) == [0, 0], split.logs(1)
    assert distance(weights_of(split), weights_of(alone)) <= 1e-5


def test_pieces_are_half_of_a_layer_when_two_ranks_commit(new_run: Any) -> None:
    run = new_run("split", rows=ROWS, overrides=GPT | ADAMW | tensor(2, 2), **TEXT)
    assert run.train(1, world_size=2) == [0, 0], run.logs(1)
    told = {
        (shard.facts["part"], shard.facts["rank"]): shard.facts.get("pieces", {})
        for shard in run.commit().manifest.files
    }
    query = "blocks.0.attention.query.weight"
    assert told["model", 0][query] == {"shape": [16, 16], "start": [0, 0], "size": [16, 8]}
    assert told["model", 1][query] == {"shape": [16, 16], "start": [0, 8], "size": [16, 8]}
    assert told["model", 1]["embed.weight"] == {"shape": [13, 16], "start": [6, 0], "size": [7, 16]}
    assert told["optimizer", 1][f"{query}.moment1"] == told["model", 1][query]
    assert f"{query}.beta1_pow_acc" in open_arrays(run.store, run.commit(), "optimizer")


@pytest.mark.parametrize(
    "layouts",
    [
        [(4, tensor(4, 2)), (2, tensor(2, 2)), (1, {})],
        [(2, DATA), (2, tensor(2, 2)), (2, DATA)],
        [(1, {}), (4, tensor(4, 4)), (1, {})],
    ],
    ids=["2x2, 2, 1", "data, tensor, data", "1, 4, 1"],
)
def test_training_goes_on_as_if_nothing_had_changed_when_ranks_and_strategy_change(
    new_run: Any, layouts: list[tuple[int, dict[str, Any]]]
) -> None:
    """Each layout trains from the commit of the one before, stopped after steps 4 and 8, to the end at 10."""
    settings = {**GPT, **ADAMW, "training.handlers": ["observer:stop"], "training.average_decay": 0.9}
    quiet = new_run("quiet", rows=ROWS, overrides=settings, **TEXT)
    assert quiet.train(1, STOP_AT="-1", WORK=str(quiet.work(1))) == [0], quiet.logs(1)
    before = None
    for attempt, (ranks, layout) in enumerate(layouts, 1):
        run = new_run(f"run-{attempt}", rows=ROWS, overrides=settings | layout, **TEXT)
        if before is not None:
            for part in ("checkpoints", "attempts"):
                shutil.copytree(
                    before.folder / f"root/runs/{RUN_KEY}/{part}", run.folder / f"root/runs/{RUN_KEY}/{part}"
                )
        last = attempt == len(layouts)
        ends = run.train(
            attempt, world_size=ranks, STOP_AT="-1" if last else str(4 * attempt), WORK=str(run.work(attempt))
        )
        assert ends == [0 if last else 14] * ranks, run.logs(attempt)
        if before is not None:
            resumed = {event["step"] for event in run.events() if event["event"] == "ResumeEvent"}
            assert resumed == {before.commit().step}
        before = run
    assert before is not None
    assert before.commit().step == 10
    for averaged in (False, True):
        ours, theirs = (load_weights(run.store, run.commit(), averaged=averaged) for run in (before, quiet))
        assert distance(ours, theirs) <= 1e-5


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ([{"layers": "tabel.*", "by": "vocabulary"}], "no layer is called 'tabel.*'"),
        ([{"layers": "deep.layers.1", "by": "row"}], "deep.layers.1, a ReLU, cannot be split by row"),
        ([{"layers": "deep.layers.0", "by": "column"}], "the split network is not the plain one"),
        ([{"layers": "deep.layers.4", "by": "vocabulary"}], "a side of 1, which 2 ranks do not divide"),
        ([{"layers": "deep.layers.2", "by": "vocabulary"}], "only where the network has the layer cross_entropy"),
        ([{"layers": "wide.dense", "by": "row"}], "a side of 3, which 2 ranks do not divide"),
    ],
)
def test_ranks_end_with_the_plan_named_when_it_cannot_be_followed(
    new_run: Any, plan: list[dict[str, Any]], said: str
) -> None:
    settings = {"model": {"name": "wide_deep", "params": {"embedding": 4, "hidden": [8, 6]}}, **SGD}
    run = new_run("split", rows=ROWS, overrides=settings | tensor(2, 2, plan=plan))
    codes = run.train(1, world_size=2)
    assert codes == [11, 11]
    assert said in run.logs(1)
