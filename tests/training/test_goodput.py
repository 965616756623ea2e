"""Goodput: every second from the first attempt's start to the last one's end is in one place, with a name."""

from __future__ import annotations

from typing import Any

import pytest

from paddlewheel.training.goodput import Goodput, Span, goodput_line, parse_goodput, reckon

Marked = list[tuple[dict[str, Any], bool]]


def step(number: int, at: float, seconds: float = 2.0, *, attempt: int = 1, **parts: float) -> dict[str, Any]:
    return {"event": "EndStepEvent", "attempt": attempt, "step": number, "at": at, "seconds": seconds, "parts": parts}


def other(event: str, at: float, *, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    return {"event": event, "attempt": attempt, "step": 0, "at": at, **fields}


def counted(*events: dict[str, Any]) -> Marked:
    return [(event, True) for event in events]


def losses(goodput: Goodput) -> dict[str, float]:
    """Those that are not zero."""
    return {name: round(seconds, 6) for name, seconds in goodput.losses.items() if round(seconds, 6)}


def test_an_undisturbed_training_loses_its_start_its_commits_and_what_lies_between_steps() -> None:
    marked = counted(
        other("BeginEpochEvent", 104.0),
        step(1, 106.0, data=0.5, backward=1.5),
        step(2, 109.0, data=0.25, backward=1.75, checkpoint=0.75),  # and 0.25 s for a handler
        step(3, 111.0, backward=2.0),
        other("EndEpochEvent", 111.0, seconds=7.0),
        other("CheckpointEvent", 113.0, seconds=1.5),
    )
    goodput = reckon([Span(attempt=1, started=100.0, ended=116.0)], marked)
    assert losses(goodput) == {"startup": 4.0, "checkpoint": 2.75, "other": 3.25}
    assert (goodput.seconds, goodput.steps, goodput.share) == (16.0, 6.0, 0.375)
    assert goodput.parts == {"data": 0.75, "backward": 5.25}


def test_a_death_costs_the_steps_since_the_commit_the_wait_and_another_start() -> None:
    marked = [
        (other("BeginEpochEvent", 101.0), True),
        (step(1, 103.0), True),
        (step(2, 105.0), False),  # the commit is that of step 1
        (step(3, 107.0), False),
        (other("ResumeEvent", 131.5, attempt=2), True),
        (other("BeginEpochEvent", 132.0, attempt=2), True),
        (step(2, 134.0, attempt=2), True),
        (step(3, 136.0, attempt=2), True),
    ]
    spans = [Span(attempt=1, started=100.0, ended=110.0), Span(attempt=2, started=130.0, ended=136.0)]
    goodput = reckon(spans, marked)
    assert losses(goodput) == {"startup": 3.0, "waiting": 20.0, "rolled_back": 4.0, "other": 3.0}
    assert (goodput.seconds, goodput.steps) == (36.0, 6.0)


def test_an_attempt_that_was_killed_with_its_agent_ends_with_its_last_event() -> None:
    marked = [
        (other("BeginEpochEvent", 101.0), True),
        (step(1, 103.0), True),
        (other("BeginEpochEvent", 162.0, attempt=2), True),
        (step(2, 164.0, attempt=2), True),
    ]
    goodput = reckon([Span(attempt=1, started=100.0), Span(attempt=2, started=160.0, ended=164.0)], marked)
    assert losses(goodput) == {"startup": 3.0, "waiting": 57.0}
    assert goodput.seconds == 64.0


def test_an_attempt_that_never_trained_is_all_start() -> None:
    spans = [Span(attempt=1, started=100.0, ended=108.0), Span(attempt=2, started=109.0, ended=113.0)]
    goodput = reckon(spans, counted(other("BeginEpochEvent", 111.0, attempt=2), step(1, 113.0, attempt=2)))
    assert losses(goodput) == {"startup": 10.0, "waiting": 1.0}
    assert (goodput.steps, goodput.seconds) == (2.0, 13.0)


def test_what_an_overtaken_attempt_did_beside_its_successor_is_counted_once() -> None:
    marked = [
        (other("BeginEpochEvent", 101.0), True),
        (step(1, 103.0), True),
        (step(2, 105.0), False),
        (step(3, 107.0), False),  # the successor had begun at 105
        (other("BeginEpochEvent", 106.0, attempt=2), True),
        (step(2, 108.0, attempt=2), True),
    ]
    spans = [Span(attempt=1, started=100.0, ended=109.0), Span(attempt=2, started=105.0, ended=108.0)]
    goodput = reckon(spans, marked)
    assert losses(goodput) == {"startup": 2.0, "rolled_back": 2.0}
    assert goodput.seconds == 8.0


def test_steps_left_out_taken_back_and_measured_have_names_of_their_own() -> None:
    anomaly = {"kind": "loss", "back_to": None, "seconds": 2.0}
    marked = [
        (other("BeginEpochEvent", 100.0), True),
        (step(1, 102.0), True),
        (step(2, 104.0), False),
        (other("EvaluationEvent", 107.0, seconds=3.0), False),
        (other("AnomalyEvent", 109.0, **anomaly), True),
        (other("AnomalyEvent", 110.0, kind="loss", back_to=1, seconds=1.0), True),
        (step(2, 112.0), True),
        (other("EvaluationEvent", 115.0, seconds=3.0), True),
    ]
    goodput = reckon([Span(attempt=1, started=100.0, ended=115.0)], marked)
    assert losses(goodput) == {"rolled_back": 6.0, "skipped": 2.0, "evaluation": 3.0}
    assert (goodput.steps, goodput.seconds) == (4.0, 15.0)


def test_nothing_is_lost_or_gained_where_nothing_was_told() -> None:
    goodput = reckon([], [])
    assert (goodput.seconds, goodput.share) == (0.0, 0.0)
    assert goodput_line(goodput) == "goodput 0.0% of 0.0 s"


def test_the_line_names_the_losses_by_their_size() -> None:
    goodput = Goodput(
        seconds=1000.0,
        steps=750.0,
        losses={"startup": 50.0, "waiting": 150.0, "rolled_back": 49.5, "skipped": 0.5, "evaluation": 0.0},
    )
    line = "goodput 75.0% of 1,000.0 s; lost: waiting for the next attempt 15.0%, start-up 5.0%, steps taken back 5.0%"
    assert goodput_line(goodput) == line
    assert parse_goodput(goodput.to_json()) == goodput


@pytest.mark.parametrize("ended", [None, 103.0])
def test_an_attempt_that_runs_still_is_told_up_to_its_last_event(ended: float | None) -> None:
    marked = counted(other("BeginEpochEvent", 101.0), step(1, 103.0))
    assert reckon([Span(attempt=1, started=100.0, ended=ended)], marked).share == pytest.approx(2 / 3)
