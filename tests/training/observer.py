"""Handlers that the tests' recipes name, in a module that ranks import: what befalls a rank at a step."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from paddlewheel.training.events import BeginStepEvent, EndStepEvent


def kill(event: Any) -> None:
    """KILL_AT=rank:step: this rank dies at once, as by `kill -9`, before that step."""
    if isinstance(event, BeginStepEvent) and os.environ.get("KILL_AT") == f"{event.rank}:{event.step}":
        os.kill(os.getpid(), signal.SIGKILL)


def fail(event: Any) -> None:
    """FAIL_AT=step: rank 0 raises after that step."""
    if isinstance(event, EndStepEvent) and os.environ.get("FAIL_AT") == f"{event.step}" and event.rank == 0:
        raise ZeroDivisionError("a user's handler failed")


def stop(event: Any) -> None:
    """STOP_AT=step and WORK: the agent's stop file appears after that step, on rank 0's host."""
    if isinstance(event, EndStepEvent) and os.environ.get("STOP_AT") == f"{event.step}" and event.rank == 0:
        Path(os.environ["WORK"], "stop").touch()


def overtake(event: Any) -> None:
    """OVERTAKE_AT=step and ATTEMPTS: after that step, and the commit of step 4, a newer attempt begins from step 4."""
    if isinstance(event, EndStepEvent) and os.environ.get("OVERTAKE_AT") == f"{event.step}" and event.rank == 0:
        attempts = Path(os.environ["ATTEMPTS"])
        deadline = time.monotonic() + 30
        while not (attempts.parent / "checkpoints/step-4-attempt-1/COMMIT.json").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the commit of step 4 was not published")
            time.sleep(0.01)
        (attempts / ".tmp-2.json").write_text(json.dumps({"attempt": 2, "resumed_from_step": 4}))
        os.replace(attempts / ".tmp-2.json", attempts / "2.json")


def damage(event: Any) -> None:
    """DAMAGE_AT=step:commit and CHECKPOINTS: before that step, on rank 0, a byte of that commit's weights flips."""
    step, _, commit = os.environ.get("DAMAGE_AT", "").partition(":")
    if isinstance(event, BeginStepEvent) and step == f"{event.step}" and event.rank == 0:
        folder = Path(os.environ["CHECKPOINTS"], f"step-{commit}-attempt-1")
        deadline = time.monotonic() + 30
        while not (folder / "COMMIT.json").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{folder} was not published")
            time.sleep(0.01)
        raw = bytearray((folder / "model.safetensors").read_bytes())
        raw[-1] ^= 1
        (folder / "model.safetensors").write_bytes(raw)
