"""Shares of uneven ranks: given or measured, and the mathematics of the whole batch in any case."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.data.order import sample_hash
from paddlewheel.errors import RecipeError
from paddlewheel.training.checkpoint import load_weights
from paddlewheel.training.shares import Shares, weights_of
from paddlewheel.training.strategies import DataParallel

HERE = str(Path(__file__).parent)
LINEAR = {"training.optimizer": {"name": "sgd", "learning_rate": 0.2}}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


@pytest.mark.parametrize(
    ("seconds", "weights"),
    [
        ([1.0, 1.0], (0.5, 0.5)),
        ([1.0, 3.0], (0.75, 0.25)),
        ([2.0, 2.02], (0.5, 0.5)),  # 32.16 and 31.84 of 64
        ([1.0, 1e6], (1.0, 1 / 64)),  # whoever is there takes part
        ([1.0, 0.0, 0.5], (0.22 * 64 // 1 / 64, 21 / 64, 28 / 64)),  # speeds 1, 1.5 (the mean), 2 of 4.5
    ],
)
def test_shares_follow_speeds_in_64ths(seconds: list[float], weights: tuple[float, ...]) -> None:
    assert weights_of(seconds) == weights


def test_equal_shares_stay_unsaid_and_given_ones_must_be_as_many_as_ranks() -> None:
    assert (Shares("equal", 3).weights, Shares("measured", 1).measuring) == (None, False)
    assert Shares((2.0, 1.0), 2).weights == (2.0, 1.0)
    with pytest.raises(RecipeError, match="has 2 weights, and there are 3 data ranks"):
        Shares((2.0, 1.0), 3)


def test_measured_shares_of_a_commit_hold_for_as_many_ranks_and_no_others() -> None:
    tree = json.loads(json.dumps({"weights": [0.75, 0.25]}))
    same, other = Shares("measured", 2), Shares("measured", 3)
    same.load(tree)
    other.load(tree)
    assert (same.weights, same.measuring) == ((0.75, 0.25), False)
    assert (other.weights, other.measuring) == (None, True)


def test_speeds_are_those_of_steps_6_to_20() -> None:
    shares = Shares("measured", 1)
    shares.measuring = True  # as with others, of which one rank is enough to be asked
    strategy = DataParallel(0, 1, None)  # type: ignore[arg-type]
    for step in range(1, 21):
        assert shares.weights is None
        seconds = 100.0 if step <= 5 else 0.25
        shares.add({"data": seconds, "forward": seconds, "exchange": 7.0, "optimizer": 7.0}, 2, strategy)
        if step == 19:
            assert (shares._seconds, shares._rows) == (7.0, 28)
    assert (shares.weights, shares.measuring) == ((1.0,), False)


def weights(run: Any) -> dict[str, np.ndarray]:
    return load_weights(run.store, run.commit())


def distance(run: Any, other: Any) -> float:
    one, two = weights(run), weights(other)
    return max(float(np.abs(one[name] - two[name]).max()) for name in one)


@pytest.mark.slow
def test_given_shares_change_who_computes_and_not_what(new_run: Callable[..., Any]) -> None:
    plain = new_run("plain", rows=65, overrides=LINEAR)
    assert plain.train(1) == [0], plain.logs(1)
    settings = {**LINEAR, "training.parallel.shares": [3, 1], "resources.ranks_per_node": 2}
    uneven = new_run("uneven", rows=65, overrides=settings)
    assert uneven.train(1, world_size=2) == [0, 0], uneven.logs(1)
    assert distance(plain, uneven) <= 1e-6
    assert uneven.commit().order == {1: sample_hash(plain.ids), 2: sample_hash(plain.ids)}


@pytest.mark.slow
def test_a_slow_rank_takes_fewer_rows_when_shares_are_measured(new_run: Callable[..., Any]) -> None:
    settings = {
        **LINEAR,
        "model.name": "slow_rank:build",
        "training.epochs": 6,
        "training.checkpoint_every_steps": 10,
        "training.handlers": ["observer:kill"],
    }
    equal = new_run("equal", rows=65, overrides=settings)
    assert equal.train(1, world_size=2) == [0, 0], equal.logs(1)
    assert "shares" not in equal.commit().progress
    measured = new_run("measured", rows=65, overrides={**settings, "training.parallel.shares": "measured"})
    assert measured.train(1, world_size=2, KILL_AT="1:24") == [13, -9], measured.logs(1)
    commit = measured.commit()
    assert commit.step == 20
    fast, slow = commit.progress["shares"]["weights"]
    # Three times as slow: 48 and 16 of 64, but for what a step costs besides.
    assert 0.6 <= fast / (fast + slow) <= 0.8
    assert measured.train(2, world_size=2) == [0, 0], measured.logs(2)
    assert measured.commit().progress["shares"] == commit.progress["shares"]
    assert distance(equal, measured) <= 1e-5
    assert measured.commit().order == {epoch: sample_hash(equal.ids) for epoch in range(1, 7)}
    told = [one for one in measured.events() if one["event"] == "EndStepEvent" and one["rows"] == 16]
    forward = {
        (rank, late): np.median(
            [one["parts"]["forward"] for one in told if one["rank"] == rank and (one["step"] > 20) == late]
        )
        for rank in (0, 1)
        for late in (False, True)
    }
    # 8 rows of 6 ms against 8 of 2; then 4 against 12: both have the same to do.
    assert forward[1, False] > 2 * forward[0, False]
    assert forward[1, True] < 1.5 * forward[0, True]
