"""What held a training up, from figures written by hand; test_slow_trainings has real ones."""

from __future__ import annotations

from typing import Any

import pytest

from paddlewheel.recipe import Exchange, Parallel, Training, Validation
from paddlewheel.training.diagnosis import Finding, diagnose
from paddlewheel.training.events import StepRecord
from paddlewheel.training.goodput import LOSSES, Goodput

MIB = 1 << 20
TRAINING = Training(epochs=1, global_batch=64)
WELL = {"data": 0.004, "forward": 0.03, "backward": 0.05, "exchange": 0.01, "optimizer": 0.006}


def records(parts: dict[str, float], *, count: int = 40, sent_bytes: int = 0, first: float = 1.0) -> list[StepRecord]:
    """Equal steps of these parts, but for the first one, which loads libraries."""
    return [
        StepRecord(
            step=step,
            epoch=1,
            loss=0.5,
            learning_rate=0.1,
            rows=64,
            seconds=sum(parts.values()),
            attempt=1,
            parts={**parts, "data": first} if step == 1 else parts,
            sent_bytes=sent_bytes,
        )
        for step in range(1, count + 1)
    ]


def look(taken: int, limit: int = 1000 * MIB, gpus: Any = ()) -> dict[str, Any]:
    return {"node": 0, "memory_bytes": taken * MIB, "memory_limit_bytes": limit, "gpus": gpus}


def lost(steps: float, **losses: float) -> Goodput:
    return Goodput(seconds=steps + sum(losses.values()), steps=steps, losses={**dict.fromkeys(LOSSES, 0.0), **losses})


def found(*by_rank: dict[str, float], training: Training = TRAINING, sent_bytes: int = 0) -> list[Finding]:
    steps = {rank: records(parts, sent_bytes=sent_bytes) for rank, parts in enumerate(by_rank)}
    return diagnose(steps, [], None, training)


def test_nothing_is_said_when_all_is_well() -> None:
    steps = {rank: records(WELL) for rank in range(2)}
    goodput = lost(600.0, startup=9.0, checkpoint=6.0, other=3.0)
    assert diagnose(steps, [look(700), look(890)], goodput, TRAINING) == []
    assert diagnose({}, [], None, TRAINING) == []


def test_a_step_that_waits_for_its_rows_is_data_bound() -> None:
    [finding] = found({**WELL, "data": 0.064}, training=Training(epochs=1, global_batch=64, micro_batch=8))
    assert finding.kind == "data"
    assert finding.text == "data-bound: a step waits 64.0 ms of its 160.0 ms for its rows (40%)"
    assert finding.setting == (
        "a larger training.micro_batch (now 8), or more ranks (resources.ranks_per_node, nodes), since each reads its "
        "own slice of a batch"
    )
    assert finding.figures == pytest.approx({"seconds": 0.064, "step_seconds": 0.16, "share": 0.4})


@pytest.mark.parametrize(
    ("training", "setting"),
    [
        (TRAINING, "training.sync: bf16 sends half, topk a hundredth, local_sgd at every eighth step alone"),
        (
            Training(epochs=1, global_batch=64, sync="local_sgd", exchange=Exchange(steps=4)),
            "more training.exchange.steps (now 4)",
        ),
        (
            Training(epochs=1, global_batch=64, strategy="zero"),
            "training.sync: bf16 sends half, topk a hundredth",
        ),
        (
            Training(epochs=1, global_batch=64, sync="bf16"),
            "training.sync: topk or local_sgd sends less",
        ),
    ],
    ids=["dense", "local_sgd", "zero", "bf16"],
)
def test_ranks_that_all_exchange_for_long_are_exchange_bound(training: Training, setting: str) -> None:
    slow = {**WELL, "exchange": 0.11}
    [finding] = found(slow, slow, training=training, sent_bytes=44 * MIB)
    assert finding.text == "exchange-bound: 110.0 ms of a step's 200.0 ms (55%) go into the exchange of 44.0 MiB a rank"
    assert (
        finding.setting == f"{setting}; a larger training.global_batch has more work for each exchange "
        "(docs/exchanges.md)"
    )


