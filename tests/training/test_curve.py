"""What events say afterwards: which step's record counts when attempts died, were rolled back or were overtaken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.errors import StorageError
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.attempts import Verdict, publish_verdict
from paddlewheel.training.curve import read_attempts, read_counted, read_curve, read_events, read_ranks
from paddlewheel.training.events import AnomalyEvent, BeginEpochEvent, EndStepEvent, EvaluationEvent, to_line

KEY = "0123456789abcdef0123"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def begin(store: LocalStore, attempt: int, resumed_from_step: int, world_size: int = 2) -> None:
    """The record that an agent leaves when it starts an attempt's ranks."""
    record = {
        "attempt": attempt,
        "resumed_from_step": resumed_from_step,
        "world_size": world_size,
        "host": "node-1",
        "pid": 4711,
        "started": "2013-11-02T03:00:00+00:00",
    }
    store.publish(f"runs/{KEY}/attempts/{attempt}.json", json.dumps(record).encode())


def tell(store: LocalStore, attempt: int, steps: range, *, rest: bool = False, rank: int = 0) -> None:
    """A chunk of events of these steps, each with the loss attempt + step / 1000, five steps an epoch."""
    lines = [to_line(BeginEpochEvent(attempt=attempt, rank=rank, epoch=1 + (steps[0] - 1) // 5, step=steps[0] - 1))]
    for step in steps:
        event = EndStepEvent(
            attempt=attempt,
            rank=rank,
            epoch=1 + (step - 1) // 5,
            step=step,
            loss=attempt + step / 1000,
            learning_rate=0.5,
            rows=16,
            seconds=0.25,
            parts={"forward": 0.125},
            rss_bytes=1,
        )
        lines.append(to_line(event))
    name = f"step-{steps[-1]}{'-rest' if rest else ''}.jsonl"
    store.publish(f"runs/{KEY}/events/attempt-{attempt}/rank-{rank}/{name}", b"".join(lines))


def told(store: LocalStore) -> list[tuple[int, int]]:
    """(step, attempt) of the curve."""
    return [(record.step, record.attempt) for record in read_curve(store, KEY)]


def test_curve_has_each_field_of_a_step_in_the_order_of_steps(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(5, 12))  # step-11 sorts before step-4 by name
    tell(store, 1, range(1, 5))
    records = read_curve(store, KEY)
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    sixth = records[5]
    assert (sixth.epoch, sixth.loss, sixth.learning_rate, sixth.rows, sixth.seconds) == (2, 1.006, 0.5, 16, 0.25)
    assert (sixth.attempt, dict(sixth.parts)) == (1, {"forward": 0.125})
    assert read_curve(store, f"runs/{KEY}") == records


def test_steps_done_twice_count_as_the_newer_attempt_did_them(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(1, 5))
    tell(store, 1, range(5, 8), rest=True)
    begin(store, 2, 4)
    tell(store, 2, range(5, 11))
    assert told(store) == [(1, 1), (2, 1), (3, 1), (4, 1), *((step, 2) for step in (5, 6, 7, 8, 9, 10))]


def test_steps_that_were_rolled_back_are_gone_when_nobody_did_them_again_yet(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(1, 5))
    tell(store, 1, range(5, 9), rest=True)
    begin(store, 2, 4)
    tell(store, 2, range(5, 7), rest=True)
    assert told(store) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2)]
    begin(store, 3, 0)  # every commit was lost
    assert told(store) == []


def anomaly(step: int, *, back_to: int | None = None, kind: str = "loss") -> bytes:
    event = AnomalyEvent(
        attempt=1, rank=0, epoch=1, step=step, kind=kind, value="nan", batch=6, first_ids=(1,), back_to=back_to
    )
    return to_line(event)


def ended(step: int, loss: float) -> bytes:
    event = EndStepEvent(
        attempt=1,
        rank=0,
        epoch=1,
        step=step,
        loss=loss,
        learning_rate=0.5,
        rows=16,
        seconds=0.25,
        parts={},
        rss_bytes=1,
    )
    return to_line(event)


def test_steps_that_an_attempt_took_back_itself_are_gone_when_nobody_did_them_again_yet(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(1, 5))
    measured = EvaluationEvent(attempt=1, rank=0, epoch=1, step=6, metrics={"auc": 0.5}, rows=9, best=True, seconds=1)
    # The commit of step 4; 5 and 6 count, 7 and 8 are left out, and the state goes back.
    lost = [ended(5, 9.0), ended(6, 9.0), to_line(measured), anomaly(7), anomaly(8), anomaly(4, back_to=4)]
    store.publish(f"runs/{KEY}/events/attempt-1/rank-0/step-4-rest.jsonl", b"".join(lost))
    assert told(store) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    kinds = [one["event"] for one in read_counted(store, KEY)]
    assert kinds == ["BeginEpochEvent", *["EndStepEvent"] * 4, *["AnomalyEvent"] * 3]


def test_steps_done_again_after_the_state_went_back_count_and_batches_passed_over_do_not(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(1, 5))
    lines = [ended(5, 9.0), ended(6, 9.0), anomaly(7), anomaly(4, back_to=4), ended(5, 1.0)]
    lines += [ended(6, 2.0), anomaly(7, kind="passed"), ended(8, 3.0)]
    store.publish(f"runs/{KEY}/events/attempt-1/rank-0/step-8.jsonl", b"".join(lines))
    records = read_curve(store, KEY)
    assert [(one.step, one.loss) for one in records[4:]] == [(5, 1.0), (6, 2.0), (8, 3.0)]
    begin(store, 2, 4)
    assert told(store) == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_chunks_after_the_state_went_back_follow_those_before_it(store: LocalStore) -> None:
    begin(store, 1, 0)
    folder = f"runs/{KEY}/events/attempt-1/rank-0"
    for step in (1, 2, 3):
        store.publish(f"{folder}/step-{step}.jsonl", ended(step, 9.0))
    # The commits of steps 2 and 3 were damaged: back to 1, where step 2 is passed over.
    lines = [anomaly(4), anomaly(1, back_to=1), anomaly(2, kind="passed"), ended(3, 1.0)]
    store.publish(f"{folder}/step-3-back-1.jsonl", b"".join(lines))
    store.publish(f"{folder}/step-4-rest.jsonl", ended(4, 2.0))
    assert [(one.step, one.loss) for one in read_curve(store, KEY)] == [(1, 9.0), (3, 1.0), (4, 2.0)]


def test_what_an_overtaken_attempt_does_afterwards_does_not_count(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(1, 5))
    begin(store, 2, 4)
    tell(store, 2, range(5, 6))
    tell(store, 1, range(5, 10))
    assert told(store) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]


