"""What all ranks know after a step's exchange: the loss, the gradients' norm, and what some of them asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from paddlewheel.training.strategies import Strategy
from paddlewheel.training.sync.flat import bytes_of

SMALL = 1 << 15  # elements


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """loss: over the global batch. norm: of the whole model's gradient, before clipping. stop, commit: whether any
    rank asked for it. sent_bytes: what this rank gave into collectives. alike: whether loss and norm are the same on
    all ranks, so that all judge the step alike."""

    loss: float
    norm: float
    stop: bool
    commit: bool
    sent_bytes: int = 0
    alike: bool = True


def agree(
    strategy: Strategy, squares: float, loss: float, *, scale: float, stop: bool, commit: bool, sent_bytes: int
) -> Exchanged:
    """What the model group agrees on. squares: of those gradients that count here (`Strategy.counts`); loss: of the
    data group, counted once in the model group; both still times `scale`, or its square."""
    if strategy.model_group.size > 1:
        told = paddle.to_tensor(np.array([squares, loss, float(stop), float(commit)], np.float64))
        strategy.model_group.sum_(told)
        squares, loss, stops, commits = (float(value) for value in told.numpy())
        stop, commit = stops > 0, commits > 0
        sent_bytes += bytes_of(told)
    norm = math.sqrt(squares) / scale
    return Exchanged(loss=loss / scale, norm=norm, stop=stop, commit=commit, sent_bytes=sent_bytes)


def gradient_factor(norm: float, *, scale: float, clip_norm: float | None) -> float:
    """What gradients are multiplied by so that they are unscaled and their norm, now `norm` unscaled, is clipped."""
    clipped = clip_norm / norm if clip_norm is not None and norm > clip_norm else 1.0
    return clipped / scale


def square(tensor: Any) -> float:
    """Sum of a tensor's squares. On the CPU numpy's, where Paddle's norm takes 250 µs for a small one: on a copy of a
    small one, which is made sooner than a view, and on the memory itself of a large one."""
    if tensor.place.is_cpu_place():
        flat = (tensor.numpy() if math.prod(tensor.shape) < SMALL else np.from_dlpack(tensor.detach())).reshape(-1)
        return float(np.dot(flat, flat))
    return float(tensor.astype("float32").square().sum())
