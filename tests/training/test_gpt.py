"""The GPT held against its formula in numpy, and what other rooms rely on: causality, heads by width, rows apart."""

from __future__ import annotations

import fnmatch
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest

from paddlewheel.errors import RecipeError
from paddlewheel.training.models import InputSpec, build_model

VOCABULARY, TOKENS = 11, 6
TEXT = InputSpec(id_sizes=(VOCABULARY,) * TOKENS, num_dense=0)
PARAMS: dict[str, Any] = {"layers": 2, "width": 8, "heads": 2}
IDS_BT = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 0, 0, 0]], np.int32)


def build(seed: int = 3, **params: Any) -> Any:
    paddle.seed(seed)
    model = build_model("gpt", TEXT, PARAMS | params)
    for parameter in model.parameters():  # norms and biases too
        parameter.set_value(parameter + 0.3 * paddle.randn(parameter.shape))
    return model


def batch_of(ids_BT: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(ids_BF=paddle.to_tensor(ids_BT))


def by_hand(weights: dict[str, np.ndarray], ids_T: np.ndarray) -> np.ndarray:
    """logits_TV of one row in float64: each head and each place in a loop."""

    def norm(x_TW: np.ndarray, name: str) -> np.ndarray:
        centred = x_TW - x_TW.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x_TW: np.ndarray, name: str) -> np.ndarray:
        return x_TW @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x_TW = weights["embed.weight"][ids_T] + weights["positions.rows_TW"]
    for block in ("blocks.0", "blocks.1"):
        normed = norm(x_TW, f"{block}.norm1")
        query, key, value = (linear(normed, f"{block}.attention.{name}") for name in ("query", "key", "value"))
        mixed = np.zeros_like(value)
        for head in range(2):
            columns = slice(4 * head, 4 * head + 4)
            for place in range(len(ids_T)):
                scores = key[: place + 1, columns] @ query[place, columns] / 2  # sqrt(4)
                shares = np.exp(scores) / np.exp(scores).sum()
                mixed[place, columns] = shares @ value[: place + 1, columns]
        x_TW = x_TW + linear(mixed, f"{block}.attention.project")
        inner = linear(norm(x_TW, f"{block}.norm2"), f"{block}.mlp.up")
        inner = 0.5 * inner * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        x_TW = x_TW + linear(inner, f"{block}.mlp.down")
    return norm(x_TW, "norm") @ weights["head.weight"]


@pytest.mark.parametrize("fused", [False, True])
def test_gpt_is_its_formula_when_every_head_and_place_is_computed_by_hand(fused: bool) -> None:
    model = build()
    for block in model.blocks:
        block.attention.fused = fused
    weights = {name: tensor.numpy().astype(np.float64) for name, tensor in model.state_dict().items()}
    logits_BTV = model(paddle.to_tensor(IDS_BT)).numpy()
    wanted = np.stack([by_hand(weights, ids_T) for ids_T in IDS_BT])
    np.testing.assert_allclose(logits_BTV, wanted, rtol=1e-4, atol=1e-4)


def test_loss_is_the_mean_over_rows_of_the_tokens_that_are_there() -> None:
    model = build()
    weights = {name: tensor.numpy().astype(np.float64) for name, tensor in model.state_dict().items()}
    means = []
    for ids_T, there in ((IDS_BT[0], 5), (IDS_BT[1], 2)):  # the second row's three zeros are padding
        logits_TV = by_hand(weights, ids_T)
        told = np.log(np.exp(logits_TV).sum(axis=1))[:there] - logits_TV[np.arange(there), ids_T[1 : there + 1]]
        means.append(told.mean())
    assert float(model.loss(batch_of(IDS_BT))) == pytest.approx(np.mean(means), rel=1e-5)


def test_loss_is_log_of_the_vocabulary_when_the_head_is_zero() -> None:
    model = build()
    model.head.weight.set_value(paddle.zeros([8, VOCABULARY]))
    assert float(model.loss(batch_of(IDS_BT))) == pytest.approx(2.397895, abs=1e-6)


def test_loss_of_a_batch_is_the_weighted_mean_of_its_parts_when_rows_are_of_unequal_length() -> None:
    model = build()
    parts = [float(model.loss(batch_of(IDS_BT[place : place + 1]))) for place in (0, 1)]
    assert float(model.loss(batch_of(IDS_BT))) == pytest.approx(sum(parts) / 2, rel=1e-6)


