"""Gradients summed over the data group in one exchange, as one flat buffer, in float32 or in bfloat16."""

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
from paddlewheel.training.sync.flat import bytes_of, flatten, shared_buffers, sizes_of, unflatten


def build_dense(training: Training, model: Any, strategy: Strategy, total_steps: int) -> Dense:
    """Gradients travel as they are."""
    return Dense(training, model, strategy, wire="float32")


def build_bf16(training: Training, model: Any, strategy: Strategy, total_steps: int) -> Dense:
    """Gradients travel in half of the bytes, rounded to 8 bits of mantissa, and are summed so."""
    return Dense(training, model, strategy, wire="bfloat16")


class Dense:
    """The buffer is [gradients, floating buffers of the model by their rank's weight, loss, stop, commit]; all but the
    gradients are float32 in any case.

    A parameter without a gradient counts as zero, on one rank as on many. Buffers (the running means of a batch norm)
    become the mean over the ranks, so that the model is the same everywhere at every step.
    """

    own = False

    def __init__(self, training: Training, model: Any, strategy: Strategy, *, wire: str) -> None:
        self.strategy, self.clip_norm, self.wire = strategy, training.optimizer.clip_norm, wire
        named = trainable(model)
        self.parameters = [parameter for _, parameter in named]
        self.counted = [strategy.counts(name) for name, _ in named]
        self.buffers = shared_buffers(model) if strategy.data_group.size > 1 else []
        self.sizes, self.buffer_sizes = sizes_of(self.parameters), sizes_of(self.buffers)
        self.num_gradients = sum(self.sizes)

    def exchange(self, loss: Any | None, *, weight: float, scale: float, stop: bool, commit: bool) -> Exchanged:
        if self.strategy.world.size == 1:
            return self._alone(loss, scale=scale, stop=stop, commit=commit)
        with paddle.no_grad():
            flat, told, sent_bytes = self._sum(self._told(loss, weight, stop=stop, commit=commit))
            total, stops, commits = (float(value) for value in told[-3:].numpy())
            exchanged = agree(
                self.strategy,
                self._squares(flat),
                total,
                scale=scale,
                stop=stops > 0,
                commit=commits > 0,
                sent_bytes=sent_bytes,
            )
            factor = gradient_factor(exchanged.norm, scale=scale, clip_norm=self.clip_norm)
            if factor != 1.0:
                flat.scale_(factor)
            for parameter, piece in zip(self.parameters, unflatten(flat, self.sizes), strict=True):
                parameter.grad = piece.reshape(parameter.shape)
            for buffer, mean in zip(self.buffers, unflatten(told[:-3], self.buffer_sizes), strict=True):
                buffer.set_value(mean.reshape(buffer.shape))
        return exchanged

    def after_update(self, step: int) -> int:
        return 0

    def settled(self, step: int) -> bool:
        return True

    def state(self, optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def load(self, step: int, states: Mapping[int, Mapping[str, Any]], optimizer: Mapping[str, Any]) -> None:
        pass

    def _told(self, loss: Any | None, weight: float, *, stop: bool, commit: bool) -> list[Any]:
        parts = [buffer.reshape([-1]) * weight for buffer in self.buffers]
        parts.append(paddle.zeros([1]) if loss is None else loss.reshape([1]).astype("float32"))
        parts.append(paddle.to_tensor(np.array([stop, commit], np.float32)))
        return parts

    def _sum(self, told: list[Any]) -> tuple[Any, Any, int]:
        """(gradients, what else is told, bytes sent), summed over the data group; gradients in float32."""
        group = self.strategy.data_group
        gradients = flatten([parameter.grad for parameter in self.parameters], self.sizes)
        if self.wire == "float32":
            flat = paddle.concat([gradients, *told])
            group.sum_(flat)
            sent_bytes = bytes_of(flat) if group.size > 1 else 0
            return flat[: self.num_gradients], flat[self.num_gradients :], sent_bytes
        narrow, rest = gradients.astype(self.wire), paddle.concat(told)
        group.sum_(narrow)
        group.sum_(rest)
        sent_bytes = bytes_of(narrow, rest) if group.size > 1 else 0
        return narrow.astype("float32"), rest, sent_bytes

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
        pieces = unflatten(gradients, self.sizes)
        return sum(square(piece) for piece, counts in zip(pieces, self.counted, strict=True) if counts)
