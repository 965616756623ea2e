"""Optimizers by name, their settings, their state; schedules against Paddle's own and against literal values."""

from __future__ import annotations

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.optimizer import lr
from safetensors.numpy import load_file, save_file

from paddlewheel.recipe import Optimizer, Schedule, Training
from paddlewheel.recipe_check_optimizer import PARAMS
from paddlewheel.training.host_copies import HostCopies
from paddlewheel.training.optimizer import CLASSES, build_optimizer, learning_rate, peak_rate
from paddlewheel.training.state import model_tensors, optimizer_tensors, set_tensors, trainable

STEPS, WARMUP, PEAK, FLOOR = 20, 4, 0.8, 0.05
REST = STEPS - WARMUP
# Arguments of Paddle's classes that are fields of the recipe, or other rooms' part (clipping, precision, layouts).
ELSEWHERE = {
    "self", "learning_rate", "parameters", "weight_decay", "lamb_weight_decay", "grad_clip", "multi_precision", "name",
    "apply_decay_param_fun", "exclude_from_weight_decay_fn", "lazy_mode", "use_multi_tensor", "lr_ratio",
    "rescale_grad", "use_lowprecision_moment",
}  # fmt: skip
MORE: dict[str, list[dict[str, Any]]] = {
    "adam": [{"amsgrad": True}],
    "momentum": [{"use_nesterov": True}],
    "rmsprop": [{"centered": True, "momentum": 0.5}],
    "adagrad": [{"initial_accumulator_value": 0.1}],
    "lamb": [{"always_adapt": True}],
}
CHOICES = [(name, params) for name in CLASSES for params in ({}, *MORE.get(name, ()))]


@pytest.mark.parametrize("name", CLASSES)
def test_params_are_those_of_paddles_class(name: str) -> None:
    taken = set(inspect.signature(getattr(paddle.optimizer, CLASSES[name])).parameters)
    assert set(PARAMS[name]) == taken - ELSEWHERE


def small_model(seed: int) -> Any:
    paddle.seed(seed)
    return paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.Tanh(), paddle.nn.Linear(4, 1))


def fit(model: Any, optimizer: Any, steps: range) -> None:
    for step in steps:
        rows_BD = np.random.default_rng(step).normal(size=(5, 3)).astype(np.float32)
        ((model(paddle.to_tensor(rows_BD)) - paddle.to_tensor(rows_BD[:, :1])) ** 2).mean().backward()
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)


@pytest.mark.parametrize(("name", "params"), CHOICES, ids=json.dumps)
def test_next_steps_are_the_same_bits_when_the_state_was_saved_and_loaded(
    name: str, params: dict[str, Any], tmp_path: Path
) -> None:
    recipe = Optimizer(name=name, learning_rate=0.01, weight_decay=0.1, params=params)
    model = small_model(1)
    optimizer = build_optimizer(recipe, trainable(model))
    fit(model, optimizer, range(3))
    save_file(HostCopies().copy("model", model_tensors(model)), tmp_path / "model.safetensors")
    save_file(
        HostCopies().copy("model", optimizer_tensors(optimizer, trainable(model))), tmp_path / "optimizer.safetensors"
    )
    fit(model, optimizer, range(3, 6))

    resumed = small_model(2)
    other = build_optimizer(recipe, trainable(resumed))
    set_tensors(model_tensors(resumed), load_file(tmp_path / "model.safetensors"), "model")
    set_tensors(
        optimizer_tensors(other, trainable(resumed)), load_file(tmp_path / "optimizer.safetensors"), "optimizer"
    )
    fit(resumed, other, range(3, 6))
    for one, two in zip(model.parameters(), resumed.parameters(), strict=True):
        assert one.numpy().tobytes() == two.numpy().tobytes()
    states = [optimizer_tensors(optimizer, trainable(model)), optimizer_tensors(other, trainable(resumed))]
    assert {key: one.numpy().tobytes() for key, one in states[0].items()} == {
        key: one.numpy().tobytes() for key, one in states[1].items()
    }


