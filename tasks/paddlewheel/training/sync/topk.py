"""The largest gradients alone, with error feedback (Stich and others 2018; the compression of Lin and others 2018).

Each rank adds its gradient to what it kept back before, sends the `ratio` largest of each parameter by magnitude, and
keeps the rest for later steps; all add up what all sent. Small parameters travel whole. Rejected: fleet's dgc flag,
which is ignored in dygraph.
"""

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
from paddlewheel.training.sync.flat import bytes_of, drop_gradients, shared_buffers, sizes_of, unflatten

WHOLE_BELOW = 512  # elements; an index costs as much as a value
RESIDUAL = "residual."


class TopK:
    """Indices and values of all ranks by one gather each. The residuals are this rank's alone: it saves them.

    On another number of ranks the sum of the residuals is shared out evenly, so that no gradient is lost.
    """

    def __init__(self, training: Training, model: Any, strategy: Strategy, total_steps: int) -> None:
        self.strategy, self.clip_norm = strategy, training.optimizer.clip_norm
        self.names = [name for name, _ in trainable(model)]
        self.parameters = [parameter for _, parameter in trainable(model)]
        self.counted = [strategy.counts(name) for name in self.names]
        self.buffers = shared_buffers(model) if strategy.data_group.size > 1 else []
        self.sizes, self.buffer_sizes = sizes_of(self.parameters), sizes_of(self.buffers)
        self.kept = [
            size if size <= WHOLE_BELOW else max(1, math.ceil(training.exchange.ratio * size)) for size in self.sizes
        ]
        self.own = True
        self.residuals = [paddle.zeros([size]) for size in self.sizes]
        self.before: list[Any] = []  # the step's, while it may still be left out

    def exchange(self, loss: Any | None, *, weight: float, scale: float, stop: bool, commit: bool) -> Exchanged:
        group = self.strategy.data_group
        with paddle.no_grad():
            wanted = [self._wanted(place, scale) for place in range(len(self.parameters))]
            chosen = [_largest(tensor, kept) for tensor, kept in zip(wanted, self.kept, strict=True)]
            starts = np.cumsum([0, *self.sizes[:-1]])
            indices = paddle.concat([one + int(start) for one, start in zip(chosen, starts, strict=True)])
            values = paddle.concat([paddle.gather(one, at) for one, at in zip(wanted, chosen, strict=True)])
            told = [buffer.reshape([-1]) * weight for buffer in self.buffers]
            told.append(paddle.zeros([1]) if loss is None else loss.reshape([1]).astype("float32"))
            rest = paddle.concat([*told, paddle.to_tensor(np.array([stop, commit], np.float32))])
            flat = paddle.zeros([sum(self.sizes)])
            for others, theirs in zip(group.gather(indices), group.gather(values), strict=True):
                flat = paddle.scatter(flat, others, paddle.gather(flat, others) + theirs)
            group.sum_(rest)
            total, stops, commits = (float(value) for value in rest[-3:].numpy())
            gradients = unflatten(flat, self.sizes)
            counting = [one for one, counts in zip(gradients, self.counted, strict=True) if counts]
            sent = bytes_of(indices, values, rest) if group.size > 1 else 0
            exchanged = agree(
                self.strategy,
                sum(square(one) for one in counting),
                total / scale,
                scale=1.0,
                stop=stops > 0,
                commit=commits > 0,
                sent_bytes=sent,
            )
            factor = gradient_factor(exchanged.norm, scale=1.0, clip_norm=self.clip_norm)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = (gradient if factor == 1.0 else gradient * factor).reshape(parameter.shape)
            for buffer, mean in zip(self.buffers, unflatten(rest[:-3], self.buffer_sizes), strict=True):
                buffer.set_value(mean.reshape(buffer.shape))
            self.before = self.residuals
            self.residuals = [
                paddle.scatter(one, at, paddle.zeros([len(at)])) for one, at in zip(wanted, chosen, strict=True)
            ]
        return exchanged

    def leave_out(self) -> None:
        """What a step that does not count brought must not come back later, nor what it would have sent be lost."""
        self.residuals = self.before

    def clear(self) -> None:
        drop_gradients(self.parameters)
        self.before = []

    def after_update(self, step: int) -> int:
        return 0

    def settled(self, step: int) -> bool:
        return True

    def state(self, optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
        return {f"{RESIDUAL}{name}": one for name, one in zip(self.names, self.residuals, strict=True)}

    def load(self, step: int, states: Mapping[int, Mapping[str, Any]], optimizer: Mapping[str, Any]) -> None:
        group, rank = self.strategy.data_group, self.strategy.world.rank
        for place, (name, size) in enumerate(zip(self.names, self.sizes, strict=True)):
            saved = {
                of: arrays[f"{RESIDUAL}{name}"]
                for of, arrays in states.items()
                if f"{RESIDUAL}{name}" in arrays and arrays[f"{RESIDUAL}{name}"].size == size
            }
            if not saved:
                self.residuals[place] = paddle.zeros([size])
            elif len(states) == self.strategy.world.size and rank in saved:
                self.residuals[place] = paddle.to_tensor(saved[rank].reshape(-1))
            else:
                mean = sum(saved.values()).reshape(-1) / np.float32(group.size)
                self.residuals[place] = paddle.to_tensor(mean.astype(np.float32))

    def _wanted(self, place: int, scale: float) -> Any:
        """A parameter's residual with this step's gradient, flat."""
        gradient = self.parameters[place].grad
        if gradient is None:
            return self.residuals[place]
        flat = gradient.reshape([-1]).astype("float32")
        return self.residuals[place] + (flat if scale == 1.0 else flat / scale)


def _largest(tensor: Any, count: int) -> Any:
    """Indices of the `count` elements of largest magnitude, int64[count]; of a flat tensor."""
    size = int(tensor.shape[0])
    if count >= size:
        return paddle.arange(size)
    if tensor.place.is_cpu_place():
        magnitudes = np.abs(tensor.numpy())
        return paddle.to_tensor(np.argpartition(magnitudes, size - count)[size - count :].astype(np.int64))
    return paddle.topk(tensor.abs(), count, sorted=False)[1]
