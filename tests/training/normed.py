"""A network with running means, which a recipe of test_guard names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle import nn
from paddle.nn import functional

from paddlewheel.training.models import InputSpec


class Normed(nn.Layer):
    """A batch norm over the numbers, and a linear layer."""

    def __init__(self, num_dense: int) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1D(num_dense), nn.Linear(num_dense, 1)

    def loss(self, batch: Any) -> Any:
        logits_B = self.out(self.norm(batch.dense_BD)).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)


def build(spec: InputSpec, params: Mapping[str, Any]) -> Normed:
    """The network; it has no parameters of the recipe's."""
    return Normed(spec.num_dense)