@pytest.mark.parametrize(
    ("name", "accumulators"),
    [
        ("sgd", set()),
        ("momentum", {"velocity_0"}),
        ("adagrad", {"moment_0"}),
        ("rmsprop", {"momentum_0", "mean_square_0", "mean_grad_0"}),
        ("adamax", {"moment_0", "inf_norm_0", "beta1_pow_acc_0"}),
    ],
)
def test_state_is_named_by_the_model_when_paddle_counts_its_parameters(name: str, accumulators: set[str]) -> None:
    model = small_model(1)
    tensors = optimizer_tensors(build_optimizer(Optimizer(name=name), trainable(model)), trainable(model))
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    kinds = {one.removesuffix("_0") for one in accumulators}
    assert {key.rpartition(".")[0] for key in tensors} == (set(names) if kinds else set())
    assert {key.rpartition(".")[2].removesuffix("_0") for key in tensors} == kinds


def one_step(name: str, *, weight: float, gradient: float, shape: list[int], **settings: Any) -> float:
    layer = paddle.nn.Layer()
    layer.weight = layer.create_parameter(shape, default_initializer=paddle.nn.initializer.Constant(weight))
    optimizer = build_optimizer(Optimizer(name=name, **settings), trainable(layer))
    layer.weight.grad = paddle.full(shape, gradient)
    optimizer.step()
    return float(layer.weight.reshape([-1])[0])


@pytest.mark.parametrize(
    ("name", "params", "wanted"),
    [
        ("sgd", {}, 0.8),  # 1 - 0.1 * 2
        ("momentum", {"use_nesterov": True, "momentum": 0.5}, 0.7),  # 1 - 0.1 * (2 + 0.5 * 2)
        ("adagrad", {"initial_accumulator_value": 5.0, "epsilon": 1e-12}, 1 - 0.2 / 3),  # sqrt(5 + 4) = 3
        ("rmsprop", {"rho": 0.75, "epsilon": 1e-12}, 0.8),  # 1 - 0.1 * 2 / sqrt(0.25 * 4)
        ("adam", {}, 0.9),  # the first step of an Adam is learning_rate * sign
        ("adamw", {}, 0.9),
        ("adamax", {}, 0.9),
    ],
)
def test_first_step_is_that_of_the_formula(name: str, params: dict[str, Any], wanted: float) -> None:
    found = one_step(name, weight=1.0, gradient=2.0, shape=[2, 2], learning_rate=0.1, params=params)
    assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("adamw", [2, 2], 0.95),  # 1 - 0.1 * 0.5, outside of the moments
        ("adamw", [4], 1.0),
        ("lamb", [2, 2], 0.9),  # the decay 0.5 * w, made as long as w: 1 - 0.1
        ("lamb", [4], 1.0),
        ("sgd", [2, 2], 0.95),  # an L2 term, for vectors too
        ("sgd", [4], 0.95),
    ],
)
def test_decay_spares_vectors_where_it_is_decoupled(name: str, shape: list[int], wanted: float) -> None:
    found = one_step(name, weight=1.0, gradient=0.0, shape=shape, learning_rate=0.1, weight_decay=0.5)
    assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("base_batch", "wanted"), [(None, 0.1), (256, 0.4), (1024, 0.1), (2048, 0.05)])
def test_peak_scales_with_the_global_batch_when_a_base_is_given(base_batch: int | None, wanted: float) -> None:
    optimizer = Optimizer(learning_rate=0.1, base_batch=base_batch)
    assert peak_rate(Training(epochs=1, global_batch=1024, optimizer=optimizer)) == pytest.approx(wanted)


def rates(name: str, *, warmup: int = 0, **settings: Any) -> list[float]:
    schedule = Schedule(name=name, warmup_steps=warmup, **settings)
    return [learning_rate(step, total_steps=STEPS, peak=PEAK, schedule=schedule) for step in range(STEPS + 3)]


def paddles(scheduler: Any, count: int) -> list[float]:
    """The first rates of a scheduler of Paddle's."""
    return [scheduler.step() or scheduler.last_lr if place else scheduler.last_lr for place in range(count)]


