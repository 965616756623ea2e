"""A network that a recipe of test_zero names: each rank writes down what it computes with, step by step."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddlewheel.training.models import InputSpec
from paddlewheel.training.models.deepfm import build as build_deepfm


def build(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    """deepfm; DIGESTS/R.txt has a digest of rank R's parameters for each loss."""
    model = build_deepfm(spec, params)
    loss = model.loss
    path = Path(os.environ["DIGESTS"], f"{os.environ['PADDLE_TRAINER_ID']}.txt")

    def told(batch: Any) -> Any:
        raw = b"".join(parameter.numpy().tobytes() for parameter in model.parameters())
        with path.open("a") as file:
            file.write(hashlib.sha256(raw).hexdigest() + "\n")
        return loss(batch)

    model.loss = told
    return model
