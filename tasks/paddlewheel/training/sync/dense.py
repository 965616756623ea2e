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
from paddlewheel.training.sync.flat import (
    GradientBuffer,
    bytes_of,
    drop_gradients,
    shared_buffers,
    sizes_of,
    unflatten,
)

TOLD = 3  # numbers of a step besides gradients and buffers: loss, stop, commit


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
        self.held: GradientBuffer | None = None
        if strategy.world.size > 1:
            self.held = GradientBuffer(self.parameters, room=sum(self.buffer_sizes) + TOLD)

    def exchange(self, loss: Any | None, *, weight: float, scale: float, stop: bool, commit: bool) -> Exchanged:
        held = self.held
        if held is None:
            return self._alone(loss, scale=scale, stop=stop, commit=commit)
        with paddle.no_grad():
            held.gather()
            held.rest.set_value(paddle.concat(self._told(loss, weight, stop=stop, commit=commit)))
            sent_bytes = self._sum(held)
            total, stops, commits = (float(value) for value in held.rest[-TOLD:].numpy())
            exchanged = agree(
                self.strategy,
                self._squares(held.gradients),
                total,
                scale=scale,
                stop=stops > 0,
                commit=commits > 0,
                sent_bytes=sent_bytes,
            )
            factor = gradient_factor(exchanged.norm, scale=scale, clip_norm=self.clip_norm)
            if factor != 1.0:
                held.gradients.scale_(factor)
            for buffer, mean in zip(self.buffers, unflatten(held.rest[:-TOLD], self.buffer_sizes), strict=True):
                buffer.set_value(mean.reshape(buffer.shape))
        return exchanged

    def leave_out(self) -> None:
        pass

    def clear(self) -> None:
        if self.held is None:
            drop_gradients(self.parameters)
        else:
            self.held.clear()

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

    def _sum(self, held: GradientBuffer) -> int:
        """Sum what is held over the data group; bytes sent."""
        group = self.strategy.data_group
        if self.wire == "float32":
            group.sum_(held.flat)
            return bytes_of(held.flat) if group.size > 1 else 0
        narrow = held.gradients.astype(self.wire)
        group.sum_(narrow)
        group.sum_(held.rest)
        held.gradients.set_value(narrow.astype("float32"))
        return bytes_of(narrow, held.rest) if group.size > 1 else 0

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
