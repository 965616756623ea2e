from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import sklearn.metrics

from paddlewheel.errors import DataError
from paddlewheel.evaluation.compare import Scored
from paddlewheel.evaluation.slices import cut_by
from paddlewheel.recipe import Evaluation


def make_rows() -> tuple[pl.DataFrame, Scored]:
    generator = np.random.default_rng(5)
    carriers = ["UA"] * 300 + ["AA"] * 120 + ["HA"] * 10 + [None] * 70
    labels = (generator.random(500) < 0.3).astype(np.float64)
    challenger = (generator.random(500) * 0.6 + 0.2 * labels).clip(0, 1)
    frame = pl.DataFrame({"carrier": carriers, "hour": [6, 7] * 250})
    return frame, Scored(labels_B=labels, challenger_B=challenger, champion_B=challenger**2)


def test_slices_hold_the_metrics_of_their_rows_when_cut_by_a_text_and_a_number() -> None:
    frame, scored = make_rows()
    carrier, hour = cut_by(frame, scored, Evaluation(slices=("carrier", "hour")), run_key="k")
    assert [(one.value, one.rows, one.enough) for one in carrier.slices] == [
        ("UA", 300, True),
        ("AA", 120, True),
        ("(missing)", 70, True),
        ("HA", 10, False),
    ]
    assert [(one.value, one.rows) for one in hour.slices] == [("6", 250), ("7", 250)]
    american = carrier.slices[1]
    expected = sklearn.metrics.roc_auc_score(scored.labels_B[300:420], scored.challenger_B[300:420])
    assert american.comparison.challenger["auc"].value == pytest.approx(expected, abs=1e-12)
    assert american.comparison.challenger["auc"].low < expected < american.comparison.challenger["auc"].high
    assert american.positives == int(scored.labels_B[300:420].sum())


def test_small_slice_has_no_interval_when_below_min_slice_rows() -> None:
    frame, scored = make_rows()
    small = cut_by(frame, scored, Evaluation(slices=("carrier",)), run_key="k")[0].slices[-1].to_json()
    assert (small["value"], small["rows"], small["enough"]) == ("HA", 10, False)
    assert small["challenger"]["log_loss"]["value"] > 0
    assert small["challenger"]["log_loss"]["low"] is None
    assert small["difference"]["auc"]["low"] is None


def test_rest_is_counted_when_a_column_has_more_values_than_slices_are_shown() -> None:
    frame = pl.DataFrame({"tail": [f"N{number:03}" for number in range(150)]})
    scored = Scored(labels_B=np.zeros(150), challenger_B=np.full(150, 0.2))
    cut = cut_by(frame, scored, Evaluation(slices=("tail",)), run_key="k")[0]
    assert (len(cut.slices), cut.left_out, cut.left_out_rows) == (100, 50, 50)


def test_error_names_the_column_when_the_rows_do_not_have_it() -> None:
    frame, scored = make_rows()
    with pytest.raises(DataError, match="no column dep_delay; they have carrier, hour"):
        cut_by(frame, scored, Evaluation(slices=("dep_delay",)), run_key="k")
