"""The two functions between a whole tensor and parts of the computation (f and g of Shoeybi and others 2019).

All ranks of the group hold the same whole tensor and reckon the same loss; each is the other's backward pass.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle.autograd import PyLayer

from paddlewheel.training.groups import Group


class Spread:
    """f: hands a whole tensor to this rank's part; backward adds up the parts' gradients.

    Layers that read the same tensor, as query, key and value do, share one result, and so one sum.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._last: tuple[Any, tuple[bool, int], Any] | None = None

    def __call__(self, whole: Any) -> Any:
        if whole.stop_gradient:
            return whole
        if whole.is_leaf:  # a parameter is the same tensor in every step, the graph behind its result is not
            return _Spread.apply(whole, self.group)
        recording = paddle.is_grad_enabled(), whole.inplace_version
        if self._last is not None and self._last[0] is whole and self._last[1] == recording:
            return self._last[2]
        spread = _Spread.apply(whole, self.group)
        self._last = (whole, recording, spread)
        return spread

    def forget(self) -> None:
        """Let go of the last tensor."""
        self._last = None


def collect(part: Any, group: Group) -> Any:
    """g: the sum of the parts' tensors; backward hands the gradient to each part."""
    if part.stop_gradient or not paddle.is_grad_enabled():
        total = part.detach().clone()
        group.sum_(total)
        return total
    return _Collect.apply(part, group)


class _Spread(PyLayer):
    @staticmethod
    def forward(ctx: Any, whole: Any, group: Group) -> Any:
        ctx.group = group
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        total = gradient.clone()
        ctx.group.sum_(total)
        return total


class _Collect(PyLayer):
    @staticmethod
    def forward(_ctx: Any, part: Any, group: Group) -> Any:
        total = part.clone()
        group.sum_(total)
        return total

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        return gradient.clone()
