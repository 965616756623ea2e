"""The networks held against their formulas in numpy, and what their parameters may be."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import pytest

from paddlewheel.errors import CheckpointError, RecipeError
from paddlewheel.recipe import Optimizer
from paddlewheel.training.host_copies import HostCopies
from paddlewheel.training.models import InputSpec, build_model
from paddlewheel.training.optimizer import CLASSES, build_optimizer
from paddlewheel.training.state import Average, set_tensors, trainable

SPEC = InputSpec(id_sizes=(3, 5), num_dense=2)
IDS_BF = np.array([[0, 4], [2, 0], [1, 1]], np.int32)
DENSE_BD = np.array([[0.5, -1.0], [0.0, 2.0], [1.5, 0.25]], np.float32)


@dataclass(frozen=True)
class Rows:
    ids_BF: Any
    dense_BD: Any
    labels_B: Any


def test_deepfm_is_its_formula_when_every_pair_is_summed_by_hand() -> None:
    paddle.seed(1)
    model = build_model("deepfm", SPEC, {"embedding": 4, "hidden": [6]})
    for parameter in model.parameters():
        parameter.set_value(paddle.randn(parameter.shape))
    weights = {name: tensor.numpy().astype(np.float64) for name, tensor in model.state_dict().items()}
    wanted = []
    for ids_F, dense_D in zip(IDS_BF, DENSE_BD, strict=True):
        rows = [ids_F[0], 3 + ids_F[1]]  # the second column's ids lie behind the three of the first
        vectors = [weights["table.rows_RK.weight"][row] for row in rows]
        fields = [*vectors, *(dense_D[:, None] * weights["dense_vectors_DK"])]
        pairs = sum(float(left @ right) for left, right in itertools.combinations(fields, 2))
        wide = sum(weights["wide.ids.rows_RK.weight"][row, 0] for row in rows)
        wide += dense_D @ weights["wide.dense.weight"][:, 0] + weights["wide.dense.bias"][0] + weights["wide.bias"][0]
        inputs = np.concatenate([*vectors, dense_D])
        hidden = np.maximum(0, inputs @ weights["deep.layers.0.weight"] + weights["deep.layers.0.bias"])
        deep = hidden @ weights["deep.layers.2.weight"][:, 0] + weights["deep.layers.2.bias"][0]
        wanted.append(wide + pairs + deep)
    logits_B = model(paddle.to_tensor(IDS_BF), paddle.to_tensor(DENSE_BD))
    assert logits_B.shape == [3]
    np.testing.assert_allclose(logits_B.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_wide_deep_says_even_odds_when_all_weights_are_zero() -> None:
    model = build_model("wide_deep", SPEC, {"embedding": 4, "hidden": [6]})
    for parameter in model.parameters():
        parameter.set_value(paddle.zeros(parameter.shape))
    rows = Rows(paddle.to_tensor(IDS_BF), paddle.to_tensor(DENSE_BD), paddle.to_tensor([0.0, 1.0, 1.0]))
    assert float(model.loss(rows)) == pytest.approx(0.693147, abs=1e-6)


@pytest.mark.parametrize("name", ["wide_deep", "deepfm"])
@pytest.mark.parametrize(("id_sizes", "num_dense"), [((), 2), ((3, 5), 0)])
def test_logits_are_one_a_row_when_there_are_only_ids_or_only_numbers(
    name: str, id_sizes: tuple[int, ...], num_dense: int
) -> None:
    model = build_model(name, InputSpec(id_sizes=id_sizes, num_dense=num_dense), {})
    logits_B = model(paddle.to_tensor(IDS_BF[:, : len(id_sizes)]), paddle.to_tensor(DENSE_BD[:, :num_dense]))
    assert logits_B.shape == [3]


def test_every_wrong_parameter_is_told_when_there_are_several() -> None:
    with pytest.raises(RecipeError) as caught:
        build_model("deepfm", SPEC, {"embeding": 8, "hidden": [0], "dropout": 1.0})
    text = str(caught.value)
    assert "model.params.embeding: deepfm takes dropout, embedding, embedding_dropout, hidden" in text
    assert "did you mean 'embedding'?" in text
    assert "model.params.hidden: [0] is not a list of whole numbers from 1" in text
    assert "model.params.dropout: 1.0 is not a number from 0 and below 1" in text


def test_model_that_cannot_be_imported_is_told_by_its_field() -> None:
    with pytest.raises(RecipeError, match=r"model\.name: 'paddlewheel\.data\.order:nothing' cannot be imported"):
        build_model("paddlewheel.data.order:nothing", SPEC, {})


@pytest.mark.parametrize("name", CLASSES)
def test_loss_falls_when_a_network_is_fitted_to_a_few_rows(name: str) -> None:
    paddle.seed(3)
    model = build_model("deepfm", SPEC, {})
    optimizer = build_optimizer(Optimizer(name=name, learning_rate=0.02), trainable(model))
    rows = Rows(paddle.to_tensor(IDS_BF), paddle.to_tensor(DENSE_BD), paddle.to_tensor([0.0, 1.0, 1.0]))
    first = float(model.loss(rows))
    for _ in range(60):
        model.loss(rows).backward()
        optimizer.step()
        optimizer.clear_grad()
    assert float(model.loss(rows)) < 0.2 * first


def test_average_is_the_exponential_mean_when_its_decay_is_reached() -> None:
    layer = paddle.nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(np.array([[1.0]], np.float32))
    average = Average(layer, decay=0.5)
    layer.weight.set_value(np.array([[3.0]], np.float32))
    average.update(1000)
    average.update(1001)
    assert float(average.tensors()["average.weight"]) == pytest.approx(2.5)


@pytest.mark.parametrize("later", [False, True])
def test_copies_stay_as_they_were_when_the_tensors_go_on(later: bool) -> None:
    tensors = {"matrix": paddle.to_tensor([[1.0, 2.0], [3.0, 4.0]]), "turned": paddle.to_tensor([[1.0, 2.0]]).T}
    tensors["number"] = paddle.to_tensor(5.0)
    host = HostCopies()
    host.copy("model", {name: tensor * 0 - 1 for name, tensor in tensors.items()})  # whose memory is taken again
    copies = host.copy("model", tensors, later=later)
    host.start()
    host.wait()
    for tensor in tensors.values():
        tensor.fill_(9.0)
    assert {name: copy.tolist() for name, copy in copies.items()} == {
        "matrix": [[1.0, 2.0], [3.0, 4.0]],
        "turned": [[1.0], [2.0]],
        "number": 5.0,
    }
    assert all(copy.flags.c_contiguous for copy in copies.values())


def test_nothing_is_overwritten_when_a_commits_arrays_are_of_another_shape_type_or_name() -> None:
    layer = paddle.nn.Linear(2, 1)
    before = layer.weight.numpy().copy()
    arrays = {
        "weight": np.zeros((2, 1), np.float64),
        "bias": np.zeros(2, np.float32),
        "../../escape": np.zeros(1, np.float32),
    }
    with pytest.raises(CheckpointError) as caught:
        set_tensors(dict(layer.state_dict()), arrays, "runs/x")
    assert str(caught.value) == (
        "runs/x does not fit this model and optimizer: ../../escape is not the model's; weight has the type float64, "
        "not float32; bias has the shape [2], not [1]"
    )
    assert layer.weight.numpy().tolist() == before.tolist()
