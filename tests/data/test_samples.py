"""One day's rows to its shards: the same files whatever the pieces, the tables and the memory were."""

from __future__ import annotations

import copy
import datetime
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlewheel.data.order import MASK, sample_hash
from paddlewheel.data.samples import day as samples_room
from paddlewheel.data.samples.day import DaySamples, Table, make_day, read_right
from paddlewheel.errors import DataError

from .conftest import TREE, make_recipe

DAY = "2013-11-01"
NOON = datetime.datetime(2013, 11, 1, 12, tzinfo=datetime.UTC)
ROWS = {
    "date": pl.Date,
    "number": pl.Int64,
    "hour_utc": pl.Datetime("us", "UTC"),
    "minute": pl.Int64,
    "origin": pl.String,
    "plane": pl.String,
    "miles": pl.Float64,
    "left_at": pl.Int64,
    "delay": pl.Float64,
}
WEATHER = {"station": pl.String, "at": pl.Datetime("us", "UTC"), "wind": pl.Float64, "verdict": pl.String}


def trips(count: int, *, seed: int = 0) -> pl.DataFrame:
    draw = random.Random(seed)
    rows = [
        (
            datetime.date(2013, 11, 1),
            2**53 + number,
            NOON + datetime.timedelta(hours=draw.randrange(-5, 5)),
            draw.randrange(60),
            draw.choice(["EWR", "JFK"]),
            draw.choice([None, "N1", "N2"]),
            draw.choice([None, 1.5, 2.5]),
            7,
            draw.choice([None, 5.0, 25.0, 35.0]),
        )
        for number in range(count)
    ]
    return pl.DataFrame(rows, schema=ROWS, orient="row")


def tables_of(
    folder: Path, rows: Sequence[pl.DataFrame], *, names: Sequence[Sequence[tuple[str, int]]] = ()
) -> dict[str, list[Table]]:
    """Row files as ingest leaves them, and the same weather and planes for all."""
    weather = pl.DataFrame([("EWR", NOON, 7.0, "x"), ("JFK", NOON, 9.0, "y")], schema=WEATHER, orient="row")
    planes = pl.DataFrame({"tail": ["N1"], "seats": [100]})
    sources = {"trips": list(rows), "weather": [weather], "planes": [planes]}
    found = {}
    for name, frames in sources.items():
        found[name] = []
        for index, frame in enumerate(frames):
            path = folder / f"{name}-{index}.parquet"
            frame.write_parquet(path, row_group_size=7)
            files = tuple(names[index]) if names and name == "trips" else ()
            found[name].append(Table(path=path, rows=len(frame), files=files))
    return found


def made(folder: Path, tables: dict[str, list[Table]], **more: Any) -> DaySamples:
    memory = {"memory_bytes": more.pop("memory_bytes")} if "memory_bytes" in more else {}
    target = folder / "made"
    target.mkdir(exist_ok=True)
    recipe = make_recipe(**more)
    rights = [read_right(tables[join.source.name], join) for join in recipe.data.joins]
    return make_day(recipe, DAY, tables["trips"], rights, target, **memory)


def digests(day: DaySamples) -> list[str]:
    return [hashlib.sha256(shard.path.read_bytes()).hexdigest() for shard in day.shards]


