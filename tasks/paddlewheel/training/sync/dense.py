"""Gradients summed over the ranks in one exchange, as one flat buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from paddlewheel.training.state import trainable
from paddlewheel.training.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """What all ranks agreed on in a step: the loss over the global batch, the gradients' norm, whether to stop."""

    loss: float
    norm: float
    stop: bool


class Dense:
    """The flat buffer is [gradients, floating buffers of the model by their rank's weight, loss, stop], float32.

    A parameter without a gradient counts as zero, on one rank as on many. Buffers (the running means of a batch norm)
    become the mean over the ranks, so that the model is the same everywhere at every step.
    """

    def __init__(self, model: Any, strategy: Strategy, clip_norm: float | None) -> None:
        self.strategy, self.clip_norm = strategy, clip_norm
        self.parameters = [parameter for _, parameter in trainable(model)]
        shared = [tensor for _, tensor in model.named_buffers() if tensor.dtype == paddle.float32]
        self.buffers = shared if strategy.data_world_size > 1 else []
        self.num_gradients = sum(int(np.prod(parameter.shape)) for parameter in self.parameters)
        tensors = [*self.parameters, *self.buffers]
        self.sizes = [int(np.prod(tensor.shape)) for tensor in tensors]

    def exchange(self, scaled_loss: Any | None, *, weight: float, stop: bool) -> Exchanged:
        """Sum gradients and loss over the ranks, clip the gradients to the global norm, and leave them in place.

        scaled_loss: this rank's mean loss times `weight`, its share of the global batch's rows; None for no rows.
        """
        with paddle.no_grad():
            parts = [_gradient(parameter) for parameter in self.parameters]
            parts += [buffer.reshape([-1]) * weight for buffer in self.buffers]
            parts.append(paddle.zeros([1]) if scaled_loss is None else scaled_loss.detach().reshape([1]))
            parts.append(paddle.full([1], float(stop)))
            flat = paddle.concat(parts)
            self.strategy.sum_over_ranks(flat)
            loss, stops = (float(value) for value in flat[-2:].numpy())
            norm = _norm(flat[: self.num_gradients])
            gradients = flat
            if self.clip_norm is not None and norm > self.clip_norm:
                gradients = flat * (self.clip_norm / norm)
            pieces = paddle.split(gradients[: self.num_gradients], self.sizes[: len(self.parameters)])
            for parameter, piece in zip(self.parameters, pieces, strict=True):
                parameter.grad = piece.reshape(parameter.shape)
            if self.buffers:
                means = paddle.split(flat[self.num_gradients : -2], self.sizes[len(self.parameters) :])
                for buffer, mean in zip(self.buffers, means, strict=True):
                    buffer.set_value(mean.reshape(buffer.shape))
        return Exchanged(loss=loss, norm=norm, stop=stops > 0)


def _norm(tensor: Any) -> float:
    """Euclidean norm. On the CPU numpy's, which costs 8 µs where Paddle's costs 250."""
    if tensor.place.is_cpu_place():
        return float(np.linalg.norm(tensor.numpy()))
    return float(paddle.linalg.norm(tensor))


def _gradient(parameter: Any) -> Any:
    """A parameter's gradient as a flat float32 tensor; zeros where this rank's step had none."""
    if parameter.grad is None:
        return paddle.zeros([int(np.prod(parameter.shape))])
    return parameter.grad.reshape([-1]).astype("float32")
