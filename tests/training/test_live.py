"""The diagnosis of a training under way: each trouble once, from files that ranks are still writing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paddlewheel.recipe import Training
from paddlewheel.training.events import BeginEpochEvent, EndStepEvent, MachineEvent, to_line
from paddlewheel.training.live import LiveDiagnosis, recent_steps
from paddlewheel.training.ranks import Rank

TRAINING = Training(epochs=1, global_batch=64)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The one number that time.monotonic gives."""
    now = [100.0]
    monkeypatch.setattr("paddlewheel.training.live.time.monotonic", lambda: now[0])
    return now


def make_rank(
    folder: Path, number: int, *, forward: float, exchange: float, count: int = 40, torn: bool = False
) -> Rank:
    """A rank that has told of these steps; its process is over, and its file is what counts."""
    lines = [to_line(BeginEpochEvent(attempt=1, rank=number, epoch=1, step=0))]
    for step in range(1, count + 1):
        event = EndStepEvent(
            attempt=1,
            rank=number,
            epoch=1,
            step=step,
            loss=0.5,
            learning_rate=0.1,
            rows=64,
            seconds=forward + exchange,
            parts={"forward": forward, "exchange": exchange},
            rss_bytes=1,
        )
        lines.append(to_line(event))
    (folder / f"rank-{number}.jsonl").write_bytes(b"".join(lines) + (b'{"event":"EndStepEv' if torn else b""))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Rank(number=number, process=process, folder=folder)


def machine(taken: int) -> MachineEvent:
    return MachineEvent(
        attempt=1, node=0, step=1, seconds=2.0, processors=1.0, num_processors=2, memory_bytes=taken << 20,
        memory_limit_bytes=1000 << 20, read_bytes=0.0, written_bytes=0.0, received_bytes=0.0, sent_bytes=0.0,
        disk_free_bytes=1,
    )  # fmt: skip


def test_a_trouble_is_told_once_a_minute_after_the_start_and_another_one_when_it_comes(
    tmp_path: Path, clock: list[float]
) -> None:
    ranks = [
        make_rank(tmp_path, 0, forward=0.01, exchange=0.03),
        make_rank(tmp_path, 1, forward=0.04, exchange=0.0, torn=True),
    ]
    live = LiveDiagnosis(ranks, TRAINING)
    clock[0] += 59
    assert live.poll(machine(500)) == []
    clock[0] += 2
    [line] = live.poll(machine(500))
    assert line.startswith("so far: rank 1 works 4.0 times as long as the others (40.0 ms a step, they 10.0 ms)")
    clock[0] += 61
    [line] = live.poll(machine(950))
    assert line.startswith("so far: memory near the limit: node 0 had 950 of 1,000 MiB taken (95%)")
    clock[0] += 61
    assert live.poll(machine(990)) == []


def test_nothing_is_said_of_ranks_that_have_just_published(tmp_path: Path, clock: list[float]) -> None:
    ranks = [make_rank(tmp_path, number, forward=0.01 + number, exchange=0.0, count=3) for number in range(2)]
    (tmp_path / "rank-0.jsonl").unlink()
    live = LiveDiagnosis(ranks, TRAINING)
    clock[0] += 61
    assert live.poll(None) == []


def test_the_last_steps_of_a_long_file_are_read_from_a_whole_line_on(tmp_path: Path) -> None:
    rank = make_rank(tmp_path, 0, forward=0.01, exchange=0.0, count=5000)
    steps = [record.step for record in recent_steps(rank)]
    assert 500 < len(steps) < 2000
    assert steps == list(range(5001 - len(steps), 5001))
