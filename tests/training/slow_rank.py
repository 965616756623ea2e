"""Networks that the tests' recipes name: one whose work takes rank 1 longer, and one that wants memory by the row."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from paddlewheel.training.models import InputSpec
from paddlewheel.training.models.deepfm import build as build_deepfm

SECONDS_PER_ROW = 0.002


def build(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    """deepfm, of which rank 1 computes each row three times as slowly as the others."""
    model = build_deepfm(spec, params)
    loss = model.loss
    slow = 3.0 if os.environ.get("PADDLE_TRAINER_ID") == "1" else 1.0

    def slowly(batch: Any) -> Any:
        time.sleep(slow * SECONDS_PER_ROW * len(batch))
        return loss(batch)

    model.loss = slowly
    return model
