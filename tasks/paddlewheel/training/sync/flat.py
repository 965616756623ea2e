"""Many tensors as one flat one, so that a collective is paid for once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle


def sizes_of(tensors: Sequence[Any]) -> list[int]:
    """Elements of each."""
    return [int(np.prod(tensor.shape)) for tensor in tensors]


def bytes_of(*tensors: Any) -> int:
    """Bytes of all elements."""
    return sum(int(tensor.element_size()) * int(np.prod(tensor.shape)) for tensor in tensors)


def flatten(tensors: Sequence[Any | None], sizes: Sequence[int]) -> Any:
    """One float32 tensor of all elements, in order; zeros for those that are None."""
    parts = [
        paddle.zeros([size]) if tensor is None else tensor.reshape([-1]).astype("float32")
        for tensor, size in zip(tensors, sizes, strict=True)
    ]
    return paddle.concat(parts) if len(parts) > 1 else parts[0].clone()


def unflatten(flat: Any, sizes: Sequence[int]) -> list[Any]:
    """The flat parts of a flat tensor; none for no sizes."""
    return list(paddle.split(flat, list(sizes))) if len(sizes) > 1 else [flat][: len(sizes)]


def drop_gradients(parameters: Sequence[Any]) -> None:
    """Forget the parameters' gradients; a parameter that a step leaves unused has none then."""
    for parameter in parameters:
        parameter.clear_gradient(False)


class GradientBuffer:
    """The gradients of float32 parameters as parts of one flat tensor, in which the backward pass adds them up.

    flat: float32, the gradients in order, and `room` more numbers behind them for what is summed along; gradients,
    rest: views of both. So a gradient of a hundred megabytes is neither gathered into a buffer nor handed out again,
    but where a network's own code gave a parameter another one.
    """

    def __init__(self, parameters: Sequence[Any], *, room: int) -> None:
        sizes = sizes_of(parameters)
        count = sum(sizes)
        self.flat = paddle.zeros([count + room])
        self.gradients, self.rest = self.flat[:count], self.flat[count:]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        self.parts = [
            (parameter, self.flat[start : start + size].reshape(parameter.shape))
            for parameter, start, size in zip(parameters, starts, sizes, strict=True)
        ]
        self.gather()

    def gather(self) -> None:
        """Take in what lies elsewhere: a gradient that was cleared or set by hand has memory of its own."""
        with paddle.no_grad():
            for parameter, part in self.parts:
                gradient = parameter.grad
                if gradient is not None and gradient.data_ptr() == part.data_ptr():
                    continue
                if gradient is None:
                    part.zero_()
                else:
                    part.set_value(gradient)
                parameter.grad = part  # which copies it; only then is there a gradient to give memory to
                part._share_buffer_to(parameter._grad_ivar())

    def clear(self) -> None:
        """All zeros: a parameter that a step leaves unused has a gradient of zero."""
        self.flat.zero_()


def shared_buffers(model: Any) -> list[Any]:
    """What a model holds in float32 and no gradient moves, which ranks average: running means, kept by Paddle's batch
    norms as parameters that are not trained, and buffers."""
    return [tensor for tensor in model.state_dict().values() if tensor.stop_gradient and tensor.dtype == paddle.float32]
