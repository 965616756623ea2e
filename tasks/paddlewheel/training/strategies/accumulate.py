"""Gradients of several micro-batches, one after the other, added up in the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def accumulate(model: Any, batches: Sequence[Any], weights: Sequence[float], compute: Any) -> Any | None:
    """Forward and backward of each micro-batch; the sum of mean loss times weight, detached; None without batches."""
    total = None
    for batch, weight in zip(batches, weights, strict=True):
        with compute.cast():
            loss = model.loss(batch)
        scaled = loss if weight == 1.0 else loss * weight
        compute.lap("forward")
        scaled.backward()
        compute.lap("backward")
        total = scaled.detach() if total is None else total + scaled.detach()
    return total
