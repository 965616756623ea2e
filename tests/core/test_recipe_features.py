"""Which features a recipe may ask for."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from paddlewheel.errors import RecipeError
from paddlewheel.recipe_check import load_recipe

TREE: dict[str, Any] = {
    "name": "mini",
    "title": "Mini",
    "data": {
        "landing": "landing",
        "window": {"train_days": 1, "holdout_days": 1},
        "label": {"column": "after", "above": 0},
        "rows": {
            "name": "rows",
            "path": "{partition}.csv",
            "columns": [
                {"name": "text", "type": "string"},
                {"name": "number", "type": "float64"},
                {"name": "day", "type": "date"},
                {"name": "time", "type": "timestamp"},
                {"name": "picture", "type": "binary"},
                {"name": "after", "type": "float64", "known": "after"},
            ],
        },
    },
    "model": {"name": "deepfm"},
    "training": {"epochs": 1, "global_batch": 4},
}


def load(feature: dict[str, Any]) -> Any:
    tree = copy.deepcopy(TREE) | {"features": [{"name": "f", **feature}]}
    return load_recipe(tree).features[0]


@pytest.mark.parametrize(
    "feature",
    [
        {"kind": "category", "columns": ["time"], "min_count": 2, "max_size": 9},
        {"kind": "hash", "columns": ["number"], "buckets": 9},
        {"kind": "cross", "columns": ["text", "day"], "buckets": 9},
        {"kind": "clip", "columns": ["number"], "upper": 3.5},
        {"kind": "clip", "columns": ["number"], "lower": -1, "upper": 1},
        {"kind": "hour", "columns": ["time"], "timezone": "Europe/Berlin"},
        {"kind": "year_day", "columns": ["day"]},
        {"kind": "multi", "columns": ["text"], "length": 3, "separator": " ", "min_count": 2},
        {"kind": "multi", "columns": ["text"], "length": 3, "separator": "\t"},
        {"kind": "words", "columns": ["text"], "length": 3, "buckets": 9, "ngram": 2},
        {"kind": "characters", "columns": ["text"], "length": 3, "buckets": 9},
        {"kind": "bytes", "columns": ["text"], "length": 65536},
    ],
)
def test_feature_stands_as_it_was_written_when_its_kind_takes_it(feature: dict[str, Any]) -> None:
    loaded = load(feature)
    assert {name: getattr(loaded, name) for name in feature} == feature | {"columns": tuple(feature["columns"])}


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ({"kind": "category", "columns": ["picture"]}, "columns.0: 'picture': kind category needs a value, this is a"),
        ({"kind": "bytes", "columns": ["picture"], "length": 4}, "kind bytes needs a string, this is a binary"),
        ({"kind": "words", "columns": ["number"], "length": 4, "buckets": 9}, "needs a string, this is a float64"),
        ({"kind": "words", "columns": ["text"], "length": 4}, "buckets: kind words needs it"),
        ({"kind": "characters", "columns": ["text"], "length": 4, "buckets": 9, "ngram": 2}, "must be at least 3"),
        ({"kind": "multi", "columns": ["text"], "length": 4}, "separator: kind multi needs it"),
        ({"kind": "multi", "columns": ["text"], "separator": "|"}, "length: kind multi needs it"),
        ({"kind": "hour", "columns": ["day"]}, "kind hour needs a timestamp, this is a date"),
        ({"kind": "year_day", "columns": ["number"]}, "kind year_day needs a timestamp, this is a float64"),
        ({"kind": "clip", "columns": ["number"]}, "kind clip needs it, or upper, or both"),
        ({"kind": "clip", "columns": ["number"], "lower": 2, "upper": 2}, "must be below upper 2.0"),
        ({"kind": "bytes", "columns": ["text"], "length": 0}, "length: 0"),
        ({"kind": "standard", "columns": ["number"], "lower": 1}, "kind standard takes no parameter"),
        ({"kind": "hash", "columns": ["text"], "buckets": 9, "max_size": 3}, "kind hash takes buckets"),
        ({"kind": "month", "columns": ["day"], "timezone": "Mars/North"}, "must be a time zone as America/New_York"),
        ({"kind": "clip", "columns": ["after"], "upper": 2}, "known only after the prediction"),
    ],
)
def test_fault_says_what_the_kind_takes(feature: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as told:
        load(feature)
    assert words in str(told.value)