def test_a_row_of_one_token_counts_zero_and_is_no_nan() -> None:
    model = build()
    assert float(model.loss(batch_of(np.array([[7, 0, 0, 0, 0, 0]], np.int32)))) == 0.0


def test_a_later_token_changes_nothing_before_it() -> None:
    model = build()
    changed = IDS_BT.copy()
    changed[:, 4] = 10
    before, after = (model(paddle.to_tensor(ids)).numpy() for ids in (IDS_BT, changed))
    assert (before[:, :4] == after[:, :4]).all()
    assert (before[:, 4:] != after[:, 4:]).any(axis=(1, 2)).all()


def test_an_attention_of_half_of_the_columns_computes_half_of_the_heads() -> None:
    model = build()
    whole = model.blocks[0].attention
    hidden_BTW = paddle.randn([2, TOKENS, 8])
    wanted = whole(hidden_BTW).numpy()
    halves = []
    for columns in (slice(0, 4), slice(4, 8)):
        part = build().blocks[0].attention
        for name in ("query", "key", "value"):
            split = paddle.nn.Linear(8, 4)
            split.weight.set_value(getattr(whole, name).weight[:, columns])
            split.bias.set_value(getattr(whole, name).bias[columns])
            setattr(part, name, split)
        part.project = paddle.nn.Linear(4, 8, bias_attr=False)
        part.project.weight.set_value(whole.project.weight[columns])
        halves.append(part(hidden_BTW).numpy())
    np.testing.assert_allclose(sum(halves) + whole.project.bias.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_stages_hold_every_parameter_once_under_their_own_names_and_give_the_loss() -> None:
    model = build()
    stages = model.stages()
    assert [name for name, _ in stages] == ["embed", "positions", "blocks.0", "blocks.1", "norm", "head"]
    named = [f"{name}.{inner}" for name, layer in stages for inner, _ in layer.named_parameters()]
    assert named == [name for name, _ in model.named_parameters()]
    batch = batch_of(IDS_BT)
    hidden = model.inputs(batch)
    for _, layer in stages:
        hidden = layer(hidden)
    assert float(model.loss_of(hidden, batch)) == float(model.loss(batch))


def test_plan_splits_every_matrix_but_the_positions() -> None:
    model = build()
    plan = model.tensor_plan()
    chosen = {
        name: [split.by for split in plan if fnmatch.fnmatchcase(name, split.layers)]
        for name, layer in model.named_sublayers()
        if isinstance(layer, paddle.nn.Linear | paddle.nn.Embedding)
    }
    block = {"query": "column", "key": "column", "value": "column", "project": "row"}
    wanted = {f"blocks.{place}.attention.{name}": [by] for place in (0, 1) for name, by in block.items()}
    wanted |= {
        f"blocks.{place}.mlp.{name}": [by] for place in (0, 1) for name, by in (("up", "column"), ("down", "row"))
    }
    assert chosen == wanted | {"embed": ["vocabulary"], "head": ["vocabulary"]}


def test_features_that_are_no_sequence_are_told_when_a_gpt_is_built() -> None:
    for spec in (InputSpec(id_sizes=(5, 7), num_dense=0), InputSpec(id_sizes=(5, 5), num_dense=1)):
        with pytest.raises(RecipeError, match="gpt reads the tokens of one sequence"):
            build_model("gpt", spec, {})
    with pytest.raises(RecipeError, match=r"model\.params\.heads: 3 heads do not divide the width 128"):
        build_model("gpt", TEXT, {"heads": 3})


def test_loss_falls_when_a_gpt_is_fitted_to_two_texts() -> None:
    paddle.seed(4)
    model = build_model("gpt", TEXT, PARAMS)
    optimizer = paddle.optimizer.AdamW(0.02, parameters=model.parameters())
    first = float(model.loss(batch_of(IDS_BT)))
    assert first == pytest.approx(math.log(VOCABULARY), abs=0.05)
    for _ in range(60):
        model.loss(batch_of(IDS_BT)).backward()
        optimizer.step()
        optimizer.clear_grad()
    assert float(model.loss(batch_of(IDS_BT))) < 0.05 * first
