"""A model's and an optimizer's state as named host arrays and back; the running average of the parameters.

Names are those of the model's structure, not Paddle's own counters, so that they mean the same in every process.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from paddlewheel.errors import CheckpointError
from paddlewheel.training.checkpoint import AVERAGE
from paddlewheel.training.pieces import Piece


def model_tensors(model: Any) -> dict[str, Any]:
    """Parameters and persistable buffers by their names in the model."""
    return dict(model.state_dict())


def optimizer_tensors(optimizer: Any, owned: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Accumulators as `parameter.accumulator`, made where no step has made them yet.

    owned: what it updates, by name.
    """
    names = {parameter.name: name for name, parameter in owned}
    block = paddle.base.framework.default_main_program().global_block()
    optimizer._create_accumulators(block, [parameter for _, parameter in owned])
    return {
        f"{names[parameter]}.{accumulator}": tensor
        for accumulator, by_parameter in optimizer._accumulators.items()
        for parameter, tensor in by_parameter.items()
    }


def is_power(name: str) -> bool:
    """Whether an accumulator is a single number whatever the parameter's shape: a power of one of Adam's betas."""
    return name.endswith("_pow_acc")


def trainable(model: Any) -> list[tuple[str, Any]]:
    """Name and parameter of all that is trained, in the model's order."""
    return [(name, parameter) for name, parameter in model.named_parameters() if not parameter.stop_gradient]


def set_tensors(
    tensors: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    where: str,
    *,
    pieces: Mapping[str, Piece] = types.MappingProxyType({}),
    complete: bool = True,
) -> None:
    """Overwrite every tensor with the array of its name, or with the piece of it that is told.

    complete: whether an array that no tensor asks for is a fault; a rank that holds a part of the model asks for some.
    Raises CheckpointError that tells all that does not fit, before anything is overwritten.
    """
    faults = [f"{name} is missing" for name in tensors if name not in arrays]
    if complete:
        faults += [f"{name} is not the model's" for name in arrays if name not in tensors]
    found = {}
    for name, tensor in tensors.items():
        if name not in arrays:
            continue
        whole, piece = arrays[name], pieces.get(name)
        demanded = list(piece.shape) if piece is not None else list(tensor.shape)
        if list(whole.shape) != demanded:
            faults.append(f"{name} has the shape {list(whole.shape)}, not {demanded}")
        elif whole.dtype.name != str(tensor.dtype).rpartition(".")[2]:
            faults.append(f"{name} has the type {whole.dtype.name}, not {str(tensor.dtype).rpartition('.')[2]}")
        else:
            found[name] = whole if piece is None else piece.cut(whole)
    if faults:
        raise CheckpointError(f"{where} does not fit this model and optimizer: {'; '.join(faults)}")
    with paddle.no_grad():
        for name, tensor in tensors.items():
            tensor.set_value(np.ascontiguousarray(found[name]).reshape(tensor.shape))


class Average:
    """Exponential running average of the parameters, which is what is evaluated and served.

    The decay grows with the steps up to its value, (1 + step) / (10 + step) at first, so that the random start is soon
    forgotten (as in TensorFlow's ExponentialMovingAverage with `num_updates`).
    """

    def __init__(self, model: Any, decay: float) -> None:
        self.decay = decay
        self.sources = trainable(model)
        with paddle.no_grad():
            self.averages = {name: parameter.detach().clone() for name, parameter in self.sources}

    def update(self, step: int, *, steps: int = 1) -> None:
        """Take in the parameters after `step` global steps, on behalf of the last `steps` of them."""
        share = 1 - min(self.decay, (1 + step) / (10 + step)) ** steps
        with paddle.no_grad():
            for name, parameter in self.sources:
                average = self.averages[name]
                average.scale_(1 - share)
                average.add_(parameter * share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The parameters hold the averages within, and what they held before afterwards, bit for bit."""
        with paddle.no_grad():
            kept = [parameter.clone() for _, parameter in self.sources]
            for name, parameter in self.sources:
                parameter.set_value(self.averages[name])
        try:
            yield
        finally:
            with paddle.no_grad():
                for (_, parameter), before in zip(self.sources, kept, strict=True):
                    parameter.set_value(before)

    def tensors(self) -> dict[str, Any]:
        """The averages, named for a commit."""
        return {f"{AVERAGE}{name}": tensor for name, tensor in self.averages.items()}
