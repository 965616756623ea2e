"""The stages of a pipeline at work: micro-batches go forward, their gradients come back (Huang and others 2019).

gpipe runs all forward passes, then all backward passes, and holds the activations of all micro-batches. 1f1b (Narayanan
and others 2019) lets one backward pass follow each forward pass as soon as there is one, and holds those of at most as
many micro-batches as there are stages from here on. Both add up the same gradients in the same order.

A send waits for its receiver. So two neighbours that both have something to give change places by their parity: the
even stage sends first. Neighbours are a group of two, since Paddle's gloo counts the messages of a group on each rank,
and takes none whose number is another on the other side. Rejected: batch_isend_irecv, which can dead-lock on gloo.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import paddle

from paddlewheel.errors import RecipeError
from paddlewheel.training.groups import Group
from paddlewheel.training.strategies.stages import as_tuple
from paddlewheel.training.sync.flat import bytes_of

TYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "bool")
MOST_TENSORS, MOST_AXES = 16, 8


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rank's stage, and the groups of two with the stage before and the one after."""

    stage: int
    stages: int
    before: Group
    after: Group


class Pipeline:
    """One rank's stage. sent_bytes: given to neighbours in the last step. alive: micro-batches whose activations are
    held; most_alive: the most so far."""

    def __init__(
        self, model: Any, layers: Sequence[Callable[[Any], Any]], place: Place, schedule: Literal["1f1b", "gpipe"]
    ) -> None:
        self.model, self.layers, self.place, self.schedule = model, layers, place, schedule
        self.stage, self.stages = place.stage, place.stages
        self.first, self.last = self.stage == 0, self.stage == self.stages - 1
        self.sent_bytes = self.alive = self.most_alive = 0
        self._shapes: dict[tuple[str, int], list[tuple[str, list[int]]]] = {}

    def backward(self, batches: Sequence[Any], weights: Sequence[float], compute: Any) -> Any | None:
        """Forward and backward of all micro-batches; on the last stage the sum of mean loss times weight, detached."""
        self.sent_bytes = 0
        step = _Step(self, batches, weights, compute)
        count = len(batches)
        ahead = count if self.schedule == "gpipe" else min(count, self.stages - 1 - self.stage)
        for place in range(ahead):
            step.forward(place, self.take_forward(place, batches, compute))
            self.give_forward(step, place, compute)
        taken = self.take_forward(ahead, batches, compute)
        for place in range(ahead, count):
            step.forward(place, taken)
            # One forward and one backward pass: what goes on and what comes back pass each other.
            gradients = self._swap(
                functools.partial(self.give_forward, step, place, compute),
                functools.partial(self.take_backward, step, place - ahead, compute),
                to_next=True,
            )
            given = step.backward(place - ahead, gradients)
            taken = self._swap(
                functools.partial(self.give_backward, given, batches[place - ahead], compute),
                functools.partial(self.take_forward, place + 1, batches, compute),
                to_next=False,
            )
        for place in range(count - ahead, count):
            given = step.backward(place, self.take_backward(step, place, compute))
            self.give_backward(given, batches[place], compute)
        return step.total

    def take_forward(self, place: int, batches: Sequence[Any], compute: Any) -> Any:
        """What this stage's first layer takes: the batch's inputs, or what the stage before gives; None behind the
        last batch."""
        if place == len(batches):
            return None
        if self.first:
            return self.model.inputs(batches[place])
        tensors = self._receive("forward", len(batches[place]))
        compute.lap("exchange")
        for one in tensors:
            one.stop_gradient = not one.is_floating_point()
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def give_forward(self, step: _Step, place: int, compute: Any) -> None:
        """The stage's outputs to the next one."""
        if not self.last:
            outputs = [one.detach() for one in as_tuple(step.outputs[place])]
            self._send("forward", len(step.batches[place]), outputs)
            compute.lap("exchange")

    def take_backward(self, step: _Step, place: int, compute: Any) -> list[Any]:
        """Gradients of the stage's outputs that have any, from the next one."""
        if self.last:
            return []
        gradients = self._receive("backward", len(step.batches[place]))
        compute.lap("exchange")
        return gradients

    def give_backward(self, gradients: Sequence[Any], batch: Any, compute: Any) -> None:
        """Gradients of the stage's inputs to the one before."""
        if not self.first:
            self._send("backward", len(batch), gradients)
            compute.lap("exchange")

    def _swap(self, give: Callable[[], Any], take: Callable[[], Any], *, to_next: bool) -> Any:
        """Give to a neighbour and take from it; what was taken. Where there is no neighbour both do nothing."""
        alone = self.last if to_next else self.first
        if alone or self.stage % 2 == 0:
            give()
            return take()
        taken = take()
        give()
        return taken

    def _send(self, way: str, rows: int, tensors: Sequence[Any]) -> None:
        """To the stage after this one, or `backward` to the one before.

        Shapes go ahead with the first micro-batch of so many rows; both sides know how many it has."""
        group, to = (self.place.after, 1) if way == "forward" else (self.place.before, 0)
        told = [(str(one.dtype).rpartition(".")[2], list(one.shape)) for one in tensors]
        if (way, rows) not in self._shapes:
            group.send(_header(told), to=to)
            self._shapes[way, rows] = told
        elif told != self._shapes[way, rows]:
            raise RecipeError(
                f"training.parallel.pipeline: stage {self.stage} gave {self._shapes[way, rows]} for {rows} rows, and "
                f"{told} now; shapes between the layers may depend on the number of rows alone"
            )
        for one in tensors:
            group.send(one.contiguous(), to=to)
            self.sent_bytes += bytes_of(one)

    def _receive(self, way: str, rows: int) -> list[Any]:
        group, source = (self.place.before, 0) if way == "forward" else (self.place.after, 1)
        key = (f"from {way}", rows)
        if key not in self._shapes:
            header = paddle.zeros([1 + MOST_TENSORS * (2 + MOST_AXES)], "int64")
            group.recv_(header, source=source)
            self._shapes[key] = _told(header.numpy().tolist())
        tensors = [paddle.empty(shape, kind) for kind, shape in self._shapes[key]]
        for one in tensors:
            group.recv_(one, source=source)
        return tensors


