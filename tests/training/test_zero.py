"""Ranks that each keep a part of the optimizer's state: equal to one process, and their commits to each other's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlewheel.data.order import sample_hash
from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Optimizer
from paddlewheel.recipe_check import load_recipe
from paddlewheel.training.checkpoint import load_weights, open_arrays
from paddlewheel.training.optimizer import build_optimizer
from paddlewheel.training.pieces import Piece
from paddlewheel.training.state import trainable
from paddlewheel.training.strategies.parameter_buffer import ParameterBuffer
from paddlewheel.training.strategies.zero import build_shard, cut_pieces, run_bounds

from .conftest import TREE

HERE = Path(__file__).parent
# Global batches of 16 over 65 rows: the fifth of an epoch has one row, so that some ranks have none. Ten steps.
ROWS, STEPS = 65, 10
ZERO = {"training.strategy": "zero"}
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"learning_rate": 0.01, "weight_decay": 0.1, "clip_norm": 0.3},
    "adam": {"learning_rate": 0.01, "weight_decay": 0.01},
    "sgd": {"learning_rate": 0.2, "clip_norm": 0.3},
    "momentum": {"learning_rate": 0.1, "weight_decay": 0.01, "params": {"use_nesterov": True}},
    "adagrad": {"learning_rate": 0.05},
    "rmsprop": {"learning_rate": 0.01, "params": {"centered": True, "momentum": 0.9}},
    "adamax": {"learning_rate": 0.01},
    "nadam": {"learning_rate": 0.01},
    "radam": {"learning_rate": 0.01},
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)


def optimizer(name: str) -> dict[str, Any]:
    return {"training.optimizer": {"name": name, **KINDS[name]}}


def arrays_of(run: Any) -> dict[str, np.ndarray]:
    """All tensors of the newest commit, averages and the optimizer's too."""
    commit = run.commit()
    parts = [open_arrays(run.store, commit, part) for part in ("model", "optimizer")]
    return {name: part[name] for part in parts for name in part}


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    assert one.keys() == other.keys()
    return all(one[name].shape == other[name].shape and one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "world_size"), [("adamw", 2), ("adamw", 3), ("momentum", 2), *((name, 4) for name in KINDS)]
)
def test_ten_steps_equal_one_process_when_each_rank_updates_its_part(
    new_run: Callable[..., Any], name: str, world_size: int
) -> None:
    common = {**optimizer(name), "training.average_decay": 0.9}
    alone, ranks = new_run("alone", rows=ROWS, overrides=common), new_run("ranks", rows=ROWS, overrides=common | ZERO)
    assert alone.train(1) == [0], alone.logs(1)
    assert ranks.train(1, world_size=world_size) == [0] * world_size, ranks.logs(1)
    assert (ranks.commit().step, ranks.commit().order) == (STEPS, alone.commit().order)
    for averaged in (False, True):
        one, many = (load_weights(run.store, run.commit(), averaged=averaged) for run in (alone, ranks))
        assert 0 < distance(one, many) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sync"), [("adamw", "dense"), ("momentum", "topk"), ("adam", "bf16")])
def test_weights_and_state_are_those_of_data_parallel_to_the_bit(
    new_run: Callable[..., Any], name: str, sync: str
) -> None:
    common = {**optimizer(name), "training.average_decay": 0.9, "training.sync": sync}
    plain, zero = (new_run(one, rows=ROWS, overrides=common | more) for one, more in (("plain", {}), ("zero", ZERO)))
    for run in (plain, zero):
        assert run.train(1, world_size=3) == [0] * 3, run.logs(1)
    one, other = arrays_of(plain), arrays_of(zero)
    assert any(key.startswith("average.") for key in one)
    # Beside what data parallel sends, each rank its run of the parameters, each of which begins at a multiple of 64.
    sent = {}
    for run in (plain, zero):
        told = [one for one in run.events() if one["event"] == "EndStepEvent"]
        sent[run.folder.name] = [sum(one["sent_bytes"] for one in told if one["step"] == step) for step in (1, STEPS)]
    assert [more - less for less, more in zip(sent["plain"], sent["zero"], strict=True)] == [4 * 768] * 2
    assert [more - less for less, more in zip(sent["plain"], sent["zero"], strict=True)] == [4 * 768] * 2
    assert same_bits(one, other)


