"""Handlers that tests' recipes name: a rank that dies whenever it comes to the same step, and one that dies once."""

from __future__ import annotations

import os
import signal
from typing import Any

from paddlewheel.training.events import EndStepEvent


def die_at_step_6(event: Any) -> None:
    """Rank 1 is gone in the middle of step 6, as by `kill -9`, in every attempt."""
    if isinstance(event, EndStepEvent) and (event.step, event.rank) == (6, 1):
        os.kill(os.getpid(), signal.SIGKILL)


def die_once_at_step_31(event: Any) -> None:
    """Rank 0 of the first attempt is gone three steps after a commit."""
    if isinstance(event, EndStepEvent) and (event.step, event.rank, event.attempt) == (31, 0, 1):
        os.kill(os.getpid(), signal.SIGKILL)
