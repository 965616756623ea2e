"""A network of a user's own that is a row of layers: two tensors between them, batch norms, a layer without weights."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional


class Halves(nn.Layer):
    """Numbers -> two tensors: what a layer made of them, and the ids as they came."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.norm = nn.BatchNorm1D(width)

    def forward(self, given: Any) -> Any:
        ids_BF, dense_BD = given
        return functional.relu(self.norm(self.linear(dense_BD))), ids_BF


class Mix(nn.Layer):
    """Adds the vectors of the ids."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(11, width)

    def forward(self, given: Any) -> Any:
        hidden_BW, ids_BF = given
        return hidden_BW + self.table(ids_BF).sum(axis=1)


class Staged(nn.Layer):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.halves, self.mix = Halves(width), Mix(width)
        self.norm, self.out = nn.BatchNorm1D(width), nn.Linear(width, 1)

    def stages(self) -> list[tuple[str, Any]]:
        return [
            ("halves", self.halves),
            ("mix", self.mix),
            ("norm", self.norm),
            ("tanh", paddle.tanh),
            ("out", self.out),
        ]

    def inputs(self, batch: Any) -> Any:
        return batch.ids_BF, batch.dense_BD

    def loss_of(self, outputs: Any, batch: Any) -> Any:
        return functional.binary_cross_entropy_with_logits(outputs.squeeze(-1), batch.labels_B)

    def forward(self, ids_BF: Any, dense_BD: Any) -> Any:
        hidden = ids_BF, dense_BD
        for _, layer in self.stages():
            hidden = layer(hidden)
        return hidden

    def loss(self, batch: Any) -> Any:
        return self.loss_of(self(*self.inputs(batch)), batch)


def build(_spec: Any, _params: Any) -> Staged:
    return Staged()


class Loose(Staged):
    """With a parameter that is in none of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.create_parameter([1])


def build_loose(_spec: Any, _params: Any) -> Loose:
    return Loose()
