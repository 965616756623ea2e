"""Recomputed layers, fused and compiled networks say and learn what the plain ones do; what it saves is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.base import core

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Training
from paddlewheel.training.acceleration import prepare_model
from paddlewheel.training.models import InputSpec, build_model
from paddlewheel.training.state import model_tensors

TOKENS, VOCABULARY = 32, 20
TEXT = InputSpec(id_sizes=(VOCABULARY,) * TOKENS, num_dense=0)
PICTURES = InputSpec(id_sizes=(), num_dense=3 * 8 * 8)


def training(**settings: Any) -> Training:
    return Training(epochs=1, global_batch=8, **settings)


def build(name: str, seed: int = 3, dropout: float = 0.2) -> tuple[Any, SimpleNamespace]:
    paddle.seed(seed)
    generator = np.random.default_rng(seed)
    if name == "gpt":
        model = build_model("gpt", TEXT, {"layers": 3, "width": 16, "heads": 2, "dropout": dropout})
        ids_BF = generator.integers(1, VOCABULARY, (4, TOKENS)).astype(np.int32)
        return model, SimpleNamespace(ids_BF=paddle.to_tensor(ids_BF))
    model = build_model("resnet18", PICTURES, {"image": [3, 8, 8], "classes": 3})
    dense_BD = generator.normal(size=(4, 192)).astype(np.float32)
    return model, SimpleNamespace(dense_BD=paddle.to_tensor(dense_BD), labels_B=paddle.to_tensor([0.0, 1.0, 2.0, 0.0]))


def learn(model: Any, batch: Any) -> tuple[float, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Loss, gradients and the state after two forward and backward passes with the same random numbers."""
    model.train()
    paddle.seed(7)
    for _ in range(2):
        loss = model.loss(batch)
        loss.backward()
    gradients = {name: one.grad.numpy() for name, one in model.named_parameters() if one.grad is not None}
    return float(loss), gradients, {name: one.numpy() for name, one in model_tensors(model).items()}


@pytest.mark.parametrize(
    ("name", "patterns"),
    [("gpt", ("blocks.*",)), ("gpt", ("embed", "blocks.1.mlp")), ("resnet18", ("stem", "blocks.?"))],
)
def test_gradients_and_running_means_are_the_same_when_layers_are_recomputed(
    name: str, patterns: tuple[str, ...]
) -> None:
    plain, batch = build(name)
    loss, gradients, state = learn(plain, batch)
    other, batch = build(name)
    found_loss, found_gradients, found_state = learn(prepare_model(other, training(recompute=patterns), "cpu"), batch)
    assert found_loss == loss
    assert found_gradients.keys() == gradients.keys()
    for key, gradient in gradients.items():
        np.testing.assert_allclose(found_gradients[key], gradient, rtol=1e-5, atol=1e-7, err_msg=key)
    for key, tensor in state.items():  # dropout drew the same numbers, and batch norms moved twice, not four times
        assert found_state[key].tobytes() == tensor.tobytes(), key


def peak_bytes(*, recompute: tuple[str, ...]) -> int:
    """The most that Paddle held of the host's memory during a step, above what it held before."""
    paddle.seed(1)
    model = build_model("gpt", InputSpec(id_sizes=(50,) * 128, num_dense=0), {"layers": 8, "width": 64, "heads": 4})
    prepare_model(model, training(recompute=recompute), "cpu").train()
    batch = SimpleNamespace(ids_BF=paddle.ones([8, 128], "int32"))
    core.host_memory_stat_reset_peak_value("Allocated", 0)
    before = core.host_memory_stat_current_value("Allocated", 0)
    model.loss(batch).backward()
    return int(core.host_memory_stat_peak_value("Allocated", 0) - before)


def test_a_step_takes_less_than_half_of_the_memory_when_all_blocks_are_recomputed() -> None:
    assert peak_bytes(recompute=("blocks.?",)) < 0.5 * peak_bytes(recompute=())


def test_a_pattern_that_names_no_layer_is_told_with_those_that_are_there() -> None:
    model, _ = build("gpt")
    with pytest.raises(RecipeError, match=r"training\.recompute: no layer is called block\.\*; there are embed, posit"):
        prepare_model(model, training(recompute=("blocks.0", "block.*")), "cpu")


def test_network_without_fused_layers_is_told() -> None:
    with pytest.raises(RecipeError, match=r"training\.fused: no layer of this network has a fused form"):
        prepare_model(build("resnet18")[0], training(fused=True), "cpu")


@pytest.mark.parametrize("name", ["gpt", "resnet18"])
def test_gradients_are_the_same_when_a_network_is_compiled(name: str) -> None:
    plain, batch = build(name, dropout=0.0)
    loss, gradients, state = learn(plain, batch)
    other, _ = build(name, dropout=0.0)
    found_loss, found_gradients, found_state = learn(prepare_model(other, training(to_static=True), "gpu"), batch)
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert (list(found_gradients), list(found_state)) == (list(gradients), list(state))
    for key, gradient in gradients.items():
        np.testing.assert_allclose(found_gradients[key], gradient, rtol=1e-5, atol=1e-6, err_msg=key)


def test_network_says_the_same_when_it_is_fused_and_compiled() -> None:
    plain, batch = build("gpt")
    plain.eval()
    other, _ = build("gpt")
    other = prepare_model(other, training(fused=True, to_static=True), "gpu")
    other.eval()
    assert [block.attention.fused for block in other.blocks] == [True] * 3
    assert float(other.loss(batch)) == pytest.approx(float(plain.loss(batch)), rel=1e-5)


def own_loss(logits_BK: Any, batch: Any) -> Any:
    """Mean square of the logits, times the mean label."""
    return (logits_BK**2).mean() * batch.labels_B.mean()


def test_a_loss_of_the_users_own_takes_the_place_of_the_models() -> None:
    model, batch = build("resnet18")
    model.eval()
    logits_BK = model(model.inputs(batch)).numpy()
    prepare_model(model, training(loss=f"{__name__}:own_loss"), "cpu")
    assert float(model.loss(batch)) == pytest.approx((logits_BK**2).mean() * 0.75, rel=1e-5)
    assert float(model.loss_of(paddle.ones([4, 3]), batch)) == pytest.approx(0.75)


def test_a_loss_of_the_users_own_serves_a_network_of_ids_and_numbers() -> None:
    model = build_model("wide_deep", InputSpec(id_sizes=(3, 5), num_dense=2), {})
    batch = SimpleNamespace(
        ids_BF=paddle.to_tensor([[0, 4], [2, 0]], dtype="int32"),
        dense_BD=paddle.to_tensor([[0.5, -1.0], [0.0, 2.0]]),
        labels_B=paddle.to_tensor([1.0, 0.0]),
    )
    logits_B = model(batch.ids_BF, batch.dense_BD).numpy()
    prepare_model(model, training(loss=f"{__name__}:own_loss"), "cpu")
    assert float(model.loss(batch)) == pytest.approx((logits_B**2).mean() * 0.5, rel=1e-5)


def test_a_loss_that_cannot_be_imported_is_told_by_its_field() -> None:
    with pytest.raises(RecipeError, match=r"training\.loss: 'no\.such:loss' cannot be imported"):
        prepare_model(build("gpt")[0], training(loss="no.such:loss"), "cpu")
