"""Handlers of a user who knows no better, named by the recipes of the agent's tests."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paddlewheel.training.events import CheckpointEvent, EndStepEvent


def leave(event: Any) -> None:
    """Ends its process as if all were well, at step 3."""
    if isinstance(event, EndStepEvent) and event.step == 3:
        sys.exit(0)


def dawdle(event: Any) -> None:
    """Makes each step long enough that a test can strike between two."""
    if isinstance(event, EndStepEvent):
        time.sleep(0.05)


def overtake_at_the_end(event: Any) -> None:
    """After the last commit is there, another agent begins an attempt that had not seen it."""
    if isinstance(event, CheckpointEvent) and event.step == 6:
        root = Path(urlsplit(sys.argv[sys.argv.index("--root") + 1]).path)
        first = root / Path(event.commit).parents[1] / "attempts" / "1.json"
        record = {**json.loads(first.read_text()), "attempt": 2, "resumed_from_step": 4}
        first.with_name("2.json").write_text(json.dumps(record))