class _Step:
    """What one rank holds of a step's micro-batches."""

    def __init__(self, pipeline: Pipeline, batches: Sequence[Any], weights: Sequence[float], compute: Any) -> None:
        self.pipeline, self.batches, self.weights, self.compute = pipeline, batches, weights, compute
        self.inputs: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}
        self.total: Any | None = None

    def forward(self, place: int, taken: Any) -> None:
        """The stage's layers on what was taken; on the last stage the weighted loss too."""
        pipeline, hidden = self.pipeline, taken
        with self.compute.cast():
            for layer in pipeline.layers:
                hidden = layer(hidden)
            if pipeline.last:
                loss = pipeline.model.loss_of(hidden, self.batches[place])
                hidden = loss if self.weights[place] == 1.0 else loss * self.weights[place]
                found = hidden.detach()
                self.total = found if self.total is None else self.total + found
        self.inputs[place], self.outputs[place] = taken, hidden
        pipeline.alive = len(self.outputs)
        pipeline.most_alive = max(pipeline.most_alive, pipeline.alive)
        self.compute.lap("forward")

    def backward(self, place: int, gradients: Sequence[Any]) -> list[Any]:
        """Gradients of what was taken, from those of what was given; of tensors of floats alone."""
        taken, given = self.inputs.pop(place), self.outputs.pop(place)
        if self.pipeline.last:
            given.backward()
        else:
            pairs = [
                (one, gradient)
                for one, gradient in zip(_floating(given), gradients, strict=True)
                if not one.stop_gradient
            ]
            if pairs:
                paddle.autograd.backward([one for one, _ in pairs], [gradient for _, gradient in pairs])
        self.compute.lap("backward")
        if self.pipeline.first:
            return []
        return [paddle.zeros_like(one) if one.grad is None else one.grad for one in _floating(taken)]


def _floating(value: Any) -> list[Any]:
    return [one for one in as_tuple(value) if one.is_floating_point()]


def _header(told: Sequence[tuple[str, Sequence[int]]]) -> Any:
    """Types and shapes as int64: how many tensors, then for each its type, its axes and their lengths."""
    if len(told) > MOST_TENSORS or any(len(shape) > MOST_AXES for _, shape in told):
        raise ValueError(f"a stage gives {len(told)} tensors; {MOST_TENSORS} of up to {MOST_AXES} axes can be sent")
    numbers = [len(told)]
    for kind, shape in told:
        numbers += [TYPES.index(kind), len(shape), *shape, *([0] * (MOST_AXES - len(shape)))]
    numbers += [0] * (1 + MOST_TENSORS * (2 + MOST_AXES) - len(numbers))
    return paddle.to_tensor(np.array(numbers, np.int64))


def _told(numbers: Sequence[int]) -> list[tuple[str, list[int]]]:
    """What `_header` told."""
    found = []
    for place in range(numbers[0]):
        start = 1 + place * (2 + MOST_AXES)
        kind, axes = numbers[start : start + 2]
        found.append((TYPES[kind], list(numbers[start + 2 : start + 2 + axes])))
    return found