def test_a_step_told_in_a_chunk_and_again_in_the_rest_is_one_step(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(1, 5))
    tell(store, 1, range(1, 5), rest=True)
    assert told(store) == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_other_ranks_do_not_enter_the_curve(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(1, 3))
    tell(store, 1, range(1, 9), rank=1)
    assert told(store) == [(1, 1), (2, 1)]


def test_attempts_say_how_far_they_came_and_why_they_ended(store: LocalStore) -> None:
    begin(store, 1, 0)
    tell(store, 1, range(1, 8), rest=True)
    message = "rank 1 was killed by SIGKILL"
    verdict = Verdict(attempt=1, exit_code=16, kind="died", message=message, step=7, resumed_from_step=0, rank=1)
    publish_verdict(store, KEY, verdict)
    begin(store, 2, 4, world_size=1)
    one, two = read_attempts(store, KEY)
    assert (one.attempt, one.world_size, one.resumed_from_step, one.last_step) == (1, 2, 0, 7)
    assert (one.ended, one.exit_code, one.verdict) == ("died", 16, "rank 1 was killed by SIGKILL")
    assert (two.attempt, two.world_size, two.resumed_from_step, two.last_step) == (2, 1, 4, 4)
    assert (two.ended, two.exit_code, two.verdict) == (None, None, "")


def test_ten_attempts_keep_their_order(store: LocalStore) -> None:
    for number in range(1, 12):
        begin(store, number, number - 1)
        tell(store, number, range(number, number + 1))
    assert [attempt.attempt for attempt in read_attempts(store, KEY)] == list(range(1, 12))
    assert told(store) == [(step, step) for step in range(1, 12)]


def test_a_run_without_events_has_an_empty_curve(store: LocalStore) -> None:
    assert (read_curve(store, KEY), read_attempts(store, KEY)) == ([], [])


def test_ranks_have_the_steps_that_count_of_attempts_on_as_many_ranks(store: LocalStore) -> None:
    begin(store, 1, 0, world_size=3)
    for rank in range(3):
        tell(store, 1, range(1, 5), rank=rank)
    begin(store, 2, 4)
    begin(store, 3, 6)
    for rank in range(2):
        tell(store, 2, range(5, 9), rank=rank)  # 7 and 8 were rolled back
        tell(store, 3, range(7, 10), rank=rank)
    found = read_ranks(store, KEY, read_curve(store, KEY))
    steps = [(5, 2), (6, 2), (7, 3), (8, 3), (9, 3)]
    assert {rank: [(one.step, one.attempt) for one in records] for rank, records in found.items()} == {
        0: steps,
        1: steps,
    }


def test_ranks_of_a_long_training_are_a_sample_of_the_same_steps(store: LocalStore) -> None:
    begin(store, 1, 0)
    for rank in range(2):
        for step in range(1, 126):
            tell(store, 1, range(step, step + 1), rank=rank)
    found = read_ranks(store, KEY, read_curve(store, KEY))
    steps = [one.step for one in found[1]]
    assert [one.step for one in found[0]] == steps
    assert (len(steps), steps[:5], steps[-2:]) == (50, [1, 3, 6, 8, 11], [121, 123])


@pytest.mark.parametrize("content", [b'{"event": "EndStep', b"\xff\xfe"])
def test_a_damaged_chunk_is_named(store: LocalStore, content: bytes) -> None:
    key = f"runs/{KEY}/events/attempt-1/rank-0/step-4.jsonl"
    store.publish(key, content)
    with pytest.raises(StorageError, match=r"attempt-1/rank-0/step-4\.jsonl is damaged"):
        list(read_events(store, KEY, rank=0))


def test_a_damaged_record_of_an_attempt_is_named(store: LocalStore) -> None:
    record: dict[str, Any] = {"attempt": 1}
    store.publish(f"runs/{KEY}/attempts/1.json", json.dumps(record).encode())
    with pytest.raises(StorageError, match=r"attempts/1\.json is not the record of an attempt"):
        read_attempts(store, KEY)
