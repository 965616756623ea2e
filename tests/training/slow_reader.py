"""A network that the tests' recipes name, whose rows come slowly: from a disk, as it were, and not from memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from paddlewheel.data.loader import Loader
from paddlewheel.training.models import InputSpec
from paddlewheel.training.models.deepfm import build as build_deepfm

SECONDS_PER_BATCH = 0.05


def build(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    """deepfm, in a process whose loader takes 50 ms for each batch."""
    read = Loader.batch

    def slowly(self: Loader, *place: Any, **how: Any) -> Any:
        time.sleep(SECONDS_PER_BATCH)
        return read(self, *place, **how)

    Loader.batch = slowly  # type: ignore[method-assign]
    return build_deepfm(spec, params)
