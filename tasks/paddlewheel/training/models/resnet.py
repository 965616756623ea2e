"""ResNet-18 and ResNet-50 (He and others 2016), with the stride of a bottleneck in its 3x3 convolution.

Axes: B rows, C channels, H height, W width, D numbers of a row (C * H * W, in this order), K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paddle import nn
from paddle.nn import functional

from paddlewheel.errors import RecipeError
from paddlewheel.training.models import InputSpec, check_params, is_classes, is_rate
from paddlewheel.training.models.losses import CrossEntropy


def is_image(value: Any) -> bool:
    """[channels, height, width] in whole numbers from 1"""
    return isinstance(value, list | tuple) and len(value) == 3 and all(type(one) is int and one >= 1 for one in value)


def is_stem(value: Any) -> bool:
    """small (3x3 convolution, for pictures of about 32x32) or large (7x7 of stride 2, then pooling, for 224x224)"""
    return value in ("small", "large")


PARAMS = {"image": is_image, "classes": is_classes, "stem": is_stem, "label_smoothing": is_rate}


class ConvNorm(nn.Layer):
    """Convolution that keeps height and width (but for its stride), then batch norm."""

    def __init__(self, channels_in: int, channels_out: int, size: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2D(channels_in, channels_out, size, stride=stride, padding=size // 2, bias_attr=False)
        self.norm = nn.BatchNorm2D(channels_out)

    def forward(self, images_BCHW: Any) -> Any:
        return self.norm(self.conv(images_BCHW))


class Basic(nn.Layer):
    """Two 3x3 convolutions beside a shortcut."""

    widening = 1

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(channels_in, channels, 3, stride=stride)
        self.second = ConvNorm(channels, channels, 3)
        self.shortcut = build_shortcut(channels_in, channels, stride)

    def forward(self, images_BCHW: Any) -> Any:
        hidden = functional.relu(self.first(images_BCHW))
        return functional.relu(self.second(hidden) + self.shortcut(images_BCHW))


class Bottleneck(nn.Layer):
    """1x1 to fewer channels, 3x3, and 1x1 back to four times as many, beside a shortcut."""

    widening = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(channels_in, channels, 1)
        self.second = ConvNorm(channels, channels, 3, stride=stride)
        self.third = ConvNorm(channels, channels * self.widening, 1)
        self.shortcut = build_shortcut(channels_in, channels * self.widening, stride)

    def forward(self, images_BCHW: Any) -> Any:
        hidden = functional.relu(self.first(images_BCHW))
        hidden = functional.relu(self.second(hidden))
        return functional.relu(self.third(hidden) + self.shortcut(images_BCHW))


def build_shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Layer:
    """What lies beside a block: nothing, or a 1x1 convolution where its shape changes."""
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    return ConvNorm(channels_in, channels_out, 1, stride=stride)


class Stem(nn.Layer):
    """The first 64 channels; the large one also divides height and width by four."""

    def __init__(self, channels: int, kind: str) -> None:
        super().__init__()
        self.conv_norm = ConvNorm(channels, 64, 3) if kind == "small" else ConvNorm(channels, 64, 7, stride=2)
        self.pool = nn.MaxPool2D(3, stride=2, padding=1) if kind == "large" else nn.Identity()

    def forward(self, images_BCHW: Any) -> Any:
        return self.pool(functional.relu(self.conv_norm(images_BCHW)))


class Pool(nn.Layer):
    """Mean over height and width: BCHW -> BC."""

    def forward(self, images_BCHW: Any) -> Any:
        return images_BCHW.mean(axis=[2, 3])


class ResNet(nn.Layer):
    """images_BCHW -> logits_BK. Batch norm takes the means of the rows that a rank sees at once, in training."""

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        *,
        image: Sequence[int],
        classes: int,
        stem: str,
        label_smoothing: float,
    ) -> None:
        super().__init__()
        self.image = list(image)
        self.stem = Stem(image[0], stem)
        blocks, channels_in = [], 64
        for group, depth in enumerate(depths):
            for place in range(depth):
                stride = 2 if group > 0 and place == 0 else 1
                blocks.append(block(channels_in, 64 << group, stride))
                channels_in = (64 << group) * block.widening
        self.blocks = nn.LayerList(blocks)
        self.pool = Pool()
        self.head = nn.Linear(channels_in, classes)
        self.cross_entropy = CrossEntropy(label_smoothing)
        for layer in self.sublayers():
            if isinstance(layer, nn.Conv2D):  # He and others 2015
                fan_out = layer.weight.shape[0] * layer.weight.shape[2] * layer.weight.shape[3]
                nn.initializer.Normal(0.0, math.sqrt(2 / fan_out))(layer.weight)

    def stages(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """The layers in their order, by name."""
        blocks = [(f"blocks.{place}", block) for place, block in enumerate(self.blocks)]
        return [("stem", self.stem), *blocks, ("pool", self.pool), ("head", self.head)]

    def forward(self, images_BCHW: Any) -> Any:
        hidden = images_BCHW
        for _, layer in self.stages():
            hidden = layer(hidden)
        return hidden

    def inputs(self, batch: Any) -> Any:
        """images_BCHW out of the batch's numbers."""
        return batch.dense_BD.reshape([-1, *self.image])

    def loss_of(self, logits_BK: Any, batch: Any) -> Any:
        """Mean cross-entropy of the batch's labels, which count the classes from 0."""
        return self.cross_entropy(logits_BK, batch.labels_B.astype("int64")).mean()

    def loss(self, batch: Any) -> Any:
        """Mean loss of the batch's rows."""
        return self.loss_of(self(self.inputs(batch)), batch)


def build_resnet18(spec: InputSpec, params: Mapping[str, Any]) -> ResNet:
    """From a recipe's params: image, classes (2), stem (small), label_smoothing (0)."""
    return _build("resnet18", Basic, (2, 2, 2, 2), spec, params)


def build_resnet50(spec: InputSpec, params: Mapping[str, Any]) -> ResNet:
    """From a recipe's params: image, classes (2), stem (small), label_smoothing (0)."""
    return _build("resnet50", Bottleneck, (3, 4, 6, 3), spec, params)


def _build(
    name: str,
    block: type[Basic] | type[Bottleneck],
    depths: Sequence[int],
    spec: InputSpec,
    params: Mapping[str, Any],
) -> ResNet:
    check_params(params, PARAMS, name)
    image = params.get("image")
    if image is None:
        raise RecipeError(f"model.params.image: {name} needs the pictures' [channels, height, width]")
    if spec.id_sizes or spec.num_dense != math.prod(image):
        raise RecipeError(
            f"model.params.image: pictures of {list(image)} are {math.prod(image)} numbers a row; the features give "
            f"{spec.num_dense} numbers and {len(spec.id_sizes)} ids"
        )
    return ResNet(block, depths, **{"classes": 2, "stem": "small", "label_smoothing": 0.0, **params})
