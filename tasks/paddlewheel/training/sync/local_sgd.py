"""Local SGD (Stich 2019): each rank steps by its own gradients, and every `steps` steps the parameters are averaged.

With `outer_momentum`, DiLoCo (Douillard and others 2023): the mean change of a round is a gradient, by which an outer
SGD with Nesterov's momentum moves the parameters of the round's beginning. Means are weighted by the round's rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import paddle

from paddlewheel.recipe import Training
from paddlewheel.training.state import trainable
from paddlewheel.training.strategies import Strategy
from paddlewheel.training.sync.agreement import Exchanged, agree, gradient_factor, square
from paddlewheel.training.sync.flat import bytes_of, drop_gradients, flatten, shared_buffers, sizes_of, unflatten

OUTER, INNER = "outer.", "optimizer."


class LocalSGD:
    """Ranks talk at a round's end alone: only then is the loss that of all ranks, and only then can they stop or
    commit. Between, each has parameters of its own; the state of its inner optimizer stays its own, and is saved so.

    On another number of ranks that state starts from its mean.
    """

    def __init__(self, training: Training, model: Any, strategy: Strategy, total_steps: int) -> None:
        self.strategy, self.clip_norm, self.settings = strategy, training.optimizer.clip_norm, training.exchange
        self.total_steps = total_steps
        named = trainable(model)
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.counted = [strategy.counts(name) for name in self.names]
        self.buffers = shared_buffers(model)
        self.sizes, self.buffer_sizes = sizes_of(self.parameters), sizes_of(self.buffers)
        self.outer = bool(self.settings.outer_momentum) or self.settings.outer_learning_rate != 1.0
        self.own = strategy.data_group.size > 1 or self.outer
        self.momentum = paddle.zeros([sum(self.sizes)])
        self.step, self.rows, self.asked = 0, 0.0, np.zeros(2)
        self.rows_before = 0.0  # the step at hand
        self.anchor = self._parameters()

    def exchange(self, loss: Any | None, *, weight: float, scale: float, stop: bool, commit: bool) -> Exchanged:
        """This rank's own gradient over its own rows; at a round's end also the loss, stop and commit of all."""
        self.rows_before = self.rows
        self.rows += weight
        self.asked += (stop, commit)
        own = scale * weight or 1.0
        value = 0.0 if loss is None else float(loss) / scale
        with paddle.no_grad():
            for parameter in self.parameters:
                if parameter.grad is None:
                    parameter.grad = paddle.zeros_like(parameter)
            counting = [one for one, counts in zip(self.parameters, self.counted, strict=True) if counts]
            squares, sent_bytes = sum(square(one.grad) for one in counting), 0
            if self.settled(self.step + 1):
                told = paddle.to_tensor(np.array([value, *self.asked], np.float32))
                self.strategy.data_group.sum_(told)
                value, stops, commits = (float(one) for one in told.numpy())
                self.asked[:] = 0
                sent_bytes = bytes_of(told)
            else:
                value, stops, commits = value / (weight or 1.0), 0.0, 0.0
            exchanged = agree(
                self.strategy,
                squares / own**2,
                value,
                scale=1.0,
                stop=stops > 0,
                commit=commits > 0,
                sent_bytes=sent_bytes if self.strategy.data_group.size > 1 else 0,
            )
            factor = gradient_factor(exchanged.norm, scale=own, clip_norm=self.clip_norm)
            if factor != 1.0 and math.isfinite(factor):
                for parameter in self.parameters:
                    parameter.grad.scale_(factor)
        return replace(exchanged, alike=self.strategy.data_group.size == 1)

    def leave_out(self) -> None:
        """The step's rows moved nothing here, so they have no weight in the round's mean."""
        self.rows = self.rows_before

    def clear(self) -> None:
        drop_gradients(self.parameters)

    def after_update(self, step: int) -> int:
        """At a round's end, the mean of the parameters, or the outer step towards it; bytes sent."""
        self.step = step
        if not self.settled(step):
            return 0
        with paddle.no_grad():
            flat = paddle.concat([self._parameters(), *(one.reshape([-1]) for one in self.buffers)]) * self.rows
            flat = paddle.concat([flat, paddle.full([1], self.rows)])
            self.strategy.data_group.sum_(flat)
            sent_bytes = bytes_of(flat) if self.strategy.data_group.size > 1 else 0
            if float(flat[-1]) == 0.0:
                return sent_bytes  # all steps of the round were passed over or left out: nobody's parameters changed
            means = flat[:-1] / flat[-1]
            count = sum(self.sizes)
            mean = means[:count]
            if self.outer:
                change = self.anchor - mean
                self.momentum = self.momentum * self.settings.outer_momentum + change
                ahead = change + self.momentum * self.settings.outer_momentum
                mean = self.anchor - ahead * self.settings.outer_learning_rate
            self._set(mean)
            for buffer, value in zip(self.buffers, unflatten(means[count:], self.buffer_sizes), strict=True):
                buffer.set_value(value.reshape(buffer.shape))
            self.anchor, self.rows = mean, 0.0
        return sent_bytes

    def settled(self, step: int) -> bool:
        return step % self.settings.steps == 0 or step == self.total_steps

    def state(self, optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
        own = {f"{INNER}{name}": tensor for name, tensor in optimizer.items()}
        if self.outer:
            parts = zip(self.names, unflatten(self.momentum, self.sizes), strict=True)
            own |= {f"{OUTER}{name}": part for name, part in parts}
        return own

    def load(self, step: int, states: Mapping[int, Mapping[str, Any]], optimizer: Mapping[str, Any]) -> None:
        rank = self.strategy.world.rank
        same = len(states) == self.strategy.world.size
        with paddle.no_grad():
            for name, tensor in optimizer.items():
                saved = {of: arrays[f"{INNER}{name}"] for of, arrays in states.items() if f"{INNER}{name}" in arrays}
                fits = [one for one in saved.values() if list(one.shape) == list(tensor.shape)]
                if same and rank in saved:
                    tensor.set_value(saved[rank])
                elif fits:
                    tensor.set_value((sum(fits) / len(fits)).astype(fits[0].dtype))
            parts = []
            for name, size in zip(self.names, self.sizes, strict=True):
                found = [arrays[f"{OUTER}{name}"] for arrays in states.values() if f"{OUTER}{name}" in arrays]
                mine = states[rank][f"{OUTER}{name}"] if same and found else next(iter(found), np.zeros(0))
                parts.append(paddle.to_tensor(mine.reshape(-1)) if mine.size == size else None)
            self.momentum = flatten(parts, self.sizes)
            self.step, self.rows, self.asked = step, 0.0, np.zeros(2)
            self.anchor = self._parameters()

    def _parameters(self) -> Any:
        with paddle.no_grad():
            return flatten(self.parameters, self.sizes)

    def _set(self, flat: Any) -> None:
        for parameter, value in zip(self.parameters, unflatten(flat, self.sizes), strict=True):
            parameter.set_value(value.reshape(parameter.shape))
