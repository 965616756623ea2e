"""A night on pictures that a table names: planned with their table, their bytes in the samples."""

from __future__ import annotations

import copy
import io

import numpy as np
import polars as pl
from PIL import Image

from paddlewheel.recipe_check import load_recipe

from .conftest import TREE, World

COLUMNS = [
    {"name": "path", "type": "string"},
    {"name": "image", "type": "binary"},
    {"name": "width", "type": "int64"},
    {"name": "label", "type": "int64", "known": "after"},
]


def picture(number: int) -> bytes:
    pixels_HWC = np.random.default_rng(number).integers(0, 256, (8, 8 + number, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels_HWC).save(stream, "PNG")
    return stream.getvalue()


def test_pictures_of_a_table_reach_the_samples_whole(world: World) -> None:
    tree = copy.deepcopy(TREE)
    tree["data"] |= {"joins": [], "label": {"column": "label", "above": 0}}
    tree["data"]["rows"] = {
        "name": "photos", "path": "photos/{partition}/**", "format": "images", "params": {"table": "labels.csv"},
        "key": ["path"], "columns": COLUMNS,
    }  # fmt: skip
    tree["features"] = [{"name": "width", "kind": "standard", "columns": ["width"]}]
    days = [f"2013-11-0{day}" for day in range(1, 5)]
    for day in days:
        folder = world.landing / "photos" / day
        (folder / "more").mkdir(parents=True)
        for number in range(4):
            (folder / "more" / f"{number}.png").write_bytes(picture(number))
        lines = "".join(f"more/{number}.png,{number % 2}\n" for number in range(4))
        (folder / "labels.csv").write_text(f"path,label\n{lines}")
    made = world.chain(load_recipe(tree), "2013-11-04")
    shards = world.manifest(made["shard"]).files
    frames = [pl.read_parquet(world.store.local_path(shard.key)) for shard in shards]
    found = pl.concat(frames)
    assert dict(zip(found["path"], found["image"], strict=True)) == {
        f"photos/{day}/more/{number}.png": picture(number) for day in days for number in range(4)
    }
    assert found["label"].sum() == 8
    before = world.tree()
    assert world.chain(load_recipe(tree), "2013-11-04") == made
    assert world.tree() == before
