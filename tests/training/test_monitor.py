"""Heartbeats: rare enough to be cheap, and never so rare that a hang is taken for a slow start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.training.monitor import Monitor


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The one number that time.monotonic gives."""
    now = [100.0]
    monkeypatch.setattr("paddlewheel.training.monitor.time.monotonic", lambda: now[0])
    return now


def heartbeat(folder: Path) -> dict[str, Any]:
    """What the agent reads."""
    found: dict[str, Any] = json.loads((folder / "heartbeat-1.json").read_bytes())
    return found


def test_the_first_step_is_told_at_once_and_the_next_ones_five_times_a_second(
    tmp_path: Path, clock: list[float]
) -> None:
    monitor = Monitor(tmp_path, rank=1, attempt=1)
    monitor.beat("load", step=4)
    monitor.beat("train", epoch=1, step=4)
    assert (heartbeat(tmp_path)["phase"], heartbeat(tmp_path)["step"]) == ("train", 4)
    told = []
    for step in range(5, 13):
        clock[0] += 0.125
        monitor.beat("train", step=step)
        told.append(heartbeat(tmp_path)["step"])
    assert told == [5, 5, 7, 7, 9, 9, 11, 11]


def test_a_new_epoch_is_no_first_step(tmp_path: Path, clock: list[float]) -> None:
    monitor = Monitor(tmp_path, rank=1, attempt=1)
    monitor.beat("train", epoch=1, step=0)
    monitor.beat("train", step=1)
    monitor.beat("train", epoch=2, step=1)
    monitor.beat("train", step=2)
    assert (heartbeat(tmp_path)["step"], heartbeat(tmp_path)["epoch"]) == (1, 1)
    clock[0] += 0.25
    monitor.beat("train", step=3)
    assert (heartbeat(tmp_path)["step"], heartbeat(tmp_path)["epoch"]) == (3, 2)


def test_a_change_of_phase_is_told_at_once(tmp_path: Path, clock: list[float]) -> None:
    monitor = Monitor(tmp_path, rank=1, attempt=1)
    for phase in ("start", "rendezvous", "load", "train", "save", "done"):
        monitor.beat(phase)
        assert heartbeat(tmp_path)["phase"] == phase
