"""What two ranks make of networks that are split by a plan: the ranks of test_tensor_faults, one word of JSON each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
from paddle import nn

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Split
from paddlewheel.training.groups import join_world, leave_world
from paddlewheel.training.models.losses import CrossEntropy
from paddlewheel.training.strategies.tensor import split_model

ROWS, TOKENS, WIDTH, WORDS = 4, 3, 8, 13


class Net(nn.Layer):
    """Ids BT -> logits BTV, by whatever is between."""

    def __init__(self, body: nn.Layer, **embedding: Any) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(WORDS, WIDTH, **embedding), body
        self.head, self.cross_entropy = nn.Linear(WIDTH, WORDS), CrossEntropy(smoothing=0.1)

    def forward(self, ids_BT: Any) -> Any:
        return self.head(self.body(self.embed(ids_BT)))

    def loss(self, batch: Any) -> Any:
        return self.cross_entropy(self(batch.ids_BT), batch.next_BT).mean()


class Heads(nn.Layer):
    """Attention with as many heads as it was told, whatever its width: what splitting by columns mixes up."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_BTW: Any) -> Any:
        def cut(layer: Any) -> Any:
            return layer(hidden_BTW).reshape([ROWS, TOKENS, 2, -1]).transpose([0, 2, 1, 3])

        weights = nn.functional.softmax(cut(self.query) @ cut(self.key).transpose([0, 1, 3, 2]), axis=-1)
        return self.project((weights @ cut(self.value)).transpose([0, 2, 1, 3]).flatten(2))


class Learned(nn.Layer):
    """Two layers over learned vectors, which the first reads itself."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors_TW = self.create_parameter([TOKENS, WIDTH])
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_BTW: Any) -> Any:
        return hidden_BTW + self.down(paddle.tanh(self.up(self.vectors_TW)))


class Told(nn.Layer):
    """Two layers with rates and decays of their own."""

    def __init__(self) -> None:
        super().__init__()
        still = paddle.ParamAttr(learning_rate=0.1, regularizer=paddle.regularizer.L2Decay(2.0))
        self.up = nn.Linear(WIDTH, WIDTH, weight_attr=still)
        self.down = nn.Linear(WIDTH, WIDTH, weight_attr=paddle.ParamAttr(learning_rate=0.5))

    def forward(self, hidden_BTW: Any) -> Any:
        return self.down(paddle.tanh(self.up(hidden_BTW)))


def tied() -> Net:
    net = Net(nn.Identity())
    net.more = nn.Embedding(WORDS, WIDTH)
    net.more.weight = net.embed.weight
    return net


BODY = [Split(layers="body.up", by="column"), Split(layers="body.down", by="row")]
VOCABULARY = [Split(layers="embed", by="vocabulary"), Split(layers="head", by="vocabulary")]
NETS: dict[str, tuple[Callable[[], Net], list[Split]]] = {
    "heads": (
        lambda: Net(Heads()),
        [
            *(Split(layers=f"body.{one}", by="column") for one in ("query", "key", "value")),
            Split(layers="body.project", by="row"),
        ],
    ),
    "learned": (lambda: Net(Learned()), [*BODY, *VOCABULARY]),
    "told": (lambda: Net(Told()), [*BODY, *VOCABULARY]),
    "padding": (lambda: Net(nn.Identity(), padding_idx=-1), VOCABULARY),
    "most": (lambda: Net(nn.Identity(), max_norm=1.0), VOCABULARY),
    "tied": (tied, VOCABULARY),
    "ids": (lambda: Net(nn.Identity()), VOCABULARY),
}


def batch(ids: int = 0, next_id: int | None = None) -> Any:
    generator = np.random.default_rng(3)
    ids_BT = generator.integers(0, WORDS, (ROWS, TOKENS)) + ids
    next_BT = generator.integers(0, WORDS, (ROWS, TOKENS))
    if next_id is not None:
        next_BT[0, 0] = next_id
    return SimpleNamespace(ids_BT=paddle.to_tensor(ids_BT), next_BT=paddle.to_tensor(next_BT))


def trained(net: Net, batches: list[Any]) -> list[float]:
    """The losses of SGD steps."""
    optimizer = paddle.optimizer.SGD(0.5, parameters=net.parameters())
    losses = []
    for one in batches:
        loss = net.loss(one)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def main() -> None:
    group = join_world(int(paddle.distributed.get_rank()), 2)
    told: dict[str, Any] = {}
    for name, (build, plan) in NETS.items():
        nets = []
        for _ in range(2):
            paddle.seed(5)
            nets.append(build())
        try:
            split_model(nets[1], plan, group, batch)
        except RecipeError as error:
            told[name] = str(error)
            continue
        if name == "ids":
            for what, wrong in (("id", batch(ids=WORDS)), ("class", batch(next_id=WORDS))):
                try:
                    nets[1].loss(wrong)
                except ValueError as error:
                    told[what] = str(error)
        batches = [batch(), batch(next_id=-100), *([batch()] * 8)]
        plain, split = (trained(net, batches) for net in nets)
        told[name] = float(np.abs(np.subtract(plain, split)).max())
        told[f"{name} falls"] = plain[0] - plain[-1]
    told["masked"] = masked(group)
    leave_world(group)
    print(json.dumps(told).replace(" ", "_"))


def masked(group: Any) -> float:
    """The greatest difference of losses and gradients where some logits are -inf."""
    from paddlewheel.training.strategies.tensor import _cross_entropy

    generator = np.random.default_rng(4)
    logits = generator.normal(size=(6, 4)).astype(np.float32)
    logits[0, 1] = logits[2, 3] = -np.inf
    classes = paddle.to_tensor(np.array([0, 1, 2, 3, 0, -100]))
    whole = paddle.to_tensor(logits, stop_gradient=False)
    losses = CrossEntropy()(whole, classes)
    losses.sum().backward()
    start = 2 * group.rank
    part = paddle.to_tensor(logits[:, start : start + 2], stop_gradient=False)
    found = _cross_entropy(group, start, 2, 4, 0.0)(part, classes)
    found.sum().backward()
    gradients = whole.grad.numpy()[:, start : start + 2] - part.grad.numpy()
    return float(np.max([np.abs(losses.numpy() - found.numpy()).max(), np.abs(gradients).max()]))


if __name__ == "__main__":
    sys.exit(main())
