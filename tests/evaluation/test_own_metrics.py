"""A metric of the user's own beside the exact ones: in the evaluation, against a champion, on the card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from paddlewheel.card.evaluation import holdout_view
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.evaluation.compare import Scored, compare
from paddlewheel.evaluation.own_metrics import with_own_metrics
from paddlewheel.manifest import Manifest, publish_file, publish_manifest
from paddlewheel.recipe import Evaluation, Recipe, dump
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore

OWN = """
def recall(labels, probabilities):
    probabilities[:] = probabilities > 0.5  # what is its own to change
    return (labels * probabilities).sum() / labels.sum()

def nothing(labels, probabilities):
    return None
"""
LABELS_B = np.array([1.0, 1.0, 1.0, 1.0, 0.0])


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_measures.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_own_metric_is_told_for_both_models_and_their_difference() -> None:
    challenger_B, champion_B = np.array([0.9, 0.8, 0.7, 0.2, 0.6]), np.array([0.9, 0.4, 0.3, 0.2, 0.1])
    scored = Scored(labels_B=LABELS_B, challenger_B=challenger_B, champion_B=champion_B)
    plain = compare(scored, Evaluation(), seed=1)
    found = with_own_metrics(plain, scored, ["own_measures:recall"]).to_json()
    told = [found[part]["own_measures:recall"]["value"] for part in ("challenger", "champion", "difference")]
    assert told == [0.75, 0.25, 0.5]
    assert found["challenger"]["auc"] == plain.to_json()["challenger"]["auc"]
    assert challenger_B.tolist() == [0.9, 0.8, 0.7, 0.2, 0.6]


def test_own_metric_stands_on_the_card_by_its_name(store: LocalStore) -> None:
    scored = Scored(labels_B=LABELS_B, challenger_B=np.array([0.9, 0.8, 0.7, 0.2, 0.6]))
    settings = Evaluation(metrics=("own_measures:recall",))
    whole = with_own_metrics(compare(scored, settings, seed=1), scored, settings.metrics)
    with store.staging() as staging:
        frame = pl.DataFrame({"label": LABELS_B, "challenger": scored.challenger_B})
        frame.write_parquet(staging / "predictions.parquet")
        file = publish_file(store, "e/predictions.parquet", staging / "predictions.parquet", rows=5)
    evaluation = Manifest(kind="evaluation", name="late", key="e", files=(file,))
    publish_manifest(store, evaluation)
    facts = {
        "rows": 5, "positives": 4, "holdout": ["2013-11-01"], "settings": dump(settings), "champion": None,
        "metrics": whole.to_json()["challenger"], "skew": {"rows": 5, "largest_difference": 0.0, "limit": 1e-6},
    }  # fmt: skip
    view = holdout_view(facts, evaluation, store, question="a late arrival")
    assert [row["cells"] for row in view["rows"]][-1] == ["recall", "0.7500", ""]


def test_metric_that_gives_no_number_is_told_by_its_field_and_name() -> None:
    scored = Scored(labels_B=LABELS_B, challenger_B=LABELS_B)
    with pytest.raises(DataError, match=r"evaluation\.metrics\.1: own_measures:nothing failed on 5 rows: TypeError"):
        with_own_metrics(compare(scored, Evaluation(), seed=1), scored, ["own_measures:recall", "own_measures:nothing"])


def test_metric_that_is_not_there_is_refused_when_the_recipe_is_read(make_recipe: Callable[..., Recipe]) -> None:
    assert make_recipe(**{"evaluation.metrics": ["own_measures:recall"]}).evaluation.metrics == ("own_measures:recall",)
    with pytest.raises(RecipeError) as caught:
        load_recipe(dump(make_recipe()), {"evaluation.metrics": ["auc", "no.such:thing", "no.such:thing"]})
    text = str(caught.value)
    assert "evaluation.metrics.0: 'auc'" in text
    assert "evaluation.metrics.1: 'no.such:thing': there is no module 'no.such' to import" in text
    assert "evaluation.metrics: 'no.such:thing': stands there twice; each name once" in text