def test_the_wait_for_a_slow_rank_is_a_straggler_and_no_exchange() -> None:
    waiting = {**WELL, "exchange": 0.11}
    slow = {**WELL, "forward": 0.13}
    [finding] = found(waiting, waiting, slow, waiting)
    assert finding.kind == "straggler"
    assert finding.text == (
        "rank 2 works 2.1 times as long as the others (190.0 ms a step, they 90.0 ms), most of it in forward: 50% of "
        "each step is the others' wait for it"
    )
    assert "training.parallel.shares: measured" in finding.setting
    assert finding.figures == pytest.approx({"rank": 2, "seconds": 0.19, "others_seconds": 0.09, "share": 0.5})


def test_a_slow_reader_on_one_rank_is_that_ranks() -> None:
    [finding] = found({**WELL, "exchange": 0.08}, {**WELL, "data": 0.074})
    assert (finding.kind, finding.figures["rank"]) == ("straggler", 1)
    assert "most of it in data" in finding.text


def test_shares_are_not_named_to_who_has_measured_ones() -> None:
    training = Training(epochs=1, global_batch=64, parallel=Parallel(shares="measured"))
    [finding] = found({**WELL, "exchange": 0.08}, {**WELL, "forward": 0.1}, training=training)
    assert finding.setting == "look at what else runs on its processors, or leave the node out"


def test_stages_of_a_pipeline_are_no_stragglers() -> None:
    training = Training(epochs=1, global_batch=64, parallel=Parallel(pipeline=2))
    assert found({**WELL, "forward": 0.01}, {**WELL, "forward": 0.09}, training=training) == []


@pytest.mark.parametrize("count", [10, 24])
def test_a_few_steps_are_not_judged(count: int) -> None:
    assert diagnose({0: records({**WELL, "data": 0.5}, count=count)}, [], None, TRAINING) == []


def test_the_first_steps_of_an_attempt_are_not_judged() -> None:
    assert diagnose({0: records(WELL, count=25, first=600.0)}, [], None, TRAINING) == []


def test_memory_near_the_limit_is_told_of_a_node_and_of_a_gpu() -> None:
    gpus = [
        {"index": 0, "memory_bytes": 70 * MIB, "memory_limit_bytes": 80 * MIB},
        {"index": 1, "memory_bytes": 78 * MIB, "memory_limit_bytes": 80 * MIB},
        {"index": 2, "memory_bytes": None, "memory_limit_bytes": None},
    ]
    training = Training(epochs=1, global_batch=64, micro_batch=16)
    told = diagnose({}, [look(910), look(960, gpus=gpus), look(930)], None, training)
    assert [one.text for one in told] == [
        "memory near the limit: node 0 had 960 of 1,000 MiB taken (96%)",
        "memory near the limit: GPU 1 of node 0 had 78 of 80 MiB taken (98%)",
    ]
    assert told[0].setting.startswith("a smaller training.micro_batch (now 16) takes less")


def test_a_node_that_tells_no_limit_is_not_near_it() -> None:
    assert diagnose({}, [look(910, limit=0)], None, TRAINING) == []


@pytest.mark.parametrize(
    ("loss", "training", "text", "setting"),
    [
        (
            {"checkpoint": 10.0},
            TRAINING,
            "checkpoint-bound: steps waited 10.0 s (9% of 110.0 s) for commits",
            "a larger training.checkpoint_every_steps (now 200)",
        ),
        (
            {"rolled_back": 25.0},
            Training(epochs=1, global_batch=64, checkpoint_every_seconds=600),
            "work lost: 25.0 s (20% of 125.0 s) went into steps that were taken back",
            "a smaller training.checkpoint_every_seconds (now 600) loses less at each death; the attempts' verdicts "
            "say what they died of",
        ),
        (
            {"evaluation": 100.0},
            Training(epochs=1, global_batch=64, validation=Validation(fraction=0.5)),
            "evaluation-bound: 100.0 s (50% of 200.0 s) went into measuring on the rows kept aside",
            "a larger training.validation.every_epochs (now 1), or a smaller fraction",
        ),
    ],
    ids=["checkpoint", "rolled_back", "evaluation"],
)
def test_what_is_lost_between_steps_names_its_setting(
    loss: dict[str, float], training: Training, text: str, setting: str
) -> None:
    [finding] = diagnose({}, [], lost(100.0, **loss), training)
    assert (finding.kind, finding.text, finding.setting) == (next(iter(loss)), text, setting)


def test_a_training_of_seconds_has_nothing_to_save_between_steps() -> None:
    assert diagnose({}, [], lost(4.0, checkpoint=2.0, evaluation=4.0, rolled_back=3.0), TRAINING) == []
