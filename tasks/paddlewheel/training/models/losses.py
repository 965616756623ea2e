"""Losses, element by element, so that a mean over rows is the same however the rows are cut into batches."""

from __future__ import annotations

from typing import Any

from paddle import nn
from paddle.nn import functional


class CrossEntropy(nn.Layer):
    """Cross-entropy of softmax in nats: (logits [..., K], classes int64 [...]) -> [...].

    A layer of its own, so that a strategy that splits the classes over ranks can put one in its place that looks for
    the greatest logit and adds up the exponentials over all of them. smoothing: what share of the wanted probability
    is spread evenly over all classes (label smoothing, Szegedy and others 2016).
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: Any, classes: Any) -> Any:
        losses = functional.cross_entropy(logits, classes.unsqueeze(-1), reduction="none").squeeze(-1)
        if not self.smoothing:
            return losses
        evenly = logits.logsumexp(axis=-1) - logits.mean(axis=-1)
        return (1 - self.smoothing) * losses + self.smoothing * evenly
