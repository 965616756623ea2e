"""A handler that the recipe of test_restarts names: a rank that dies whenever it comes to the same step."""

from __future__ import annotations

import os
import signal
from typing import Any

from paddlewheel.training.events import EndStepEvent


def die_at_step_6(event: Any) -> None:
    """Rank 1 is gone in the middle of step 6, as by `kill -9`, in every attempt."""
    if isinstance(event, EndStepEvent) and (event.step, event.rank) == (6, 1):
        os.kill(os.getpid(), signal.SIGKILL)
