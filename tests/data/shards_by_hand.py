"""A `shards` manifest written by hand, and a recipe with a feature of every kind over its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from paddlewheel.manifest import Manifest, publish_file, publish_manifest
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_check import load_recipe
from paddlewheel.recipe_data import Feature
from paddlewheel.storage import Store

from .every_kind import EVERY_KIND

COLUMNS = {"s": "string", "n": "int64", "m": "int64", "b": "bool", "x": "float64", "d": "date", "t": "timestamp"}


def recipe_of(features: Sequence[Feature] = EVERY_KIND, **overrides: Any) -> Recipe:
    """A recipe with these features; overrides by dotted path with `__` for the dot."""
    columns: list[dict[str, Any]] = [{"name": name, "type": kind, "nullable": True} for name, kind in COLUMNS.items()]
    columns += [{"name": "picture", "type": "binary", "nullable": True}]
    columns += [{"name": "delay", "type": "float64", "nullable": True, "known": "after"}]
    tree = {
        "name": "mini",
        "title": "Mini",
        "data": {
            "landing": "landing",
            "window": {"train_days": 3, "holdout_days": 1},
            "label": {"column": "delay", "above": 15},
            "rows": {"name": "rows", "path": "{partition}.csv", "columns": columns},
        },
        "features": [{name: value for name, value in dump(one).items() if value is not None} for one in features],
        "model": {"name": "deepfm"},
        "training": {"epochs": 1, "global_batch": 4},
    }
    return load_recipe(tree, {path.replace("__", "."): value for path, value in overrides.items()})


def publish_shards(
    store: Store, days: Mapping[str, Sequence[pl.DataFrame]], *, holdout: Sequence[str], night: str = "night"
) -> str:
    """Shards of these samples (sample_id, label, columns), some a day; the URI of their manifest.

    A day's files lie where they lay for another night, as those of the step `shard` do.
    """
    files = []
    for day, frames in days.items():
        for number, frame in enumerate(frames):
            with store.staging() as staging:
                path = staging / "shard.parquet"
                frame.write_parquet(path, row_group_size=1000)
                facts = {"day": day, "shard": number, "role": "holdout" if day in holdout else "train"}
                key = f"datasets/mini.samples/{day}/shard-{number:03d}.parquet"
                files.append(publish_file(store, key, path, rows=len(frame), facts=facts))
    window = {"partition": max(days), "train": [day for day in days if day not in holdout], "holdout": list(holdout)}
    manifest = Manifest(
        kind="shards", name="mini", key=f"datasets/mini.shards/{night}", files=tuple(files), facts=window
    )
    return publish_manifest(store, manifest)


def samples(frame: pl.DataFrame, first_id: int) -> pl.DataFrame:
    """The rows with ids and labels before them, and a column that no feature may read behind them."""
    return frame.select(
        pl.Series("sample_id", range(first_id, first_id + len(frame)), dtype=pl.UInt64),
        (pl.int_range(len(frame)) % 2).cast(pl.Float32).alias("label"),
        *frame.columns,
        pl.lit(b"\x89PNG\x00").alias("picture"),
    )