@pytest.mark.slow
def test_arrays_are_the_same_when_a_commit_goes_through_strategies_and_numbers_of_ranks(
    new_run: Callable[..., Any],
) -> None:
    run = new_run("run", rows=ROWS, overrides={**optimizer("adamw"), **ZERO, "training.average_decay": 0.9})
    assert run.train(1, world_size=4) == [0] * 4, run.logs(1)
    saved = arrays_of(run)
    count = sum(array.size for name, array in saved.items() if name.endswith(".moment1"))
    tensors = sum(name.endswith(".moment1") for name in saved)
    held = {}
    for attempt, (strategy, world_size) in enumerate(
        [("zero", 4), ("zero", 2), ("zero", 1), ("data_parallel", 2), ("zero", 3), ("single", 1), ("zero", 2)], 2
    ):
        held[strategy, world_size] = run.commit_again(attempt, strategy, world_size=world_size)
        assert (run.commit().attempt, run.commit().world_size) == (attempt, world_size)
        assert same_bits(arrays_of(run), saved), (strategy, world_size)
    # Two moments in four bytes each of every element, and two powers of betas of every tensor.
    assert held["data_parallel", 2] == [8 * count + 8 * tensors] * 2
    for world_size in (2, 3, 4):
        bytes_R = np.array(held["zero", world_size])
        assert (bytes_R <= 8 * (count // world_size + 1) + 8 * tensors).all()
        # Each tensor's powers stand on as many ranks as it is cut for: one more for each of the cuts at the most.
        assert 8 * count + 8 * tensors <= bytes_R.sum() <= 8 * count + 8 * (tensors + world_size - 1)


@pytest.mark.slow
def test_training_is_bit_identical_when_resumed_after_a_kill(new_run: Callable[..., Any]) -> None:
    lively = {
        **optimizer("adamw"),
        **ZERO,
        "model.params": {"embedding": 4, "hidden": [8], "dropout": 0.3},
        "training.average_decay": 0.9,
        "training.handlers": ["observer:kill"],
    }
    quiet, killed = (new_run(one, rows=ROWS, overrides=lively) for one in ("quiet", "killed"))
    assert quiet.train(1, world_size=3) == [0] * 3, quiet.logs(1)
    codes = killed.train(1, world_size=3, KILL_AT="2:7")
    assert -9 in codes, (codes, killed.logs(1))
    assert killed.commit().step == 4
    assert killed.train(2, world_size=3) == [0] * 3, killed.logs(2)
    digests = [[shard.digest for shard in run.commit().manifest.files] for run in (quiet, killed)]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 4  # the model, and each rank's part of the optimizer's state
    assert killed.commit().order == {1: sample_hash(quiet.ids), 2: sample_hash(quiet.ids)}


@pytest.mark.slow
def test_all_ranks_hold_the_same_when_a_step_is_left_out(new_run: Callable[..., Any], tmp_path: Path) -> None:
    common = {"model.name": "digested:build", **optimizer("adamw")}
    told = {}
    for name, more in (("plain", {}), ("zero", ZERO)):
        run = new_run(name, rows=64, overrides=common | more, poisoned=[20])
        (tmp_path / f"digests-{name}").mkdir()
        codes = run.train(1, world_size=4, DIGESTS=str(tmp_path / f"digests-{name}"))
        assert codes == [0] * 4, run.logs(1)
        assert run.commit().progress["guard"]["skipped"] == 2
        told[name] = [(tmp_path / f"digests-{name}" / f"{rank}.txt").read_text().split() for rank in range(4)]
    [steps] = {tuple(one) for one in told["zero"]}
    assert len(steps) == 8
    # A step that is left out, one in each epoch, leaves the parameters; the last step's outcome is not among them.
    assert len(set(steps)) in (6, 7)
    assert told["zero"] == told["plain"]


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, None], ids=["to_a_commit", "to_the_start"])
def test_state_goes_back_in_process_as_under_data_parallel(new_run: Callable[..., Any], every: int | None) -> None:
    common = {
        **optimizer("adamw"),
        "training.guard": {"max_skips": 0, "max_rollbacks": 2},
        "training.checkpoint_every_steps": every,
        "training.average_decay": 0.9,
    }
    plain, zero = (
        new_run(one, rows=ROWS, overrides=common | more, poisoned=[20]) for one, more in (("plain", {}), ("zero", ZERO))
    )
    for run in (plain, zero):
        assert run.train(1, world_size=2) == [0, 0], run.logs(1)
        assert run.commit().progress["guard"]["rollbacks"] == 2
    assert same_bits(arrays_of(plain), arrays_of(zero))


