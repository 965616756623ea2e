"""A small world of landing files: trips a day, weather a day, planes once; and the chain over them."""

from __future__ import annotations

import copy
import datetime
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.data.features import fit_features
from paddlewheel.data.ingest import ingest, plan_ingest
from paddlewheel.data.plan import plan
from paddlewheel.data.preprocess import plan_batches, preprocess
from paddlewheel.data.shard import shard
from paddlewheel.data.validate import validate
from paddlewheel.manifest import Manifest, read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore

TREE: dict[str, Any] = {
    "name": "mini",
    "title": "Mini",
    "data": {
        "landing": "landing",
        "window": {"train_days": 3, "holdout_days": 1},
        "label": {"column": "delay", "above": 15},
        "rows": {
            "name": "trips",
            "path": "trips/{partition}.csv.gz",
            "key": ["date", "number"],
            "max_refused_fraction": 0.5,
            "columns": [
                {"name": "date", "type": "date"},
                {"name": "number", "type": "int64", "minimum": 1},
                {"name": "hour_utc", "type": "timestamp"},
                {"name": "minute", "type": "int64", "minimum": 0, "maximum": 59},
                {"name": "origin", "type": "string", "allowed": ["EWR", "JFK"]},
                {"name": "plane", "type": "string", "nullable": True, "pattern": "N[0-9]+"},
                {"name": "miles", "type": "float64", "nullable": True, "minimum": 0},
                {"name": "left_at", "type": "int64", "nullable": True, "known": "after"},
                {"name": "delay", "type": "float64", "nullable": True, "known": "after"},
            ],
        },
        "joins": [
            {
                "kind": "asof",
                "keys": {"origin": "station"},
                "left_time": {"column": "hour_utc", "plus_minutes": "minute"},
                "right_time": {"column": "at"},
                "tolerance_hours": 6,
                "source": {
                    "name": "weather",
                    "path": "weather/{partition}.csv.gz",
                    "key": ["station", "at"],
                    "columns": [
                        {"name": "station", "type": "string"},
                        {"name": "at", "type": "timestamp"},
                        {"name": "wind", "type": "float64", "nullable": True},
                        {"name": "verdict", "type": "string", "nullable": True, "known": "after"},
                    ],
                },
            },
            {
                "kind": "lookup",
                "keys": {"plane": "tail"},
                "source": {
                    "name": "planes",
                    "path": "planes.csv.gz",
                    "key": ["tail"],
                    "columns": [
                        {"name": "tail", "type": "string"},
                        {"name": "seats", "type": "int64", "nullable": True},
                    ],
                },
            },
        ],
    },
    "features": [
        {"name": "origin", "kind": "category", "columns": ["origin"]},
        {"name": "miles", "kind": "standard", "columns": ["miles"]},
        {"name": "wind", "kind": "standard", "columns": ["weather_wind"]},
        {"name": "seats", "kind": "standard", "columns": ["planes_seats"]},
    ],
    "model": {"name": "deepfm"},
    "training": {"epochs": 1, "global_batch": 4},
}
TRIPS_HEADER = "date,number,hour_utc,minute,origin,plane,miles,left_at,delay"


def make_recipe(**overrides: Any) -> Recipe:
    """The small recipe; overrides by dotted path with `__` for the dot."""
    return load_recipe(copy.deepcopy(TREE), {path.replace("__", "."): value for path, value in overrides.items()})


def trip(day: str, number: int, *, delay: str = "20") -> str:
    origin, plane = ("EWR", "JFK")[number % 2], f"N{number % 3}"
    return f"{day},{number},{day}T{10 + number % 5}:00:00Z,{number % 60},{origin},{plane},{100 * number},1007,{delay}"


@dataclass(frozen=True, kw_only=True)
class World:
    """A store with a landing folder in it."""

    store: LocalStore

    @property
    def landing(self) -> Path:
        return self.store.folder / "landing"

    def write(self, path: str, content: str | bytes) -> Path:
        """A gzip file below the landing folder."""
        target = self.landing / path
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        target.write_bytes(gzip.compress(raw, mtime=0))
        return target

    def write_trips(self, day: str, rows: list[str]) -> Path:
        return self.write(f"trips/{day}.csv.gz", "\n".join([TRIPS_HEADER, *rows]) + "\n")

    def write_days(self, first: str, count: int, *, trips: int = 6) -> list[str]:
        """Trips and weather of days one after the other, delays 20 and 10 in turn; planes once."""
        start = datetime.date.fromisoformat(first)
        days = [(start + datetime.timedelta(days=index)).isoformat() for index in range(count)]
        for day in days:
            self.write_trips(day, [trip(day, n, delay="20" if n % 2 else "10") for n in range(1, trips + 1)])
            rows = [f"{s},{day}T{hour:02}:00:00Z,{hour},fair" for hour in (0, 6, 12, 18) for s in ("EWR", "JFK")]
            self.write(f"weather/{day}.csv.gz", "\n".join(["station,at,wind,verdict", *rows]) + "\n")
        self.write("planes.csv.gz", "tail,seats\nN0,100\nN1,200\n")
        return days

    def tree(self, prefix: str = "datasets") -> dict[str, int]:
        """Keys below a prefix with their modification times."""
        return {stat.key: (self.store.folder / stat.key).stat().st_mtime_ns for stat in self.store.list(prefix)}

    def chain(self, recipe: Recipe, partition: str) -> dict[str, Any]:
        """URIs of every data step's manifest."""
        made: dict[str, Any] = {"plan": plan(recipe, partition, store=self.store)}
        batches = plan_ingest(recipe, made["plan"], store=self.store)
        made["ingest"] = [ingest(recipe, made["plan"], batch, store=self.store) for batch in batches]
        made["validate"] = validate(recipe, made["ingest"], store=self.store)
        made["shard"] = shard(recipe, made["validate"], store=self.store)
        made["features"] = fit_features(recipe, made["shard"], store=self.store)
        batches = plan_batches(recipe, made["shard"], store=self.store)
        made["packed"] = [
            preprocess(recipe, made["shard"], made["features"], batch, store=self.store) for batch in batches
        ]
        return made

    def manifest(self, uri: str) -> Manifest:
        return read_manifest(self.store, uri)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(store=LocalStore(tmp_path / "root"))
