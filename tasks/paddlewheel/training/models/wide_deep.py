"""Wide & Deep (Cheng and others 2016): a linear model over ids and numbers, plus a perceptron over embeddings.

Axes: B rows, F id columns, D numbers, K embedding width, R rows of the embedding table (all columns' ids together).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional

from paddlewheel.training.models import InputSpec, are_widths, check_params, is_rate, is_width

PARAMS = {"embedding": is_width, "hidden": are_widths, "dropout": is_rate, "embedding_dropout": is_rate}


class IdTable(nn.Layer):
    """One table for the ids of all columns, each column's rows after those of the one before: BF -> BFK."""

    def __init__(self, id_sizes: Sequence[int], width: int, std: float) -> None:
        super().__init__()
        offsets_F = np.concatenate([[0], np.cumsum(id_sizes)[:-1]]) if len(id_sizes) else np.zeros(0)
        self.register_buffer("offsets_F", paddle.to_tensor(offsets_F.astype(np.int32)))
        start = paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, std) if std else nn.initializer.Constant(0.0))
        self.rows_RK = nn.Embedding(max(1, sum(id_sizes)), width, weight_attr=start)

    def forward(self, ids_BF: Any) -> Any:
        return self.rows_RK(ids_BF + self.offsets_F)


class Wide(nn.Layer):
    """A linear model: one weight an id and a number, and a bias: (BF, BD) -> B."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.ids = IdTable(spec.id_sizes, 1, std=0.0) if spec.id_sizes else None
        self.dense = nn.Linear(spec.num_dense, 1) if spec.num_dense else None
        self.bias = self.create_parameter([1], is_bias=True)

    def forward(self, ids_BF: Any, dense_BD: Any) -> Any:
        logits_B = self.bias
        if self.ids is not None:
            logits_B = logits_B + self.ids(ids_BF).sum(axis=[1, 2])
        if self.dense is not None:
            logits_B = logits_B + self.dense(dense_BD).squeeze(-1)
        return logits_B


class Deep(nn.Layer):
    """A perceptron over flattened embeddings and numbers: (BFK, BD) -> B."""

    def __init__(self, spec: InputSpec, *, embedding: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        widths = [len(spec.id_sizes) * embedding + spec.num_dense, *hidden]
        layers: list[Any] = []
        for width_in, width_out in itertools.pairwise(widths):
            start = paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, math.sqrt(2 / width_in)))
            layers += [nn.Linear(width_in, width_out, weight_attr=start), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, embedded_BFK: Any, dense_BD: Any) -> Any:
        parts = [] if embedded_BFK is None else [embedded_BFK.flatten(1)]
        parts += [dense_BD] if dense_BD.shape[1] else []
        return self.layers(paddle.concat(parts, axis=1) if len(parts) > 1 else parts[0]).squeeze(-1)


class WideDeep(nn.Layer):
    """logit = wide(ids, numbers) + deep(embeddings, numbers)."""

    def __init__(
        self, spec: InputSpec, *, embedding: int, hidden: Sequence[int], dropout: float, embedding_dropout: float
    ) -> None:
        super().__init__()
        self.table = IdTable(spec.id_sizes, embedding, std=0.05) if spec.id_sizes else None
        self.wide = Wide(spec)
        self.deep = Deep(spec, embedding=embedding, hidden=hidden, dropout=dropout)
        self.embedding_dropout = nn.Dropout(embedding_dropout) if embedding_dropout else None

    def forward(self, ids_BF: Any, dense_BD: Any) -> Any:
        return self.wide(ids_BF, dense_BD) + self.deep(self.embed(ids_BF), dense_BD)

    def embed(self, ids_BF: Any) -> Any:
        """BFK, or None without id columns."""
        embedded_BFK = self.table(ids_BF) if self.table is not None else None
        return (
            self.embedding_dropout(embedded_BFK)
            if self.embedding_dropout and embedded_BFK is not None
            else embedded_BFK
        )

    def loss(self, batch: Any) -> Any:
        """Mean cross-entropy of the batch's labels."""
        logits_B = self(batch.ids_BF, batch.dense_BD)
        return functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)


def build(spec: InputSpec, params: Mapping[str, Any]) -> WideDeep:
    """From a recipe's params: embedding (width), hidden (widths), dropout, embedding_dropout."""
    check_params(params, PARAMS, "wide_deep")
    return WideDeep(spec, **{"embedding": 8, "hidden": (128, 64), "dropout": 0.0, "embedding_dropout": 0.0, **params})
