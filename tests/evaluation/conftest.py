"""Small stores that follow the contract between the rooms: runs, bundles and evaluations written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.manifest import Manifest, Shard, input_of, publish_file, publish_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage import Store
from paddlewheel.storage.local import LocalStore

RECIPE: dict[str, Any] = {
    "name": "late",
    "title": "Late arrivals",
    "data": {
        "landing": "landing",
        "label": {"column": "delay", "above": 15},
        "window": {"train_days": 3, "holdout_days": 2},
        "rows": {
            "name": "flights",
            "path": "flights/{partition}.csv.gz",
            "columns": [
                {"name": "carrier", "type": "string"},
                {"name": "distance", "type": "float64"},
                {"name": "delay", "type": "float64", "known": "after"},
            ],
        },
    },
    "features": [
        {"name": "carrier", "kind": "category", "columns": ["carrier"]},
        {"name": "distance", "kind": "standard", "columns": ["distance"]},
    ],
    "model": {"name": "deepfm", "params": {"embedding": 4, "hidden": [8]}},
    "training": {"epochs": 1, "global_batch": 64},
    "evaluation": {"slices": ["carrier"], "resamples": 200, "min_slice_rows": 30},
    "gate": {"metric": "auc", "max_loss": 0.005, "min_auc": 0.6, "max_slice_loss": 0.05},
}


def estimate(value: float | None, spread: float | None = 0.01) -> dict[str, float | None]:
    """A value with a symmetric interval."""
    if value is None or spread is None:
        return {"value": value, "low": None, "high": None}
    return {"value": value, "low": value - spread, "high": value + spread}


def evaluation_facts(
    *,
    run: str = "r1",
    partition: str = "2013-11-01",
    auc: float | None = 0.70,
    log_loss: float = 0.45,
    champion: dict[str, Any] | None = None,
    champion_auc: float = 0.70,
    champion_log_loss: float = 0.45,
    why_not: str = "",
    seen_days: list[str] | None = None,
    slices: list[tuple[str, int, float, float, float | None]] | None = None,
) -> dict[str, Any]:
    """Facts of an `evaluation`. slices: (value, rows, challenger's AUC, champion's AUC, spread of the difference)."""
    facts: dict[str, Any] = {
        "run": run,
        "partition": partition,
        "rows": 1000,
        "positives": 220,
        "holdout": ["2013-10-31", partition],
        "metrics": {"auc": estimate(auc), "log_loss": estimate(log_loss)},
        "champion": None,
        "slices": [],
    }
    if champion is not None:
        compared = {
            "metrics": {"auc": estimate(champion_auc), "log_loss": estimate(champion_log_loss)},
            "difference": {
                "auc": estimate(None if auc is None else auc - champion_auc, 0.002),
                "log_loss": estimate(log_loss - champion_log_loss, 0.002),
            },
        }
        told = {"comparable": not why_not, "why_not": why_not, "seen_days": seen_days or []}
        facts["champion"] = champion | told | ({} if why_not else compared)
        facts["slices"] = [
            {
                "column": "carrier",
                "slices": [
                    {
                        "value": value,
                        "rows": rows,
                        "enough": spread is not None,
                        "challenger": {"auc": estimate(mine)},
                        "champion": {"auc": estimate(theirs)},
                        "difference": {"auc": estimate(mine - theirs, spread)},
                    }
                    for value, rows, mine, theirs, spread in slices or []
                ],
            }
        ]
    return facts


def publish_run(store: Store, recipe: Recipe, run: str, partition: str) -> str:
    """A trained run with a bundle of two small files; the key of its manifest."""
    shards = Manifest(
        kind="shards",
        name=recipe.name,
        key=f"datasets/{recipe.name}.shards/{partition}",
        facts={"partition": partition, "train": ["2013-10-29"], "holdout": ["2013-10-31", partition]},
    )
    publish_manifest(store, shards)
    folder = f"runs/{run}"
    made_from = (input_of(store, f"{shards.key}/manifest.json"),)
    facts = {"partition": partition}
    publish_manifest(
        store, Manifest(kind="run", name=recipe.name, key=folder, inputs=made_from, code="c0de", facts=facts)
    )
    files: list[Shard] = []
    with store.staging() as staging:
        for name in ("network.json", "network.pdiparams"):
            path = staging / name
            path.write_text(f"{name} of {run}")
            files.append(publish_file(store, f"{folder}/bundle/{name}", path))
    publish_manifest(store, Manifest(kind="bundle", name=recipe.name, key=f"{folder}/bundle", files=tuple(files)))
    return f"{folder}/manifest.json"


def publish_evaluation(store: Store, recipe: Recipe, **facts: Any) -> str:
    """A run with its evaluation; the evaluation's URI."""
    tree = evaluation_facts(**facts)
    run, against = tree["run"], (tree["champion"] or {}).get("version", 0)
    source = input_of(store, publish_run(store, recipe, run, tree["partition"]))
    folder = f"runs/{run}/evaluations/against-{against}"
    return publish_manifest(
        store, Manifest(kind="evaluation", name=recipe.name, key=folder, inputs=(source,), facts=tree)
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe(RECIPE)


@pytest.fixture
def make_recipe() -> Callable[..., Recipe]:
    """The recipe with dotted paths set: make_recipe(**{"gate.metric": "log_loss"})."""
    return lambda **overrides: load_recipe(RECIPE, overrides)


@pytest.fixture
def publish() -> Callable[..., str]:
    """publish(store, recipe, run=…, auc=…, champion=…) -> the URI of an evaluation."""
    return publish_evaluation


@pytest.fixture
def facts_of() -> Callable[..., dict[str, Any]]:
    """facts_of(auc=…, champion=…, slices=…) -> facts of an evaluation."""
    return evaluation_facts