@pytest.mark.parametrize("by", ["content", "label"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_shards_have_the_same_bytes_when_rows_lie_in_any_tables_and_order_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, data: st.DataObject
) -> None:
    monkeypatch.setattr(samples_room, "MOST_PIECE_ROWS", 1 << 18)
    recipe = {"data__sharding__by": by, "data__sharding__shards_per_day": 3}
    whole = trips(60)
    (tmp_path / "whole").mkdir(exist_ok=True)
    expected = made(tmp_path / "whole", tables_of(tmp_path / "whole", [whole]), **recipe)
    order = data.draw(st.permutations(range(60)))
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, 60), max_size=4))), 60]
    parts = [whole[order[start:end]] for start, end in itertools.pairwise(cuts)]
    monkeypatch.setattr(samples_room, "MOST_PIECE_ROWS", data.draw(st.sampled_from([1, 13, 1 << 18])))
    monkeypatch.setattr(samples_room, "LEAST_PIECE_ROWS", 1)
    memory_bytes = data.draw(st.sampled_from([64, 1_000, 1 << 27]))
    found = made(tmp_path, tables_of(tmp_path, parts), memory_bytes=memory_bytes, **recipe)
    assert digests(found) == digests(expected)
    assert (found.without_label, found.join_misses) == (expected.without_label, expected.join_misses)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "shard-000.parquet", "shard-001.parquet", "shard-002.parquet",
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["content", "label", "path", "size"])
def test_each_sample_is_in_one_shard_when_counted_and_hashed(tmp_path: Path, by: str) -> None:
    whole = trips(500)
    names = [[("a.csv", 100), ("b.csv", 0), ("c.csv", 50)], [("d.csv", 350)]]
    tables = tables_of(tmp_path, [whole[:150], whole[150:]], names=names)
    day = made(tmp_path, tables, data__sharding__by=by, data__sharding__shards_per_day=4)
    ids = [pl.read_parquet(shard.path)["sample_id"].to_list() for shard in day.shards]
    expected = [
        xxhash.xxh3_64_intdigest(f"{row['date']}\x1f{row['number']}".encode())
        for row in whole.iter_rows(named=True)
        if row["delay"] is not None
    ]
    assert sorted(itertools.chain(*ids)) == sorted(expected)
    assert all(one == sorted(one) for one in ids)
    assert [shard.rows for shard in day.shards] == [len(one) for one in ids]
    assert day.sample_hash == sample_hash(np.array(expected, np.uint64))
    assert sum(shard.sample_hash for shard in day.shards) & MASK == day.sample_hash
    assert day.without_label == 500 - len(expected)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("path", [{"a.csv", "d.csv"}, {"c.csv"}]),  # dealt in turn; b.csv holds nothing
        ("size", [{"d.csv"}, {"a.csv", "c.csv"}]),  # 350 rows against 100 and 50
    ],
)
def test_rows_of_one_file_stay_together_when_sharded_by_files(
    tmp_path: Path, by: str, expected: list[set[str]]
) -> None:
    whole = trips(500).with_columns(delay=pl.lit(1.0))
    names = [[("a.csv", 100), ("b.csv", 0), ("c.csv", 50)], [("d.csv", 350)]]
    tables = tables_of(tmp_path, [whole[:150], whole[150:]], names=names)
    day = made(tmp_path, tables, data__sharding__by=by, data__sharding__shards_per_day=2)
    for shard, files in zip(day.shards, expected, strict=True):
        numbers = pl.read_parquet(shard.path)["number"] - 2**53
        found = {"a.csv" if number < 100 else "c.csv" if number < 150 else "d.csv" for number in numbers}
        assert found == files


def test_row_numbers_run_on_over_tables_when_the_rows_have_no_key(tmp_path: Path) -> None:
    whole = trips(10).with_columns(delay=pl.Series([1.0] * 9 + [None]))
    day = made(tmp_path, tables_of(tmp_path, [whole[:4], whole[4:4], whole[4:]]), data__rows__key=[])
    found = pl.read_parquet(day.shards[0].path).sort("number")["sample_id"].to_list()
    assert found == [xxhash.xxh3_64_intdigest(f"2013-11-01\x1f{row}".encode()) for row in range(9)]


def test_data_error_names_the_day_when_two_tables_hold_one_key(tmp_path: Path) -> None:
    whole = trips(10).with_columns(delay=pl.lit(1.0))
    with pytest.raises(DataError, match=r"1 sample ids stand for more than one row of 2013-11-01, 0x.* add a column"):
        made(tmp_path, tables_of(tmp_path, [whole, whole[3:4]]))


def test_data_error_when_a_table_lost_rows(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, [trips(10)])
    tables["trips"] = [Table(path=tables["trips"][0].path, rows=11)]
    with pytest.raises(DataError, match=r"trips-0.parquet holds 10 rows, its table's manifest says 11"):
        made(tmp_path, tables)


