"""A stack of transformer blocks that predicts the next token (Radford and others 2019, GPT-2), with an untied head.

Norms before each half of a block, causal self-attention, learned positions, an MLP with GELU. query, key and value are
Linears of their own, and the number of heads follows from their width, so that a rank that holds some of their columns
computes some of the heads.
Axes: B rows, T tokens of a row, W width, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Split
from paddlewheel.training.models import InputSpec, check_params, is_rate, is_width
from paddlewheel.training.models.losses import CrossEntropy

PARAMS = {"layers": is_width, "width": is_width, "heads": is_width, "dropout": is_rate}
PADDING = 0  # the id behind a sequence's end, and of what the vocabulary does not know: nothing to predict


class Attention(nn.Layer):
    """Causal self-attention (Vaswani and others 2017): each token looks at itself and at those before it.

    fused: by one kernel that never holds the weights of all pairs, instead of by the formula as it is written.
    """

    fused = False

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)
        self.dropout = dropout

    def forward(self, hidden_BTW: Any) -> Any:
        query_BTHD, key_BTHD, value_BTHD = (
            self.cut_heads(layer(hidden_BTW)) for layer in (self.query, self.key, self.value)
        )
        attend = self.attend_fused if self.fused else self.attend
        return self.project(attend(query_BTHD, key_BTHD, value_BTHD).flatten(2))

    def cut_heads(self, wide_BTW: Any) -> Any:
        """BTW -> BTHD, D numbers a head; of as many heads as the width holds."""
        batch, tokens, width = wide_BTW.shape
        return wide_BTW.reshape([batch, tokens, width // self.head_width, self.head_width])

    def attend(self, query_BTHD: Any, key_BTHD: Any, value_BTHD: Any) -> Any:
        """softmax(query key^T / sqrt(D), later tokens left out) value: BTHD."""
        query_BHTD, key_BHTD, value_BHTD = (one.transpose([0, 2, 1, 3]) for one in (query_BTHD, key_BTHD, value_BTHD))
        scores_BHTT = query_BHTD @ key_BHTD.transpose([0, 1, 3, 2]) / math.sqrt(self.head_width)
        later_TT = paddle.full(scores_BHTT.shape[-2:], -math.inf, scores_BHTT.dtype).triu(1)
        weights_BHTT = functional.softmax(scores_BHTT + later_TT, axis=-1)
        weights_BHTT = functional.dropout(weights_BHTT, self.dropout, training=self.training)
        return (weights_BHTT @ value_BHTD).transpose([0, 2, 1, 3])

    def attend_fused(self, query_BTHD: Any, key_BTHD: Any, value_BTHD: Any) -> Any:
        """The same by FlashAttention (Dao and others 2022), where the device and the precision have it."""
        return functional.scaled_dot_product_attention(
            query_BTHD, key_BTHD, value_BTHD, dropout_p=self.dropout, is_causal=True, training=self.training
        )


class MLP(nn.Layer):
    """Four times as wide, GELU, and back: BTW -> BTW."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden_BTW: Any) -> Any:
        return self.down(functional.gelu(self.up(hidden_BTW), approximate=True))


class Block(nn.Layer):
    """Attention, then the MLP, each beside a shortcut: BTW -> BTW."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_BTW: Any) -> Any:
        hidden_BTW = hidden_BTW + self.dropout(self.attention(self.norm1(hidden_BTW)))
        return hidden_BTW + self.dropout(self.mlp(self.norm2(hidden_BTW)))


class Positions(nn.Layer):
    """Adds a learned vector to each place of a row: BTW -> BTW."""

    def __init__(self, tokens: int, width: int, dropout: float) -> None:
        super().__init__()
        self.rows_TW = self.create_parameter([tokens, width], default_initializer=nn.initializer.Normal(0.0, 0.02))
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_BTW: Any) -> Any:
        return self.dropout(hidden_BTW + self.rows_TW[: hidden_BTW.shape[1]])


class GPT(nn.Layer):
    """ids_BT -> logits_BTV of each place's next token."""

    def __init__(self, *, vocabulary: int, tokens: int, layers: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = Positions(tokens, width, dropout)
        self.blocks = nn.LayerList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias_attr=False)
        self.cross_entropy = CrossEntropy()
        # Shortcuts add up the outputs of 2 * layers halves of blocks: each starts so much smaller.
        smaller = nn.initializer.Normal(0.0, 0.02 / math.sqrt(2 * layers))
        for name, layer in self.named_sublayers():
            if isinstance(layer, nn.Linear | nn.Embedding):
                last = name.endswith((".project", ".down"))
                (smaller if last else nn.initializer.Normal(0.0, 0.02))(layer.weight)

    def stages(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """The layers in their order, by name."""
        blocks = [(f"blocks.{place}", block) for place, block in enumerate(self.blocks)]
        return [
            ("embed", self.embed),
            ("positions", self.positions),
            *blocks,
            ("norm", self.norm),
            ("head", self.head),
        ]

    def tensor_plan(self) -> list[Split]:
        """Heads and the MLP's inner width by columns and back by rows; embedding and head by the vocabulary."""
        return [
            *(Split(layers=f"blocks.*.attention.{name}", by="column") for name in ("query", "key", "value")),
            Split(layers="blocks.*.attention.project", by="row"),
            Split(layers="blocks.*.mlp.up", by="column"),
            Split(layers="blocks.*.mlp.down", by="row"),
            Split(layers="embed", by="vocabulary"),
            Split(layers="head", by="vocabulary"),
        ]

    def forward(self, ids_BT: Any) -> Any:
        hidden = ids_BT
        for _, layer in self.stages():
            hidden = layer(hidden)
        return hidden

    def inputs(self, batch: Any) -> Any:
        """ids_BT."""
        return batch.ids_BF

    def loss_of(self, logits_BTV: Any, batch: Any) -> Any:
        """Mean over rows of the mean cross-entropy of a row's next tokens, those that are padding left out.

        Not the mean over all tokens: gradients of a global batch are added up from those of its rows, wherever they
        are computed, and how many tokens the other ranks' rows have is not known there. A row of one token counts 0.
        """
        next_BT = batch.ids_BF[:, 1:].astype("int64")
        there_BT = (next_BT != PADDING).astype("float32")
        losses_BT = self.cross_entropy(logits_BTV[:, :-1], next_BT).astype("float32")
        return ((losses_BT * there_BT).sum(axis=1) / there_BT.sum(axis=1).clip(min=1.0)).mean()

    def loss(self, batch: Any) -> Any:
        """Mean loss of the batch's rows."""
        return self.loss_of(self(self.inputs(batch)), batch)


def build(spec: InputSpec, params: Mapping[str, Any]) -> GPT:
    """From a recipe's params: layers (4), width (128), heads (4), dropout (0)."""
    check_params(params, PARAMS, "gpt")
    chosen = {"layers": 4, "width": 128, "heads": 4, "dropout": 0.0, **params}
    if chosen["width"] % chosen["heads"]:
        raise RecipeError(f"model.params.heads: {chosen['heads']} heads do not divide the width {chosen['width']}")
    sizes = sorted(set(spec.id_sizes))
    if len(sizes) != 1 or len(spec.id_sizes) < 2 or spec.num_dense:
        raise RecipeError(
            "features: gpt reads the tokens of one sequence (a feature of kind bytes, multi, words or characters with "
            f"a length from 2) and nothing else; these give {len(spec.id_sizes)} ids of the sizes {sizes[:8]} and "
            f"{spec.num_dense} numbers"
        )
    return GPT(vocabulary=sizes[0], tokens=len(spec.id_sizes), **chosen)
