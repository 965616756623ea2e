"""What a forward pass computes in, and the scale of a loss whose gradients are float16.

Gradients of a float16 network fall below what float16 can hold; a loss times a large factor lifts them, and the
exchange divides them again, in float32. The factor is as large as it can be: halved whenever something overflows,
doubled when nothing has for long (Micikevicius and others 2018). Rejected: paddle.amp.GradScaler, which judges by the
gradients of one rank before they are summed, and keeps its state out of a commit's reach.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

START = 65536.0
GOOD_STEPS = 2000


class LossScale:
    """The scale of the next step's loss, and how many steps in a row had no overflow."""

    def __init__(self, value: float = START) -> None:
        self.value, self.good = value, 0

    def overflows(self, loss: float, norm: float) -> bool:
        """Whether a step is left out for its scale's sake. At scale 1 it is not the scale that is wrong."""
        return self.value > 1.0 and not (math.isfinite(loss) and math.isfinite(norm))

    def after(self, *, overflow: bool) -> None:
        """Halve, or count the step, and double after GOOD_STEPS of them."""
        if overflow:
            self.value, self.good = max(1.0, self.value / 2), 0
            return
        self.good += 1
        if self.good == GOOD_STEPS:
            self.value, self.good = self.value * 2, 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for a commit."""
        return {"value": self.value, "good": self.good}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Go on from what a commit tells; from the start where that has no scale."""
        self.value, self.good = float(tree.get("value", START)), int(tree.get("good", 0))


def build_scale(precision: str) -> LossScale | None:
    """The scale of a precision's loss; None where none is needed: bfloat16 has the range of float32."""
    return LossScale() if precision == "fp16" else None


def caster(precision: str) -> Callable[[], AbstractContextManager[Any]]:
    """The context in which a forward pass computes."""
    import paddle

    names = {"bf16": "bfloat16", "fp16": "float16"}
    if precision in names:
        return lambda: paddle.amp.auto_cast(dtype=names[precision])
    return contextlib.nullcontext