def test_lengths_differ_by_one_at_the_most_when_elements_do_not_divide() -> None:
    assert run_bounds(10, 4) == [0, 2, 5, 7, 10]
    assert run_bounds(3, 4) == [0, 0, 1, 2, 3]


def test_weights_decay_and_vectors_do_not_when_all_shards_are_flat() -> None:
    layer = paddle.nn.Linear(3, 2, paddle.ParamAttr(learning_rate=0.5))
    named = trainable(layer)
    for _, parameter in named:
        parameter.set_value(paddle.ones_like(parameter))
    pieces = cut_pieces(named, 2, 7)
    assert pieces == {
        "weight": Piece(shape=(3, 2), start=(2,), size=(4,)),
        "bias": Piece(shape=(2,), start=(0,), size=(1,)),
    }
    buffer = ParameterBuffer([parameter for _, parameter in named])
    assert buffer.starts == [0, 64]
    owned = []
    for (name, parameter), start in zip(named, (2, 64), strict=True):
        tensor = build_shard(parameter, pieces[name], buffer, start).tensor
        tensor.grad = paddle.zeros_like(tensor)
        owned.append((name, tensor))
    recipe = Optimizer(name="adamw", learning_rate=0.1, weight_decay=0.5)
    build_optimizer(recipe, owned, whole_axes={"weight": 2, "bias": 1}).step()
    # 1 - 0.5 (the layer's own factor) * 0.1 * 0.5; nothing but decay moves where there is no gradient.
    assert layer.weight.numpy().reshape(-1) == pytest.approx([1, 1, 0.975, 0.975, 0.975, 0.975])
    assert layer.bias.numpy() == pytest.approx([1, 1])


@pytest.mark.parametrize("name", KINDS)
def test_parts_are_updated_as_the_whole_to_the_bit_when_a_kernel_rounds_evenly(name: str) -> None:
    generator = np.random.default_rng(0)
    start_N, gradients_SN = generator.normal(size=10007).astype(np.float32), generator.normal(size=(10, 10007))
    recipe, ends = Optimizer(name=name, **KINDS[name]), []
    for cuts in ([0, 10007], [0, 3, 3335, 3336, 6671, 10007]):
        bounds = list(itertools.pairwise(cuts))
        fills = [paddle.nn.initializer.Assign(start_N[begin:end]) for begin, end in bounds]
        parts = [
            paddle.create_parameter([end - begin], "float32", default_initializer=fill)
            for (begin, end), fill in zip(bounds, fills, strict=True)
        ]
        owned = [(str(place), part) for place, part in enumerate(parts)]
        optimizer = build_optimizer(recipe, owned, whole_axes={name: 2 for name, _ in owned})
        for gradient_N in gradients_SN.astype(np.float32):
            for part, (begin, end) in zip(parts, bounds, strict=True):
                part.grad = paddle.to_tensor(gradient_N[begin:end])
            optimizer.step()
        ends.append(np.concatenate([part.numpy() for part in parts]))
    assert np.abs(ends[0] - start_N).max() > 1e-3
    assert np.abs(ends[0] - ends[1]).max() <= (0 if name in ("adam", "adamw", "sgd", "momentum", "adamax") else 1e-6)


def test_values_are_taken_in_when_a_parameter_was_given_memory_of_its_own() -> None:
    layer = paddle.nn.Linear(2, 2)
    buffer = ParameterBuffer(layer.parameters())
    paddle.full([2, 2], 3.0)._share_buffer_to(layer.weight)
    buffer.take_in()
    assert buffer.run(0, 4).numpy().tolist() == [3.0] * 4
    buffer.run(0, 4).zero_()
    assert layer.weight.numpy().tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"training.optimizer.name": "lamb"}, "training.optimizer.name: 'lamb': needs norms of whole tensors"),
        ({"training.sync": "local_sgd"}, "training.sync: 'local_sgd': has each rank update all parameters"),
        ({"training.parallel.zero_stage": 2}, "zero_stage: 2: a CPU has stage 1 alone"),
        (
            {"training.parallel.zero_stage": 3, "resources.device": "gpu"},
            "zero_stage: 3: stages 2 and 3 are not in this version; use 1",
        ),
    ],
)
def test_what_parts_of_tensors_do_not_allow_is_refused_when_the_recipe_is_read(
    overrides: dict[str, Any], words: str
) -> None:
    load_recipe(TREE, ZERO)
    with pytest.raises(RecipeError) as told:
        load_recipe(TREE, ZERO | overrides)
    assert words in str(told.value)
