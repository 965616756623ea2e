"""Random numbers of a step: every generator seeded by a hash of (seed, step, rank), so that nothing need be saved."""

from __future__ import annotations

import random

import numpy as np
import paddle

from paddlewheel.data.order import MASK, mix_one


def seed_all(*numbers: int) -> None:
    """Seed Paddle, numpy and random by a hash of the numbers."""
    state = 0
    for number in numbers:
        state = mix_one((state * 31 + number + 1) & MASK)
    paddle.seed(state >> 1)
    np.random.seed(state & 0xFFFFFFFF)
    random.seed(state)
