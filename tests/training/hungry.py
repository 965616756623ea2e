"""What the recipes of test_less_memory name: a network of wide rows in a process that may take little memory, and a
handler that finds none at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional

from paddlewheel.training.events import BeginStepEvent
from paddlewheel.training.models import InputSpec

WIDTH = 1 << 18  # a row is 1 MiB after each of the two layers
MOST_MORE_BYTES = 128 << 20


class Wide(nn.Layer):
    """Numbers to a wide layer to a logit."""

    def __init__(self, num_dense: int, limited: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(num_dense, WIDTH), nn.Linear(WIDTH, 1)
        self.limited = limited

    def loss(self, batch: Any) -> Any:
        """Mean cross-entropy. From the first step on the process may take 128 MiB more than it had then."""
        if self.limited:
            self.down(functional.tanh(self.up(paddle.zeros([1, 3])))).sum().backward()  # loads Paddle's libraries
            self.clear_gradients()
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (now + MOST_MORE_BYTES, now + MOST_MORE_BYTES))
            self.limited = False
        logits_B = self.down(functional.tanh(self.up(batch.dense_BD))).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)


def build(spec: InputSpec, params: Mapping[str, Any]) -> Wide:
    """params: limited."""
    paddle.seed(7)
    return Wide(spec.num_dense, bool(params.get("limited")))


def starve(event: Any) -> None:
    """No attempt has memory for its second step, whatever the rows."""
    if isinstance(event, BeginStepEvent) and event.step == 1:
        raise MemoryError("Out of memory: 8 bytes")
