"""AUC and log loss of the recipe's network against scikit-learn on the same rows and the same raw columns.

Peers: logistic regression over one-hot columns, and HistGradientBoosting. For each partition the whole chain runs in a
temporary root; the peers train on its training shards and are scored on its holdout shards. The last line's ratio is
the lowest over the partitions of (our AUC / the boosted trees'); ok needs also a log loss that is no worse on each.

Use: python benchmarks/model_quality.py [--partitions 2013-04-15 2013-11-01 …]
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from paddlewheel.chain import run_chain
from paddlewheel.data.demos.flights import write_flights
from paddlewheel.lineage import nearest
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_check import known_columns, load_recipe
from paddlewheel.storage.local import LocalStore

PROJECT = Path(__file__).parents[1]
# Numbers that stand for a name: what a tree or a linear model would otherwise read as a size.
NAMES = {"hour", "weekday"}
ROUTE_COLUMNS = ("carrier", "origin", "dest")


def load_rows(store: LocalStore, shards: Manifest, role: str) -> pl.DataFrame:
    """Raw joined rows of one role, in the manifest's order."""
    return pl.concat(
        [pl.read_parquet(store.local_path(shard.key)) for shard in shards.files if shard.facts["role"] == role]
    )


def raw_columns(recipe: Recipe) -> tuple[list[str], list[str]]:
    """(categorical, numeric) raw columns that the recipe's features read; time stamps come in as hour and weekday."""
    columns = known_columns(recipe)
    used = sorted({name for feature in recipe.features for name in feature.columns})
    categorical = [name for name in used if columns[name].type == "string"] + sorted(NAMES)
    numeric = [name for name in used if columns[name].type in ("int64", "float64") and name not in NAMES]
    return categorical, numeric


def frame_for_peers(rows: pl.DataFrame, categorical: list[str], numeric: list[str]) -> pl.DataFrame:
    """The raw columns as scikit-learn takes them: text for names, floats for numbers; weekday from the time stamp."""
    local = pl.col("time_hour").dt.convert_time_zone("America/New_York")
    rows = rows.with_columns(weekday=local.dt.weekday())
    return rows.select(
        [pl.col(name).cast(pl.String).fill_null("missing") for name in categorical]
        + [pl.col(name).cast(pl.Float64) for name in numeric]
    )


def score_peers(train: pl.DataFrame, holdout: pl.DataFrame, recipe: Recipe) -> dict[str, np.ndarray]:
    """Probabilities of both peers on the holdout rows."""
    categorical, numeric = raw_columns(recipe)
    x_train = frame_for_peers(train, categorical, numeric).to_pandas()
    x_holdout = frame_for_peers(holdout, categorical, numeric).to_pandas()
    y_train = train["label"].to_numpy()
    linear = make_pipeline(
        ColumnTransformer(
            [
                ("names", OneHotEncoder(handle_unknown="ignore", min_frequency=10), categorical),
                ("numbers", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), numeric),
            ]
        ),
        LogisticRegression(C=0.3, max_iter=500),
    )
    trees = make_pipeline(
        ColumnTransformer(
            [
                (
                    "names",
                    OrdinalEncoder(
                        handle_unknown="use_encoded_value", unknown_value=-1, min_frequency=10, max_categories=250
                    ),
                    categorical,
                ),
                ("numbers", "passthrough", numeric),
            ]
        ),
        HistGradientBoostingClassifier(
            max_iter=300,
            learning_rate=0.06,
            early_stopping=True,
            random_state=0,
            categorical_features=list(range(len(categorical))),
        ),
    )
    scores = {}
    for name, model in (("logistic_regression", linear), ("boosted_trees", trees)):
        model.fit(x_train, y_train)
        scores[name] = model.predict_proba(x_holdout)[:, 1]
    return scores


def measure(partition: str, recipe: Recipe, store: LocalStore) -> dict[str, tuple[float, float]]:
    """(AUC, log loss) by model for one partition, all by scikit-learn's own metrics."""
    night = run_chain(recipe, partition, store=store)
    shards = nearest(store, night.run, "shards")
    evaluation = nearest(store, night.promotion, "evaluation")
    predictions = pl.read_parquet(store.local_path(evaluation.files[0].key))
    train, holdout = load_rows(store, shards, "train"), load_rows(store, shards, "holdout")
    holdout = predictions.select("sample_id", "challenger").join(
        holdout, on="sample_id", how="inner", maintain_order="left"
    )
    labels = holdout["label"].to_numpy()
    scores = {"paddlewheel": holdout["challenger"].to_numpy(), **score_peers(train, holdout, recipe)}
    print(f"{partition}: {train.height} training rows, {holdout.height} holdout rows", flush=True)
    return {name: (roc_auc_score(labels, score), log_loss(labels, score)) for name, score in scores.items()}


def main() -> int:
    """Print a line a model and partition, then the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--partitions", nargs="+", default=["2013-04-15", "2013-07-15", "2013-09-20", "2013-11-01"])
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[])
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    recipe = load_recipe(PROJECT / "recipes/flights_delay.yaml", options.overrides)
    ratios, no_worse = [], True
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        write_flights(Path(folder) / "landing/flights")
        for partition in options.partitions:
            results = measure(partition, recipe, store)
            for name, (auc, loss) in results.items():
                print(f"  {name:<20} AUC {auc:.4f}  log loss {loss:.4f}", flush=True)
            ours, trees = results["paddlewheel"], results["boosted_trees"]
            ratios.append(ours[0] / trees[0])
            no_worse &= ours[1] <= trees[1]
    ratio = min(ratios)
    print(f"model_quality ratio={ratio:.4f} goal=1.0 {'ok' if ratio >= 1 and no_worse else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