def test_data_error_names_the_day_when_a_shard_lost_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that loses a row of a hundred stands for a fault that nobody knows of yet."""
    write = samples_room.ShardFile.add
    monkeypatch.setattr(samples_room.ShardFile, "add", lambda file, samples: write(file, samples[:-1]))
    with pytest.raises(DataError, match=r"the shards of 2013-11-01 do not hold each sample once: 8 samples of hash"):
        made(tmp_path, tables_of(tmp_path, [trips(8).with_columns(delay=pl.lit(1.0))]))


def test_bytes_pass_unharmed_when_a_column_is_binary(tmp_path: Path) -> None:
    columns = [
        {"name": "number", "type": "int64"},
        {"name": "image", "type": "binary"},
        {"name": "delay", "type": "float64", "known": "after"},
    ]
    images = [b"\x00\xff\xd8", b"", None, bytes(range(256)) * 5_000]
    rows = pl.DataFrame(
        {"number": range(4), "image": images, "delay": [1.0] * 4}, schema_overrides={"image": pl.Binary}
    )
    tables = tables_of(tmp_path, [rows[:1], rows[1:]])
    recipe = {"data__rows__columns": columns, "data__rows__key": ["number"], "data__joins": [], "features": [
        {"name": "number", "kind": "standard", "columns": ["number"]}
    ]}  # fmt: skip
    day = made(tmp_path, tables, memory_bytes=1_000, **recipe)
    found = pl.read_parquet(day.shards[0].path).sort("number")
    assert found["image"].dtype == pl.Binary
    assert found["image"].to_list() == images


def test_shards_are_empty_files_with_all_columns_when_a_day_has_no_row(tmp_path: Path) -> None:
    day = made(tmp_path, {**tables_of(tmp_path, []), "trips": []}, data__sharding__shards_per_day=2)
    assert [shard.rows for shard in day.shards] == [0, 0]
    frame = pl.read_parquet(day.shards[1].path)
    assert (frame.height, frame.columns) == (0, list(day.columns))
    assert frame.schema["weather_at"] == pl.Datetime("us", "UTC")


GROWTH = """
import datetime, json, resource, sys
from pathlib import Path
import polars as pl
import pyarrow.parquet as pq
from paddlewheel.data.samples.day import Table, make_day
from paddlewheel.recipe_check import load_recipe

folder, tree, rows = Path(sys.argv[1]), json.loads(sys.argv[2]), 400_000
writer = None
for start in range(0, rows, 20_000):
    numbers = pl.Series("number", range(start, start + 20_000))
    frame = pl.DataFrame([numbers]).with_columns(
        text=pl.col("number").cast(pl.String) + "x" * 1_000, delay=pl.lit(1.0)
    )
    table = frame.to_arrow()
    writer = writer or pq.ParquetWriter(folder / "rows.parquet", table.schema, compression="zstd")
    writer.write_table(table)
writer.close()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made = make_day(
    load_recipe(tree), "2013-11-01", [Table(path=folder / "rows.parquet", rows=rows)], [], folder, memory_bytes=32 << 20
)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"rows": sum(one.rows for one in made.shards), "growth_mib": (after - before) >> 10}))
"""


@pytest.mark.slow
def test_memory_is_bounded_when_a_day_is_larger(tmp_path: Path) -> None:
    tree: dict[str, Any] = copy.deepcopy(TREE)
    tree["data"]["joins"] = []
    tree["data"]["rows"] |= {
        "key": ["number"],
        "columns": [
            {"name": "number", "type": "int64"},
            {"name": "text", "type": "string"},
            {"name": "delay", "type": "float64", "known": "after"},
        ],
    }
    tree["features"] = [{"name": "number", "kind": "standard", "columns": ["number"]}]
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path), json.dumps(tree)],
        env={**os.environ, "PYTHONPATH": "tasks"},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)
    assert found["rows"] == 400_000
    assert found["growth_mib"] < 300, done.stdout  # the samples are about 400 MiB, and a sort needs them twice
