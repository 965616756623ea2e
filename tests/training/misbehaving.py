"""Handlers of a user who knows no better, named by the recipes of the agent's tests."""

from __future__ import annotations

import sys
import time
from typing import Any

from paddlewheel.training.events import EndStepEvent


def leave(event: Any) -> None:
    """Ends its process as if all were well, at step 3."""
    if isinstance(event, EndStepEvent) and event.step == 3:
        sys.exit(0)


def dawdle(event: Any) -> None:
    """Makes each step long enough that a test can strike between two."""
    if isinstance(event, EndStepEvent):
        time.sleep(0.05)
