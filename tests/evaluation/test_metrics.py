"""Metrics against scikit-learn and against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.calibration
import sklearn.metrics

from paddlewheel.evaluation.metrics import auc, calibration_error, measure, reliability, roc_curve, wilson


def make_rows(seed: int, rows: int, decimals: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.22).astype(np.float64)
    probabilities = (generator.beta(2, 7, rows) + 0.1 * labels).clip(0, 1)
    return labels, probabilities if decimals is None else probabilities.round(decimals)


@pytest.mark.parametrize("decimals", [None, 2, 1, 0])
@pytest.mark.parametrize(("seed", "rows"), [(1, 40), (2, 6001)])
def test_metrics_equal_scikit_learn_when_scores_tie_or_not(seed: int, rows: int, decimals: int | None) -> None:
    labels, probabilities = make_rows(seed, rows, decimals)
    found = measure(labels, probabilities)
    assert found["auc"] == pytest.approx(sklearn.metrics.roc_auc_score(labels, probabilities), abs=1e-12)
    assert found["log_loss"] == pytest.approx(sklearn.metrics.log_loss(labels, probabilities), abs=1e-12)
    assert found["brier"] == pytest.approx(sklearn.metrics.brier_score_loss(labels, probabilities), abs=1e-12)
    assert found["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(labels, probabilities >= 0.5), abs=1e-12)


def test_auc_is_seven_eighths_when_a_tie_counts_half() -> None:
    # Pairs (positive, negative): .9>.5 .9>.1 .5=.5 .5>.1 -> 3.5 of 4.
    assert auc(np.array([1.0, 1, 0, 0]), np.array([0.9, 0.5, 0.5, 0.1])) == 3.5 / 4


def test_auc_is_undefined_when_only_one_label_occurs() -> None:
    assert math.isnan(auc(np.ones(5), np.linspace(0, 1, 5)))
    assert len(roc_curve(np.zeros(5), np.linspace(0, 1, 5)).true_positive_rates_P) == 0


def test_log_loss_stays_finite_when_a_certain_prediction_is_wrong() -> None:
    # minus the natural logarithm of the machine epsilon
    assert measure(np.array([1.0]), np.array([0.0]))["log_loss"] == pytest.approx(36.04365338911715, abs=1e-9)


@pytest.mark.parametrize("decimals", [None, 1])
def test_reliability_equals_scikit_learn_when_bins_hold_equal_counts(decimals: int | None) -> None:
    labels, probabilities = make_rows(3, 5000, decimals)
    observed, predicted = sklearn.calibration.calibration_curve(labels, probabilities, n_bins=10, strategy="quantile")
    bins = reliability(labels, probabilities)
    assert [one.observed for one in bins] == pytest.approx(observed, abs=1e-12)
    assert [one.predicted for one in bins] == pytest.approx(predicted, abs=1e-12)
    assert sum(one.rows for one in bins) == 5000


def test_calibration_error_is_a_tenth_when_every_prediction_is_ten_points_high() -> None:
    labels = np.repeat([1.0, 0, 0, 0, 0], 200)  # 20 % of all
    assert calibration_error(reliability(labels, np.full(1000, 0.3))) == pytest.approx(0.1)


def test_wilson_interval_is_the_published_one_when_eight_of_ten_succeed() -> None:
    # Brown, Cai and DasGupta, Interval Estimation for a Binomial Proportion (2001): formula (4); R: binom.wilson(8, 10)
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)


def test_roc_curve_equals_scikit_learn_when_not_thinned() -> None:
    labels, scores = make_rows(4, 3000, 3)
    false_rates, true_rates, _ = sklearn.metrics.roc_curve(labels, scores, drop_intermediate=False)
    found = roc_curve(labels, scores, points=10_000)
    np.testing.assert_allclose(found.false_positive_rates_P, false_rates, atol=1e-12)
    np.testing.assert_allclose(found.true_positive_rates_P, true_rates, atol=1e-12)


def test_roc_curve_keeps_its_ends_and_its_area_when_thinned() -> None:
    labels, scores = make_rows(5, 20_000)
    found = roc_curve(labels, scores)
    x, y = found.false_positive_rates_P, found.true_positive_rates_P
    assert 100 < len(x) <= 300
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(y, x) == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores), abs=1e-3)
