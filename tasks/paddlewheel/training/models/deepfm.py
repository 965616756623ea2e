"""DeepFM (Guo and others 2017): Wide & Deep, plus a factorisation machine over the same embeddings.

Numbers take part in the machine too, each as its value times a vector of its own.
Axes: B rows, F id columns, D numbers, K embedding width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddle import nn

from paddlewheel.training.models import InputSpec, check_params
from paddlewheel.training.models.wide_deep import PARAMS, WideDeep


class DeepFM(WideDeep):
    """logit = wide + deep + sum over pairs of fields of the dot product of their vectors."""

    def __init__(
        self, spec: InputSpec, *, embedding: int, hidden: Sequence[int], dropout: float, embedding_dropout: float
    ) -> None:
        super().__init__(spec, embedding=embedding, hidden=hidden, dropout=dropout, embedding_dropout=embedding_dropout)
        self.dense_vectors_DK = None
        if spec.num_dense:
            start = nn.initializer.Normal(0.0, 0.05)
            self.dense_vectors_DK = self.create_parameter([spec.num_dense, embedding], default_initializer=start)

    def forward(self, ids_BF: Any, dense_BD: Any) -> Any:
        embedded_BFK = self.embed(ids_BF)
        pairs_B = self.interact(embedded_BFK, dense_BD)
        return self.wide(ids_BF, dense_BD) + self.deep(embedded_BFK, dense_BD) + pairs_B

    def interact(self, embedded_BFK: Any, dense_BD: Any) -> Any:
        """Sum over pairs of fields, by Rendle's identity: half of (square of the sum - sum of the squares)."""
        sums, squares = [], []
        if embedded_BFK is not None:
            sums.append(embedded_BFK.sum(axis=1))
            squares.append(embedded_BFK.square().sum(axis=1))
        if self.dense_vectors_DK is not None:
            sums.append(dense_BD @ self.dense_vectors_DK)
            squares.append(dense_BD.square() @ self.dense_vectors_DK.square())
        return 0.5 * (sum(sums[1:], sums[0]).square() - sum(squares[1:], squares[0])).sum(axis=1)


def build(spec: InputSpec, params: Mapping[str, Any]) -> DeepFM:
    """From a recipe's params: embedding (width), hidden (widths), dropout, embedding_dropout."""
    check_params(params, PARAMS, "deepfm")
    return DeepFM(spec, **{"embedding": 8, "hidden": (128, 64), "dropout": 0.0, "embedding_dropout": 0.0, **params})
