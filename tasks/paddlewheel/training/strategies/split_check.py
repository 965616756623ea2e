"""Whether a split model is still the model that was written: loss and gradients of a few rows, before and after.

A plan is a user's: a layer split by column whose reader wants all of its outputs may fail, or give other numbers
without a word. Each rank has the whole model at this point anyway, and a few rows cost a fraction of a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import paddle

from paddlewheel.training.groups import Group
from paddlewheel.training.peers import PeerError
from paddlewheel.training.pieces import Piece
from paddlewheel.training.sync.flat import drop_gradients

TOLERANCE = 1e-3  # of a parameter's largest gradient, and of the loss: float32 adds up in another order
NOISE = 1e-6  # of the model's largest: a gradient that is 0 by its formula, such as a key's bias, is only rounding


def gradients_of(model: Any, sample: Callable[[], Any]) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of the sample without dropout, by parameter; the model is left as it was."""
    with _quiet(model):
        loss = model.loss(sample())
        loss.backward()
        gradients = {
            name: np.zeros(parameter.shape, np.float32) if parameter.grad is None else parameter.grad.numpy()
            for name, parameter in model.named_parameters()
            if not parameter.stop_gradient
        }
        drop_gradients(model.parameters())
    return float(loss), gradients


def same_gradients(
    model: Any,
    sample: Callable[[], Any],
    before: tuple[float, Mapping[str, np.ndarray]],
    pieces: Mapping[str, Piece],
    group: Group,
) -> str:
    """Why the split model is not the plain one, told on all of the group; empty where loss and gradients are equal."""
    wrong = ""
    try:
        loss, gradients = gradients_of(model, sample)
    except PeerError:
        raise
    except Exception as error:  # whatever a network of the user's own says of shapes that it does not expect
        lines = [line for line in str(error).splitlines() if line.strip()]
        wrong = f"it fails: {type(error).__name__}: {lines[0].strip() if lines else ''}"
    else:
        scale = max((float(np.abs(one).max(initial=0.0)) for one in before[1].values()), default=0.0)
        if not abs(loss - before[0]) <= TOLERANCE * max(1.0, abs(before[0])):
            wrong = f"the loss of {loss:.6g} is {before[0]:.6g} unsplit"
        for name, gradient in gradients.items():
            whole = before[1][name]
            part = pieces[name].cut(whole) if name in pieces else whole
            difference = float(np.abs(gradient - part).max(initial=0.0))
            largest = float(np.abs(whole).max(initial=0.0))
            if not wrong and not difference <= max(TOLERANCE * largest, NOISE * scale, 1e-9):
                wrong = f"the gradient of {name} is off by {difference:.3g}, where its largest is {largest:.3g}"
    told = paddle.to_tensor([float(bool(wrong))])
    group.sum_(told)
    return "another rank found it so" if float(told) > 0 and not wrong else wrong


@contextlib.contextmanager
def _quiet(model: Any) -> Iterator[None]:
    """Without dropout, and with running means left as they are."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
