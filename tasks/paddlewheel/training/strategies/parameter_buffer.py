"""A model's parameters as parts of one flat tensor, so that ranks exchange runs of elements where they lie.

Paddle's own `_share_buffer_to` gives a tensor another's memory. Where something gave one of them memory of its own
since, as an optimizer that does not write in place would, its values are taken and the memory is shared again.
Rejected: gathering runs into tensors and handing them out, which takes twice the model's memory more at each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle

ALIGNED = 64  # elements: where a parameter begins, so that matrix products see the alignment that they are fast with


class ParameterBuffer:
    """float32 parameters in order, each from a multiple of ALIGNED on, zeros between. starts: where each begins."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.parameters, self.starts, count = list(parameters), [], 0
        for parameter in self.parameters:
            self.starts.append(count)
            count += -(-int(parameter.size) // ALIGNED) * ALIGNED
        self.count = count
        self.flat = paddle.zeros([count])
        self.take_in()

    def run(self, start: int, end: int) -> Any:
        """A 1-D view of elements `start` to before `end`."""
        return self.flat._slice(start, end)

    def take_in(self) -> None:
        """The parameters' values, where one of them has memory of its own."""
        for parameter, start in zip(self.parameters, self.starts, strict=True):
            self.attach(parameter, start)

    def attach(self, tensor: Any, start: int) -> None:
        """Let a tensor's memory be that of the buffer from `start` on, and what is there its values."""
        part = self.run(start, start + int(tensor.size))
        if tensor.data_ptr() != part.data_ptr():
            with paddle.no_grad():
                part.copy_(tensor.detach().reshape([-1]), True)
            self.lend(tensor, start)

    def lend(self, tensor: Any, start: int) -> None:
        """Let a tensor's memory, and so its values, be those of the buffer from `start` on."""
        with paddle.no_grad():
            self.run(start, start + int(tensor.size)).reshape(tensor.shape)._share_buffer_to(tensor)
