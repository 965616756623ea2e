"""Bootstrap intervals: their width, their coverage, and that pairing takes the common noise away."""

from __future__ import annotations

import time

import numpy as np
import pytest
import sklearn.metrics

from paddlewheel.evaluation.compare import Scored, _resample, _Sorted, compare, points_only, seed_of
from paddlewheel.recipe import Evaluation


def draw_binormal(seed: int, rows: int, distance: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and scores that are a monotone image of normals whose means lie `distance` apart."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.4).astype(np.float64)
    return labels, 1 / (1 + np.exp(-generator.normal(distance * labels, 1)))


def test_interval_is_the_binomial_one_when_the_metric_is_a_share() -> None:
    # accuracy 0.8 of 10,000 rows: 0.8 +- 1.959964 * sqrt(0.8 * 0.2 / 10000) = 0.792160 .. 0.807840
    labels = np.ones(10_000)
    probabilities = np.repeat([0.9, 0.9, 0.9, 0.9, 0.1], 2000)
    found = compare(Scored(labels_B=labels, challenger_B=probabilities), Evaluation(resamples=4000), seed=1)
    accuracy = found.challenger["accuracy"]
    assert accuracy.value == pytest.approx(0.8)
    assert (accuracy.low, accuracy.high) == pytest.approx((0.79216, 0.80784), abs=5e-4)


def test_interval_covers_the_true_auc_about_as_often_as_it_says() -> None:
    # Two normals one deviation apart: AUC = Phi(1 / sqrt 2) = 0.7602499389
    covered = 0
    for seed in range(200):
        labels, scores = draw_binormal(seed, 400)
        estimate = compare(Scored(labels_B=labels, challenger_B=scores), Evaluation(resamples=300), seed=seed)
        low, high = estimate.challenger["auc"].low, estimate.challenger["auc"].high
        covered += low <= 0.7602499389 <= high
    assert 178 <= covered <= 199  # 190 expected; less than 178 or 200 has a chance below 1 in 1,000


@pytest.mark.parametrize("decimals", [None, 1])
def test_every_resample_equals_scikit_learn_when_rows_are_really_drawn(decimals: int | None) -> None:
    labels, scores = draw_binormal(7, 500)
    scores = scores if decimals is None else scores.round(decimals)
    counts = next(iter(_resample(500, 20, seed=3)))
    found = _Sorted(labels, scores).metrics(counts)
    for row, weights in zip(found, counts, strict=True):
        drawn = np.repeat(np.arange(500), weights.astype(int))
        assert weights.sum() == 500
        assert row[0] == pytest.approx(sklearn.metrics.roc_auc_score(labels[drawn], scores[drawn]), abs=1e-12)
        assert row[1] == pytest.approx(sklearn.metrics.log_loss(labels[drawn], scores[drawn]), abs=1e-12)


def test_paired_difference_is_exactly_zero_when_both_models_say_the_same() -> None:
    labels, scores = draw_binormal(8, 800)
    found = compare(Scored(labels_B=labels, challenger_B=scores, champion_B=scores.copy()), Evaluation(), seed=1)
    assert found.difference is not None
    assert {(one.value, one.low, one.high) for one in found.difference.values()} == {(0.0, 0.0, 0.0)}
    assert found.challenger["auc"].high - found.challenger["auc"].low > 0.03


def test_paired_interval_is_narrower_than_the_models_own_when_they_agree_mostly() -> None:
    labels, scores = draw_binormal(9, 2000)
    other = (scores + np.random.default_rng(1).normal(0, 0.02, 2000)).clip(0, 1)
    found = compare(Scored(labels_B=labels, challenger_B=scores, champion_B=other), Evaluation(), seed=1)
    assert found.difference is not None
    own = found.challenger["auc"].high - found.challenger["auc"].low
    assert found.difference["auc"].high - found.difference["auc"].low < own / 3


def test_intervals_are_the_same_when_asked_again_and_others_with_another_seed() -> None:
    labels, scores = draw_binormal(10, 700)
    scored = Scored(labels_B=labels, challenger_B=scores)
    first = compare(scored, Evaluation(), seed=seed_of("run", "carrier", "UA"))
    assert compare(scored, Evaluation(), seed=seed_of("run", "carrier", "UA")) == first
    assert compare(scored, Evaluation(), seed=seed_of("run", "carrier", "AA")) != first


def test_interval_is_left_out_when_too_few_resamples_define_the_metric() -> None:
    labels = np.zeros(60)
    scored = Scored(labels_B=labels, challenger_B=np.linspace(0.1, 0.5, 60))
    tree = compare(scored, Evaluation(), seed=1).to_json()["challenger"]
    assert tree["auc"] == {"value": None, "low": None, "high": None}
    assert tree["accuracy"] == {"value": pytest.approx(59 / 60), "low": pytest.approx(0.95, abs=0.01), "high": 1.0}


def test_point_values_are_the_same_when_intervals_are_left_out() -> None:
    labels, scores = draw_binormal(11, 300)
    scored = Scored(labels_B=labels, challenger_B=scores, champion_B=scores**2)
    whole, points = compare(scored, Evaluation(), seed=1), points_only(scored)
    assert {name: one.value for name, one in whole.challenger.items()} == {
        name: one.value for name, one in points.challenger.items()
    }
    assert points.difference is not None
    assert points.difference["auc"].value == 0.0  # squaring keeps the order
    assert points.to_json()["challenger"]["auc"]["low"] is None


def test_thousand_paired_resamples_of_six_thousand_rows_take_seconds_at_most() -> None:
    labels, scores = draw_binormal(12, 6000)
    start = time.process_time()
    compare(Scored(labels_B=labels, challenger_B=scores, champion_B=scores**2), Evaluation(), seed=1)
    assert time.process_time() - start < 5
