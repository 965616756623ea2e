"""Gradients summed over the data group in one exchange, as one flat float32 buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from paddlewheel.recipe import Training
from paddlewheel.training.state import trainable
from paddlewheel.training.strategies import Strategy
from paddlewheel.training.sync.agreement import Exchanged, agree, gradient_factor, square


class Dense:
    """The flat buffer is [gradients, floating buffers of the model by their rank's weight, loss, stop, commit].

    A parameter without a gradient counts as zero, on one rank as on many. Buffers (the running means of a batch norm)
    become the mean over the ranks, so that the model is the same everywhere at every step.
    """

    def __init__(self, training: Training, model: Any, strategy: Strategy, total_steps: int) -> None:
        self.strategy, self.clip_norm = strategy, training.optimizer.clip_norm
        named = trainable(model)
        self.parameters = [parameter for _, parameter in named]
        self.counted = [strategy.counts(name) for name, _ in named]
        shared = [tensor for _, tensor in model.named_buffers() if tensor.dtype == paddle.float32]
        self.buffers = shared if strategy.data_group.size > 1 else []
        self.num_gradients = sum(int(np.prod(parameter.shape)) for parameter in self.parameters)
        tensors = [*self.parameters, *self.buffers]
        self.sizes = [int(np.prod(tensor.shape)) for tensor in tensors]

    def exchange(self, loss: Any | None, *, weight: float, scale: float, stop: bool, commit: bool) -> Exchanged:
        if self.strategy.world.size == 1:
            return self._alone(loss, scale=scale, stop=stop, commit=commit)
        with paddle.no_grad():
            parts = [_gradient(parameter) for parameter in self.parameters]
            parts += [buffer.reshape([-1]) * weight for buffer in self.buffers]
            parts.append(paddle.zeros([1]) if loss is None else loss.reshape([1]).astype("float32"))
            parts.append(paddle.to_tensor(np.array([stop, commit], np.float32)))
            flat = paddle.concat(parts)
            self.strategy.data_group.sum_(flat)
            total, stops, commits = (float(value) for value in flat[-3:].numpy())
            exchanged = agree(
                self.strategy,
                self._squares(flat[: self.num_gradients]),
                total,
                scale=scale,
                stop=stops > 0,
                commit=commits > 0,
                sent_bytes=4 * int(flat.shape[0]) if self.strategy.data_group.size > 1 else 0,
            )
            factor = gradient_factor(exchanged.norm, scale=scale, clip_norm=self.clip_norm)
            gradients = flat if factor == 1.0 else flat * factor
            pieces = paddle.split(gradients[: self.num_gradients], self.sizes[: len(self.parameters)])
            for parameter, piece in zip(self.parameters, pieces, strict=True):
                parameter.grad = piece.reshape(parameter.shape)
            if self.buffers:
                means = paddle.split(flat[self.num_gradients : -3], self.sizes[len(self.parameters) :])
                for buffer, mean in zip(self.buffers, means, strict=True):
                    buffer.set_value(mean.reshape(buffer.shape))
        return exchanged

    def _alone(self, loss: Any | None, *, scale: float, stop: bool, commit: bool) -> Exchanged:
        """Nothing to sum: the norm is read, and the gradients are scaled, where they lie."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = paddle.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self.parameters]
        norm = math.sqrt(sum(square(gradient) for gradient in gradients)) / scale
        factor = gradient_factor(norm, scale=scale, clip_norm=self.clip_norm)
        if factor != 1.0:
            with paddle.no_grad():
                for gradient in gradients:
                    gradient.scale_(factor)
        value = 0.0 if loss is None else float(loss) / scale
        return Exchanged(loss=value, norm=norm, stop=stop, commit=commit)

    def _squares(self, gradients: Any) -> float:
        """Sum of squares of the gradients that count on this rank."""
        if all(self.counted):
            return square(gradients)
        pieces = paddle.split(gradients, self.sizes[: len(self.parameters)])
        return sum(square(piece) for piece, counts in zip(pieces, self.counted, strict=True) if counts)

    def after_update(self, step: int) -> int:
        return 0

    def settled(self, step: int) -> bool:
        return True

    def state(self) -> Mapping[str, Any]:
        return {}

    def load(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        pass


def _gradient(parameter: Any) -> Any:
    """A parameter's gradient as a flat float32 tensor; zeros where this rank's step had none."""
    if parameter.grad is None:
        return paddle.zeros([int(np.prod(parameter.shape))])
    return parameter.grad.reshape([-1]).astype("float32")
