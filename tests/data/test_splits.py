"""The same rows, however they are split over files, formats, groups, batches and workers: one and the same data.

Real landing files through the whole data chain. What must not differ: the statistics of each source, the fitted
features, and the bytes of shards and packed rows.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paddlewheel.data import ingest
from paddlewheel.data.landing import groups
from paddlewheel.data.statistics.table_statistics import TableStatistics, merge
from paddlewheel.data.types import POLARS_TYPES
from paddlewheel.storage.local import LocalStore

from .conftest import TREE, World, make_recipe

DAYS = ["2013-11-02", "2013-11-03"]  # summer time ends in between
Row = dict[str, Any]
SOURCES: dict[str, list[dict[str, Any]]] = {
    "trips": TREE["data"]["rows"]["columns"],
    "weather": TREE["data"]["joins"][0]["source"]["columns"],
    "planes": TREE["data"]["joins"][1]["source"]["columns"],
}


def rows_of(day: str) -> list[Row]:
    """25 trips of a day, with nulls, numbers that no double holds, and a time before 1970."""
    draw = random.Random(day)
    date = datetime.date.fromisoformat(day)
    rows = []
    for number in range(1, 26):
        at = datetime.datetime(date.year, date.month, date.day, draw.randrange(24), tzinfo=datetime.UTC)
        rows.append(
            {
                "date": date,
                "number": number if number % 5 else 2**53 + number,
                "hour_utc": at if number != 7 else datetime.datetime(1969, 7, 20, 20, tzinfo=datetime.UTC),
                "minute": draw.randrange(60),
                "origin": draw.choice(["EWR", "JFK"]),
                "plane": draw.choice([None, "N1", "N2", "N3"]),
                "miles": draw.choice([None, 0.1, 200.25, 1e300, 3.0]),
                "left_at": draw.choice([None, 2**53 + 1]),
                "delay": draw.choice([None, 10.5, 20.0, 30.0]),
            }
        )
    return rows


def weather_of(day: str) -> list[Row]:
    date = datetime.date.fromisoformat(day)
    return [
        {
            "station": station,
            "at": datetime.datetime(date.year, date.month, date.day, hour, 30, tzinfo=datetime.UTC),
            "wind": None if hour == 6 else hour + 0.5,
            "verdict": "fair, \u201cso far\u201d",
        }
        for station in ("EWR", "JFK")
        for hour in (0, 6, 12, 18)
    ]


PLANES: list[Row] = [{"tail": f"N{number}", "seats": None if number == 2 else 100 * number} for number in range(3)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """How to split: files of a day of trips, of a day of weather, of the planes; then groups, batches and workers."""

    kind: str
    by: str
    seed: int
    num_files: tuple[int, int, int]
    group_files: int
    num_batches: int
    num_workers: int


SPLITS = st.builds(
    Split,
    kind=st.sampled_from(["csv", "jsonl", "parquet"]),
    by=st.sampled_from(["content", "label"]),
    seed=st.integers(0, 2**32),
    num_files=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 2)),
    group_files=st.integers(1, 3),
    num_batches=st.integers(1, 2),
    num_workers=st.integers(1, 3),
)


def write(path: Path, rows: Sequence[Row], columns: Sequence[dict[str, Any]], kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [column["name"] for column in columns]
    if kind == "parquet":
        schema = {column["name"]: POLARS_TYPES[column["type"]] for column in columns}
        pl.DataFrame([[row[name] for name in names] for row in rows], schema=schema, orient="row").write_parquet(path)
        return
    texts = [{name: _text(row[name]) for name in names} for row in rows]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in texts), "utf-8")
        return
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(texts)
    path.write_text(out.getvalue(), "utf-8")


def _text(value: Any) -> Any:
    """A value as CSV and JSON hold it."""
    return value.isoformat() if isinstance(value, datetime.date) else value


def split(rows: Sequence[Row], order: random.Random, num_files: int) -> list[list[Row]]:
    """The rows in another order, in files of any size."""
    shuffled = order.sample(list(rows), len(rows))
    cuts = sorted(order.randrange(1, len(rows)) for _ in range(num_files - 1))
    return [shuffled[start:end] for start, end in itertools.pairwise([0, *cuts, len(rows)]) if end > start]


def outcome(folder: Path, how: Split, parts: dict[str, list[list[Row]]]) -> dict[str, Any]:
    """Statistics by source, and the digests of features, shards and packed rows. parts: files by source and day."""
    world, kind = World(store=LocalStore(folder)), how.kind
    for name, files in parts.items():
        for index, rows in enumerate(files):
            write(world.landing / name / f"part {index}.{kind}", rows, SOURCES[name.partition("/")[0]], kind)
    recipe = make_recipe(
        data__window={"train_days": 1, "holdout_days": 1},
        data__rows__path=f"trips/{{partition}}/*.{kind}",
        data__rows__format=kind,
        data__joins__0__source__path=f"weather/{{partition}}/*.{kind}",
        data__joins__0__source__format=kind,
        data__joins__1__source__path=f"planes/*.{kind}",
        data__joins__1__source__format=kind,
        data__sharding={"by": how.by, "shards_per_day": 2},
        data__max_batches=how.num_batches,
    )
    made = world.chain(recipe, DAYS[-1])
    ingested = [file for uri in made["ingest"] for file in world.manifest(uri).files]
    assert len(made["ingest"]) == min(how.num_batches, len({file.facts["table"] for file in ingested}))
    statistics = {
        name: merge(
            TableStatistics.from_json(world.store.read(file.key), file.key)
            for file in ingested
            if file.facts["part"] == "statistics" and file.facts["source"] == name
        ).to_json()
        for name in SOURCES
    }
    packed = [file for uri in made["packed"] for file in world.manifest(uri).files]
    return {
        "statistics": statistics,
        "features": [file.digest for file in world.manifest(made["features"]).files],
        "shards": [(file.digest, dict(file.facts)) for file in world.manifest(made["shard"]).files],
        "packed": [file.digest for file in packed],
    }


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of one CSV file a source and day, by sharding."""
    parts = {f"trips/{day}": [rows_of(day)] for day in DAYS} | {f"weather/{day}": [weather_of(day)] for day in DAYS}
    parts["planes"] = [PLANES]
    folder = tmp_path_factory.mktemp("together")
    how = Split(kind="csv", by="content", seed=0, num_files=(1, 1, 1), group_files=1_000, num_batches=1, num_workers=1)
    return {by: outcome(folder / by, dataclasses.replace(how, by=by), parts) for by in ("content", "label")}


