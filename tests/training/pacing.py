"""Handlers that the agent's tests name: an agent passes no variable on, so that each says itself what it does."""

from __future__ import annotations

import os
import time
from typing import Any

from paddlewheel.training.events import EndStepEvent

STEP_SECONDS = 0.05


def pace(event: Any) -> None:
    """Make each step long enough that a test can strike between two."""
    if isinstance(event, EndStepEvent):
        time.sleep(STEP_SECONDS)


def fail(event: Any) -> None:
    """A user's mistake at step 5 on rank 0."""
    if isinstance(event, EndStepEvent) and (event.step, event.rank) == (5, 0):
        raise ZeroDivisionError("a user's handler failed")


def hang(event: Any) -> None:
    """Rank 1 stands still for ever at step 6, in a function with a name."""
    if isinstance(event, EndStepEvent) and (event.step, event.rank) == (6, 1):
        stand_still()


def stand_still() -> None:
    """Sleeps longer than any deadline of a test."""
    time.sleep(3600)


def show_environment(event: Any) -> None:
    """Leave what a rank sees of the environment in its work folder's log."""
    if isinstance(event, EndStepEvent) and event.step == 1:
        print("ENVIRONMENT " + " ".join(sorted(os.environ)), flush=True)
        print("VALUES " + " ".join(os.environ.values()), flush=True)
        raise ZeroDivisionError("shown")
