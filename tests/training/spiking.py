"""A network that a recipe of test_exchanges names: one of its losses is out of line, on one rank or on all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paddlewheel.training.models import InputSpec
from paddlewheel.training.models.deepfm import build as build_deepfm


def build(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    """deepfm. SPIKE=rank:number:factor multiplies the loss of that number (from 1) on that rank; `all` for each."""
    model = build_deepfm(spec, params)
    loss, seen = model.loss, 0
    rank, number, factor = os.environ["SPIKE"].split(":")

    def spiking(batch: Any) -> Any:
        nonlocal seen
        seen += 1
        here = rank in ("all", os.environ["PADDLE_TRAINER_ID"]) and seen == int(number)
        return loss(batch) * float(factor) if here else loss(batch)

    model.loss = spiking
    return model