@pytest.mark.slow
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(how=SPLITS)
@example(Split(kind="csv", by="label", seed=1, num_files=(5, 3, 2), group_files=2, num_batches=2, num_workers=1))
@example(Split(kind="jsonl", by="content", seed=2, num_files=(3, 2, 1), group_files=1, num_batches=1, num_workers=3))
@example(Split(kind="parquet", by="label", seed=3, num_files=(4, 1, 2), group_files=3, num_batches=3, num_workers=2))
def test_statistics_features_and_shards_are_the_same_when_rows_are_split_in_any_way(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, together: dict[str, Any], how: Split
) -> None:
    draw = random.Random(how.seed)
    parts = {f"trips/{day}": split(rows_of(day), draw, how.num_files[0]) for day in DAYS}
    parts |= {f"weather/{day}": split(weather_of(day), draw, how.num_files[1]) for day in DAYS}
    parts["planes"] = split(PLANES, draw, how.num_files[2])
    monkeypatch.setattr(groups, "GROUP_FILES", how.group_files)
    monkeypatch.setattr(groups, "BATCH_BYTES", 1)
    monkeypatch.setattr(ingest, "READER_BYTES", 1)
    monkeypatch.setattr(ingest, "num_cores", lambda: how.num_workers)
    assert outcome(tmp_path_factory.mktemp("split"), how, parts) == together[how.by]


def test_the_rows_of_these_tests_hold_what_is_hard() -> None:
    rows = [row for day in DAYS for row in rows_of(day)]
    assert any(row["left_at"] is None for row in rows)
    assert any(row["left_at"] == 2**53 + 1 for row in rows)
    assert any(row["hour_utc"].year < 1970 for row in rows)