MILESTONES = (0.5, 0.75)
SCHEDULES: dict[str, tuple[dict[str, Any], Any]] = {
    "cosine": ({"floor": FLOOR}, lambda steps: lr.CosineAnnealingDecay(PEAK, T_max=steps, eta_min=FLOOR)),
    "linear": (
        {"floor": FLOOR},
        lambda steps: lr.LinearLR(PEAK, total_steps=steps, start_factor=1.0, end_factor=FLOOR / PEAK),
    ),
    "polynomial": (
        {"floor": FLOOR, "power": 2.0},
        lambda steps: lr.PolynomialDecay(PEAK, decay_steps=steps, end_lr=FLOOR, power=2.0),
    ),
    "exponential": ({"gamma": 0.1}, lambda steps: lr.ExponentialDecay(PEAK, gamma=0.1 ** (1 / steps))),
    "multistep": (
        {"gamma": 0.1, "milestones": MILESTONES},
        # Milestones are shares of all steps, so Paddle's, behind a warm-up, come so much earlier.
        lambda steps: lr.MultiStepDecay(
            PEAK, milestones=[int(one * STEPS) - (STEPS - steps) for one in MILESTONES], gamma=0.1
        ),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_paddles_scheduler_of_the_same_name(name: str) -> None:
    settings, build = SCHEDULES[name]
    np.testing.assert_allclose(rates(name, **settings)[: STEPS + 1], paddles(build(STEPS), STEPS + 1), rtol=1e-9)


@pytest.mark.parametrize("name", [*SCHEDULES, "constant"])
def test_rates_are_those_of_paddles_warm_up_when_one_comes_before(name: str) -> None:
    settings, build = SCHEDULES.get(name, ({}, lambda _: PEAK))
    scheduler = lr.LinearWarmup(build(REST), warmup_steps=WARMUP, start_lr=0.0, end_lr=PEAK)
    theirs = paddles(scheduler, STEPS + 1)
    ours = rates(name, warmup=WARMUP, **settings)
    # Paddle's first step has the rate 0 and changes nothing; ours begins with its second.
    np.testing.assert_allclose(ours[:WARMUP], [*theirs[1:WARMUP], PEAK], rtol=1e-9)
    np.testing.assert_allclose(ours[WARMUP : STEPS + 1], theirs[WARMUP:], rtol=1e-9)


def test_inverse_sqrt_is_paddles_noam_when_its_peak_is_the_same() -> None:
    noam = lr.NoamDecay(d_model=64, warmup_steps=WARMUP, learning_rate=PEAK * 8 * WARMUP**0.5)
    theirs = paddles(noam, STEPS + 4)
    np.testing.assert_allclose(rates("inverse_sqrt", warmup=WARMUP), theirs[1:], rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "settings", "wanted"),
    [
        ("constant", {}, {0: 0.2, 3: 0.8, 4: 0.8, 20: 0.8}),
        ("cosine", {}, {0: 0.2, 4: 0.8, 12: 0.4, 20: 0.0, 22: 0.0}),
        ("linear", {}, {1: 0.4, 4: 0.8, 8: 0.6, 20: 0.0, 22: 0.0}),
        ("polynomial", {"power": 2.0}, {4: 0.8, 12: 0.2, 20: 0.0}),
        ("exponential", {"gamma": 0.25}, {4: 0.8, 12: 0.4, 20: 0.2, 22: 0.2}),
        ("exponential", {"gamma": 0.25, "floor": 0.3}, {12: 0.4, 20: 0.3}),
        ("multistep", {"milestones": (0.5, 0.75)}, {4: 0.8, 9: 0.8, 10: 0.08, 14: 0.08, 15: 0.008, 20: 0.008}),
        ("inverse_sqrt", {}, {3: 0.8, 15: 0.4}),
    ],
)
def test_rates_are_literal_values(name: str, settings: dict[str, Any], wanted: dict[int, float]) -> None:
    found = rates(name, warmup=WARMUP, **settings)
    assert {step: found[step] for step in wanted} == pytest.approx(wanted)


def test_no_rate_is_negative_or_above_the_peak_when_a_training_is_as_short_as_its_warm_up() -> None:
    names = ("constant", "cosine", "linear", "polynomial", "exponential", "multistep", "inverse_sqrt")
    for name, warmup, total in itertools.product(names, (0, 1, 3), (1, 3)):
        schedule = Schedule(name=name, warmup_steps=warmup, milestones=(0.5,))
        found = [learning_rate(step, total_steps=total, peak=PEAK, schedule=schedule) for step in range(total)]
        assert all(0 <= rate <= PEAK * (1 + 1e-12) for rate in found), (name, warmup, total, found)
        assert found[0] > 0
