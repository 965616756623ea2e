"""Exchanges of gradients by real ranks: equal to one process where nothing is left out, learning where something is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlewheel.data.loader import open_loader, to_tensors
from paddlewheel.data.order import sample_hash
from paddlewheel.manifest import read_manifest
from paddlewheel.training.checkpoint import load_weights, open_own
from paddlewheel.training.models import InputSpec, build_model
from paddlewheel.training.seeds import seed_all

from .conftest import run_script

HERE = str(Path(__file__).parent)
# Global batches of 16 over 65 rows: the fifth of an epoch has one row, so that some ranks have none. Ten steps.
ROWS, STEPS = 65, 10
# Linear in the gradient, so that a mean of updates is the update by the mean.
LINEAR = {"training.optimizer": {"name": "sgd", "learning_rate": 0.2}}
SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {"training.sync": "dense"},
    "topk": {"training.sync": "topk", "training.exchange": {"ratio": 0.05}},
    "local_sgd": {"training.sync": "local_sgd", "training.exchange": {"steps": 3}},
    "diloco": {
        "training.sync": "local_sgd",
        "training.exchange": {"steps": 3, "outer_momentum": 0.5, "outer_learning_rate": 0.7},
    },
}
# Two of its tensors are larger than what topk sends whole: 704 and 3168 of 4060 elements.
WIDE = {"model.params": {"embedding": 32, "hidden": [32]}}
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def weights_of(run: Any) -> dict[str, np.ndarray]:
    return load_weights(run.store, run.commit(), averaged=False)


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def steps_of(run: Any, rank: int = 0) -> dict[int, dict[str, Any]]:
    told = [event for event in run.events() if event["event"] == "EndStepEvent" and event["rank"] == rank]
    return {event["step"]: event for event in sorted(told, key=lambda event: (event["step"], event["attempt"]))}


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"training.sync": "dense", "training.optimizer.clip_norm": 0.3}, 1e-6),
        # Eight bits of mantissa: 2**-9 of a gradient of about 0.3, times the rate 0.2, in each of ten steps.
        ({"training.sync": "bf16", "training.optimizer.clip_norm": 0.3}, 2e-3),
        ({"training.sync": "topk", "training.exchange": {"ratio": 1.0}}, 1e-6),
        ({"training.sync": "local_sgd", "training.exchange": {"steps": 1}}, 1e-6),
    ],
    ids=["dense", "bf16", "topk_of_all", "local_sgd_of_one_step"],
)
def test_ten_steps_equal_one_process_when_ranks_exchange(
    new_run: Callable[..., Any], settings: dict[str, Any], bound: float, world_size: int
) -> None:
    clip = {name: value for name, value in settings.items() if name.endswith("clip_norm")}
    alone = new_run("alone", rows=ROWS, overrides={**LINEAR, **clip})
    ranks = new_run("ranks", rows=ROWS, overrides={**LINEAR, **settings})
    assert alone.train(1) == [0], alone.logs(1)
    assert ranks.train(1, world_size=world_size) == [0] * world_size, ranks.logs(1)
    assert ranks.commit().step == STEPS
    assert 0 < distance(weights_of(alone), weights_of(ranks)) <= bound
    one, many = steps_of(alone), steps_of(ranks, world_size - 1)
    assert [many[step]["loss"] for step in many] == pytest.approx([one[step]["loss"] for step in one], rel=10 * bound)
    assert ranks.commit().order == {1: sample_hash(ranks.ids), 2: sample_hash(ranks.ids)}


def test_bytes_sent_are_those_of_the_wire_when_exchanges_differ(new_run: Callable[..., Any]) -> None:
    sent = {}
    for name, settings in {**SETTINGS, "bf16": {"training.sync": "bf16"}}.items():
        run = new_run(name, rows=ROWS, overrides={**LINEAR, **WIDE, **settings})
        assert run.train(1, world_size=2) == [0, 0], run.logs(1)
        sent[name] = [event["sent_bytes"] for event in steps_of(run).values()]
    # 4060 parameters, loss, stop and commit in four bytes each; the parameters in two.
    assert sent["dense"] == [4 * 4060 + 12] * STEPS
    assert sent["bf16"] == [2 * 4060 + 12] * STEPS
    # A twentieth of 704 and of 3168, rounded up, and the 188 other elements: eight bytes an index, four a value.
    assert sent["topk"] == [12 * (36 + 159 + 188) + 12] * STEPS
    # After every third step and the last one the parameters and a weight; three numbers at the round's last exchange.
    assert sent["local_sgd"] == [4 * 4060 + 4 + 12 if step in (3, 6, 9, 10) else 0 for step in range(1, STEPS + 1)]
    assert sent["diloco"] == sent["local_sgd"]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "dense"])
def test_training_is_bit_identical_when_resumed_after_a_kill(new_run: Callable[..., Any], name: str) -> None:
    # Momentum: an optimizer whose state is each rank's own under local SGD.
    common = {"training.optimizer": {"name": "adamw", "learning_rate": 0.01}, "training.average_decay": 0.9, **WIDE}
    common |= {"training.handlers": ["observer:kill"], "training.checkpoint_every_steps": 3, **SETTINGS[name]}
    quiet, killed = (new_run(one, rows=ROWS, overrides=common) for one in ("quiet", "killed"))
    assert quiet.train(1, world_size=2) == [0, 0], quiet.logs(1)
    codes = killed.train(1, world_size=2, KILL_AT="1:8")
    assert -9 in codes, (codes, killed.logs(1))
    assert killed.commit().step in (3, 6)
    assert killed.train(2, world_size=2) == [0, 0], killed.logs(2)
    digests = [[shard.digest for shard in run.commit().manifest.files] for run in (quiet, killed)]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 4  # model, optimizer, and each rank's own
    assert killed.commit().order == quiet.commit().order == {1: sample_hash(quiet.ids), 2: sample_hash(quiet.ids)}


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "dense"])
def test_loss_falls_as_with_dense_when_less_is_sent(new_run: Callable[..., Any], name: str) -> None:
    common = {"training.epochs": 12, "training.optimizer": {"name": "adamw", "learning_rate": 0.02}, **WIDE}
    last = {}
    for one in ("dense", name):
        run = new_run(one, rows=640, overrides={**common, "training.global_batch": 64, **SETTINGS[one]})
        assert run.train(1, world_size=2) == [0, 0], run.logs(1)
        losses = [event["loss"] for event in steps_of(run).values()]
        last[one] = np.mean(losses[-10:])
        assert last[one] < 0.8 * np.mean(losses[:10])
    assert last[name] < last["dense"] + 0.05


def residuals_of(run: Any) -> dict[int, dict[str, np.ndarray]]:
    """By rank and parameter."""
    return {
        rank: {name: arrays[name] for name in arrays if name.startswith("residual.")}
        for rank, arrays in open_own(run.store, run.commit()).items()
    }


def test_residuals_keep_their_sum_when_two_ranks_go_on_as_four(new_run: Callable[..., Any]) -> None:
    settings = {**LINEAR, **WIDE, **SETTINGS["topk"], "training.handlers": ["observer:stop"]}
    run = new_run("grown", rows=ROWS, overrides=settings)
    assert run.train(1, world_size=2, STOP_AT="4", WORK=str(run.work(1))) == [14, 14], run.logs(1)
    before = residuals_of(run)
    run.commit_again(2, "data_parallel", world_size=4)
    after = residuals_of(run)
    assert (sorted(before), sorted(after)) == ([0, 1], [0, 1, 2, 3])
    table = "residual.table.rows_RK.weight"
    assert np.abs(before[0][table] + before[1][table]).max() > 1e-3
    for name in before[0]:
        assert sum(one[name] for one in after.values()) == pytest.approx(before[0][name] + before[1][name], rel=1e-6)
        assert all(one[name].tobytes() == after[0][name].tobytes() for one in after.values())
    assert run.train(3, world_size=4) == [0] * 4, run.logs(3)
    assert run.commit().order == {1: sample_hash(run.ids), 2: sample_hash(run.ids)}


def test_residuals_are_as_before_when_the_norm_of_a_step_is_out_of_line(new_run: Callable[..., Any]) -> None:
    """A step that is left out for its norm leaves what one that is left out for a loss that is no number does."""
    settings = {**LINEAR, **WIDE, **SETTINGS["topk"], "model.name": "spiking:build", "training.epochs": 3}
    settings["training.guard"] = {"norm_factor": 20.0}
    digests, told = {}, {}
    for factor in ("1", "1e4", "nan"):
        run = new_run(factor, rows=64, overrides=settings)
        assert run.train(1, world_size=2, SPIKE=f"all:11:{factor}") == [0, 0], run.logs(1)
        digests[factor] = [shard.digest for shard in run.commit().manifest.files]
        told[factor] = [(one["step"], one["kind"]) for one in run.events() if one["event"] == "AnomalyEvent"]
    assert told == {"1": [], "1e4": [(11, "norm")] * 2, "nan": [(11, "loss")] * 2}
    assert digests["1e4"] == digests["nan"] != digests["1"]


def test_a_step_left_out_has_no_weight_when_ranks_take_the_mean(new_run: Callable[..., Any]) -> None:
    settings = {**LINEAR, **SETTINGS["local_sgd"], "model.name": "spiking:build", "training.epochs": 1}
    run = new_run("run", rows=48, overrides=settings)
    # Rank 1 leaves its second step out: two of its steps count, and all three of rank 0's.
    assert run.train(1, world_size=2, SPIKE="1:2:nan") == [0, 0], run.logs(1)
    loader = open_loader(run.store, read_manifest(run.store, run.uri), seed=5, global_batch=16)
    ends = []
    for rank, steps in ((0, (0, 1, 2)), (1, (0, 2))):
        seed_all(5)
        model = build_model("deepfm", InputSpec(id_sizes=(7, 4, 11), num_dense=3), {"embedding": 4, "hidden": [8]})
        optimizer = paddle.optimizer.SGD(0.2, parameters=model.parameters())
        for step in steps:
            model.loss(to_tensors(loader.batch(1, step, rank, 2))).backward()
            optimizer.step()
            optimizer.clear_grad()
        ends.append({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    means = {name: 0.6 * ends[0][name] + 0.4 * ends[1][name] for name in ends[0] if not name.endswith("offsets_F")}
    weights = weights_of(run)
    assert distance({name: weights[name] for name in means}, means) <= 1e-6


def test_bytes_are_told_when_all_of_a_round_was_passed_over() -> None:
    # Eight parameters and the round's rows, which are none.
    assert run_script("idle_round", world_size=2) == ["36", "36"]
