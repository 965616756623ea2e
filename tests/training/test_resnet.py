"""ResNets held against Paddle's own with the same weights, and what their parameters may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.vision.models import resnet18, resnet50

from paddlewheel.errors import RecipeError
from paddlewheel.training.models import InputSpec, build_model

NUMBERS = InputSpec(id_sizes=(), num_dense=3 * 16 * 16)
PARAMS: dict[str, Any] = {"image": [3, 16, 16], "classes": 7}


def copy_weights(target: paddle.nn.Layer, source: paddle.nn.Layer) -> None:
    """Weights in the order of their making, which is that of the layers in both."""
    ours, theirs = list(target.state_dict().values()), list(source.state_dict().values())
    assert [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs]
    for our, their in zip(ours, theirs, strict=True):
        our.set_value(their)


@pytest.mark.parametrize(("name", "reference"), [("resnet18", resnet18), ("resnet50", resnet50)])
@pytest.mark.parametrize("stem", ["small", "large"])
def test_resnet_says_what_paddles_own_says_when_the_weights_are_the_same(name: str, reference: Any, stem: str) -> None:
    paddle.seed(1)
    theirs = reference(num_classes=7)
    if stem == "small":
        theirs.conv1 = paddle.nn.Conv2D(3, 64, 3, padding=1, bias_attr=False)
        theirs.maxpool = paddle.nn.Identity()
    ours = build_model(name, NUMBERS, PARAMS | {"stem": stem})
    copy_weights(ours, theirs)
    images_BCHW = paddle.randn([2, 3, 16, 16])
    for train in (True, False):  # first the means of the batch, then the running ones
        ours.train() if train else ours.eval()
        theirs.train() if train else theirs.eval()
        np.testing.assert_allclose(ours(images_BCHW).numpy(), theirs(images_BCHW).numpy(), rtol=1e-4, atol=1e-4)


def test_loss_is_that_of_its_stages_one_after_the_other_when_it_is_cut_by_layers() -> None:
    paddle.seed(2)
    model = build_model("resnet18", NUMBERS, PARAMS)
    model.eval()
    batch = SimpleNamespace(dense_BD=paddle.randn([3, 768]), labels_B=paddle.to_tensor([0.0, 6.0, 2.0]))
    hidden = model.inputs(batch)
    for _, layer in model.stages():
        hidden = layer(hidden)
    logits_BK = hidden.numpy().astype(np.float64)
    wanted = np.log(np.exp(logits_BK).sum(axis=1)) - logits_BK[[0, 1, 2], [0, 6, 2]]
    assert float(model.loss(batch)) == pytest.approx(wanted.mean(), rel=1e-5)
    assert float(model.loss_of(hidden, batch)) == float(model.loss(batch))


def test_stages_hold_every_parameter_once_under_their_own_names() -> None:
    model = build_model("resnet18", NUMBERS, PARAMS)
    found = [f"{name}.{inner}" for name, layer in model.stages() for inner, _ in layer.named_parameters()]
    assert found == [name for name, _ in model.named_parameters()]


def test_numbers_of_a_row_are_its_picture_by_channels_then_rows_then_columns() -> None:
    model = build_model("resnet18", InputSpec(id_sizes=(), num_dense=12), {"image": [3, 2, 2]})
    batch = SimpleNamespace(dense_BD=paddle.arange(12, dtype="float32").reshape([1, 12]))
    assert model.inputs(batch).numpy().tolist() == [[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]]


def test_smoothed_loss_spreads_a_share_over_all_classes() -> None:
    model = build_model("resnet18", NUMBERS, PARAMS | {"classes": 2, "label_smoothing": 0.1})
    logits_BK = paddle.to_tensor([[np.log(3.0), 0.0]], dtype="float32")  # probabilities 3/4 and 1/4
    batch = SimpleNamespace(labels_B=paddle.to_tensor([0.0]))
    # -(0.95 log(3/4) + 0.05 log(1/4))
    assert float(model.loss_of(logits_BK, batch)) == pytest.approx(0.342612, abs=1e-6)


def test_pictures_that_are_not_the_features_numbers_are_told() -> None:
    with pytest.raises(RecipeError, match=r"\[1, 28, 28\] are 784 numbers a row; the features give 768 numbers and 0"):
        build_model("resnet18", NUMBERS, {"image": [1, 28, 28]})


def test_every_wrong_parameter_is_told_when_a_resnet_is_built() -> None:
    with pytest.raises(RecipeError) as caught:
        build_model("resnet50", NUMBERS, {"image": [3, 16], "classes": 1, "stem": "tiny", "label_smoothing": 1})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "model.params.image",
        "model.params.classes",
        "model.params.stem",
        "model.params.label_smoothing",
    ]
    with pytest.raises(RecipeError, match=r"model\.params\.image: resnet18 needs the pictures' \[channels, height"):
        build_model("resnet18", NUMBERS, {})
