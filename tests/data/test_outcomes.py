"""Outcomes that are true or false, from JSON Lines to samples; refused rows of sources that have no lines."""

from __future__ import annotations

import copy
import json
from typing import Any

import polars as pl
import pytest

from paddlewheel.data.ingest import ingest
from paddlewheel.data.landing.preview import lines_of, preview
from paddlewheel.data.plan import plan
from paddlewheel.data.shard import shard
from paddlewheel.data.validate import validate
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_check import load_recipe

from .conftest import World

TREE: dict[str, Any] = {
    "name": "orders",
    "title": "Orders",
    "data": {
        "landing": "landing",
        "window": {"train_days": 1, "holdout_days": 1},
        "label": {"column": "returned"},
        "rows": {
            "name": "orders",
            "path": "{partition}.jsonl",
            "format": "jsonl",
            "key": ["order"],
            "columns": [
                {"name": "order", "type": "int64"},
                {"name": "at", "type": "timestamp"},
                {"name": "returned", "type": "bool", "known": "after", "nullable": True},
            ],
        },
    },
    "features": [{"name": "hour", "kind": "hour", "columns": ["at"]}],
    "model": {"name": "deepfm"},
    "training": {"epochs": 1, "global_batch": 4},
}
DAYS = ["2024-03-01", "2024-03-02"]


def make_recipe(**overrides: Any) -> Recipe:
    return load_recipe(copy.deepcopy(TREE), {path.replace("__", "."): value for path, value in overrides.items()})


def validated(world: World, recipe: Recipe) -> str:
    planned = plan(recipe, DAYS[-1], store=world.store)
    return validate(recipe, [ingest(recipe, planned, 0, store=world.store)], store=world.store)


def write_days(world: World) -> None:
    world.landing.mkdir(parents=True)
    for place, day in enumerate(DAYS):
        outcomes = [True, False, None, True]
        rows = [
            {"order": 10 * place + number, "at": f"{day}T0{number}:30:00Z", "returned": outcome}
            for number, outcome in enumerate(outcomes)
        ]
        (world.landing / f"{day}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_true_is_one_and_false_zero_when_the_label_is_a_bool(world: World) -> None:
    write_days(world)
    shards = world.manifest(shard(make_recipe(), validated(world, make_recipe()), store=world.store))
    labels = [pl.read_parquet(world.store.local_path(file.key))["label"].to_list() for file in shards.files]
    assert [sorted(day) for day in labels] == [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    assert shards.facts["without_label"] == 2


def test_recipe_error_when_a_bool_is_compared_with_a_number() -> None:
    with pytest.raises(RecipeError, match=r"data\.label\.above: 15\.0: a bool is its own label; leave it out"):
        make_recipe(data__label__above=15)


def test_the_middle_of_times_is_a_day_when_previewed(world: World) -> None:
    write_days(world)
    found = preview(make_recipe(), source=None, partition=None, rows=1, store=world.store)
    line = next(line for line in lines_of(found) if line.startswith("at  "))
    assert line.split()[4:7] == ["2024-03-02T00:30:00Z", "2024-03-02", "2024-03-02T03:30:00Z"]


def test_refused_rows_of_parquet_are_told_by_their_row_when_they_are_too_many(world: World) -> None:
    recipe = make_recipe(data__rows__path="{partition}.parquet", data__rows__format="parquet")
    world.landing.mkdir(parents=True)
    for day in DAYS:
        frame = pl.DataFrame({"order": [1, None], "at": [f"{day}T00:00:00Z"] * 2, "returned": [True, False]})
        frame.write_parquet(world.landing / f"{day}.parquet")
    with pytest.raises(DataError) as error:
        validated(world, recipe)
    assert "2024-03-01.parquet row 2, column order: missing" in str(error.value)
