"""Rows to samples: label, joins, ids, one dataset a day."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
import xxhash

from paddlewheel.data.ingest import ingest, plan_ingest
from paddlewheel.data.landing import groups
from paddlewheel.data.order import sample_hash
from paddlewheel.data.plan import plan
from paddlewheel.data.samples import day as samples
from paddlewheel.data.shard import shard
from paddlewheel.data.validate import validate
from paddlewheel.errors import DataError, StorageError
from paddlewheel.manifest import Manifest
from paddlewheel.storage.local import LocalStore

from .conftest import TREE, TRIPS_HEADER, World, make_recipe, trip

DAYS = ["2013-10-28", "2013-10-29", "2013-10-30", "2013-10-31", "2013-11-01"]


def samples_of(world: World, shards: Manifest) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(world.store.local_path(file.key)) for file in shards.files])


def test_samples_hold_known_columns_label_and_id_when_sharded(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=6)
    world.write_trips(
        DAYS[3], [trip(DAYS[3], 1, delay="15"), trip(DAYS[3], 2, delay="15.5"), trip(DAYS[3], 3, delay="")]
    )
    shards = world.manifest(world.chain(make_recipe(), DAYS[3])["shard"])
    frame = samples_of(world, shards)
    assert frame.columns == [
        "sample_id", "label", "date", "number", "hour_utc", "minute", "origin", "plane", "miles",
        "weather_station", "weather_at", "weather_wind", "planes_tail", "planes_seats",
    ]  # fmt: skip
    assert (frame["sample_id"].dtype, frame["label"].dtype) == (pl.UInt64, pl.Float32)
    last = frame.filter(pl.col("date") == datetime.date(2013, 10, 31)).sort("number")
    assert last.select("number", "label", "weather_wind", "planes_seats").rows() == [
        (1, 0.0, 6.0, 200),  # 11:01 at JFK: the observation of 6 o'clock; N1
        (2, 1.0, 12.0, None),  # 12:02: that of 12 o'clock; N2 is not in planes
    ]
    assert last["sample_id"].to_list() == [
        xxhash.xxh3_64_intdigest(b"2013-10-31\x1f1"),
        xxhash.xxh3_64_intdigest(b"2013-10-31\x1f2"),
    ]
    assert shards.facts["without_label"] == 1
    assert shards.facts["join_misses"] == {"planes": 7, "weather": 0}
    assert [(file.facts["role"], file.facts["day"], file.rows) for file in shards.files] == [
        ("train", DAYS[0], 6),
        ("train", DAYS[1], 6),
        ("train", DAYS[2], 6),
        ("holdout", DAYS[3], 2),
    ]


def test_no_column_known_after_leaves_when_every_source_has_some(world: World) -> None:
    world.write_days(DAYS[0], 4)
    made = world.chain(make_recipe(), DAYS[3])
    for step in ("shard", "features"):
        assert not {"delay", "left_at", "weather_verdict"} & set(world.manifest(made[step]).facts["columns"])
    for file in world.manifest(made["shard"]).files:
        names = pl.read_parquet_schema(world.store.local_path(file.key))
        assert not {"delay", "left_at", "weather_verdict"} & set(names)


def test_rows_lie_by_their_id_when_a_day_has_several_shards(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=40)
    shards = world.manifest(world.chain(make_recipe(data__sharding__shards_per_day=3), DAYS[3])["shard"])
    assert len(shards.files) == 12
    ids = []
    for file in shards.files:
        found = pl.read_parquet(world.store.local_path(file.key))["sample_id"].to_list()
        assert found == sorted(found)
        assert {number % 3 for number in found} <= {file.facts["shard"]}
        ids += found
    assert len(ids) == len(set(ids)) == 160


def test_yesterdays_days_are_used_again_when_tomorrow_comes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write_days(DAYS[0], 5)
    today = world.manifest(world.chain(make_recipe(), DAYS[3])["shard"])
    before = world.tree("datasets/mini.samples")
    with caplog.at_level("INFO"):
        tomorrow = world.manifest(world.chain(make_recipe(), DAYS[4])["shard"])
    assert "shard: 1 days made, 3 found with digests right" in caplog.text
    after = world.tree("datasets/mini.samples")
    assert {key: after[key] for key in before} == before
    assert len(after) == len(before) + 2  # a shard and a manifest
    assert [file.key for file in tomorrow.files[:3]] == [file.key for file in today.files[1:]]
    assert [file.facts["role"] for file in tomorrow.files] == ["train", "train", "train", "holdout"]


def test_no_step_writes_when_the_chain_runs_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write_days(DAYS[0], 4)
    made, before = world.chain(make_recipe(), DAYS[3]), world.tree()
    caplog.clear()
    with caplog.at_level("INFO"):
        assert world.chain(make_recipe(), DAYS[3]) == made
    assert world.tree() == before
    skipped = [record.message.partition(":")[0] for record in caplog.records if "already done" in record.message]
    assert skipped == ["plan", "ingest", "validated", "shards", "features", *["packed"] * 4]


def test_storage_error_names_the_day_when_its_samples_are_damaged(world: World) -> None:
    world.write_days(DAYS[0], 4)
    shards = world.manifest(world.chain(make_recipe(), DAYS[3])["shard"])
    path = world.store.local_path(shards.files[1].key)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StorageError, match=rf"{path.name} has the digest.*remove file://.*{path.parent.name} so that"):
        world.chain(make_recipe(), DAYS[3])
    for entry in path.parent.iterdir():
        entry.unlink()
    assert world.manifest(world.chain(make_recipe(), DAYS[3])["shard"]) == shards


def test_data_error_when_the_holdout_has_no_outcome_yet(world: World) -> None:
    world.write_days(DAYS[0], 4)
    world.write_trips(DAYS[3], [trip(DAYS[3], n, delay="") for n in range(1, 4)])
    with pytest.raises(
        DataError, match=r"no row of the holdout days .* has a label: delay is empty in all of them; wait"
    ):
        world.chain(make_recipe(), DAYS[3])


def test_data_error_when_no_row_is_left_to_train_on(world: World) -> None:
    world.write_days(DAYS[0], 4)
    for day in DAYS[:3]:
        world.write_trips(day, [])
    with pytest.raises(DataError, match=r"^trips: no row is left of the train days .*: their files are empty or could"):
        world.chain(make_recipe(), DAYS[3])


def test_training_goes_on_with_a_warning_when_one_day_has_no_outcome(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write_days(DAYS[0], 4)
    world.write_trips(DAYS[1], [trip(DAYS[1], 1, delay="")])
    made = world.chain(make_recipe(), DAYS[3])
    assert "shard: no row of trips has a label on 2013-10-29" in caplog.text
    assert sum(world.manifest(uri).rows for uri in made["packed"]) == 18


def test_ids_are_of_day_and_row_when_the_rows_have_no_key(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=2)
    world.write_trips(DAYS[3], [trip(DAYS[3], 1)] * 2)
    shards = world.manifest(world.chain(make_recipe(data__rows__key=[]), DAYS[3])["shard"])
    last = pl.read_parquet(world.store.local_path(shards.files[3].key))
    assert sorted(last["sample_id"]) == sorted(
        [xxhash.xxh3_64_intdigest(b"2013-10-31\x1f0"), xxhash.xxh3_64_intdigest(b"2013-10-31\x1f1")]
    )


def parts(day: str, sizes: list[int]) -> list[list[str]]:
    """Rows of a day as files of these numbers of rows."""
    numbers = iter(range(1, sum(sizes) + 1))
    return [[trip(day, next(numbers)) for _ in range(size)] for size in sizes]


def write_parts(world: World, day: str, sizes: list[int]) -> None:
    (world.landing / f"trips/{day}.csv.gz").unlink(missing_ok=True)
    for index, rows in enumerate(parts(day, sizes)):
        world.write(f"trips/{day}/part-{index}.csv.gz", "\n".join([TRIPS_HEADER, *rows]) + "\n")


def in_files(**more: Any) -> dict[str, Any]:
    return {"data__rows__path": "trips/{partition}/*.csv.gz"} | more


def make_shards(world: World, partition: str = DAYS[3], **overrides: Any) -> Manifest:
    """The shards of a window; features are left alone."""
    recipe = make_recipe(**overrides)
    planned = plan(recipe, partition, store=world.store)
    batches = plan_ingest(recipe, planned, store=world.store)
    ingested = [ingest(recipe, planned, batch, store=world.store) for batch in batches]
    return world.manifest(shard(recipe, validate(recipe, ingested, store=world.store), store=world.store))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharded:
    """Shards of four days, three a day, and those of the next day's window."""

    by: str
    world: World
    shards: Manifest
    tomorrow: Manifest


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Five days of trips, each in files of 7, 1, 0 and 4 rows that make two tables."""
    world = World(store=LocalStore(tmp_path_factory.mktemp("landed")))
    for day in world.write_days(DAYS[0], 5):
        write_parts(world, day, [7, 1, 0, 4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "GROUP_FILES", 2)
        yield world


@pytest.fixture(scope="module", params=["content", "path", "size", "label", "own_shards:pick"])
def sharded(
    request: pytest.FixtureRequest, landed: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sharded]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_shards.py").write_text(
        "def pick(frame, num_shards):\n    return frame['file'].str.contains('part-0').to_numpy().astype(int) * 2\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        recipe = in_files(data__sharding__by=request.param, data__sharding__shards_per_day=3)
        today, tomorrow = (make_shards(landed, day, **recipe) for day in DAYS[3:])
        yield Sharded(by=request.param, world=landed, shards=today, tomorrow=tomorrow)
    sys.modules.pop("own_shards", None)


def test_each_row_is_in_one_shard_when_sharded_in_any_way(sharded: Sharded) -> None:
    """Proved by counts and by the hash of the ids, computed from the keys of the landing files."""
    files, facts = sharded.shards.files, sharded.shards.facts
    by_hand = [xxhash.xxh3_64_intdigest(f"{day}\x1f{number}".encode()) for day in DAYS[:4] for number in range(1, 13)]
    ids = [pl.read_parquet(sharded.world.store.local_path(file.key))["sample_id"].to_list() for file in files]
    assert sorted(itertools.chain(*ids)) == sorted(by_hand)
    assert [file.rows for file in files] == [len(one) for one in ids]
    assert facts["sample_hash"] == str(sample_hash(np.array(by_hand, np.uint64)))
    assert sum(int(file.facts["sample_hash"]) for file in files) % 2**64 == int(facts["sample_hash"])


def test_shards_have_the_rows_that_their_sharding_says_when_a_day_has_files(sharded: Sharded) -> None:
    rows = [[file.rows for file in sharded.shards.files if file.facts["day"] == day] for day in DAYS[:4]]
    expected = {"path": [7, 1, 4], "size": [7, 4, 1], "label": [4, 4, 4], "own_shards:pick": [5, 0, 7]}
    assert [sum(one) for one in rows] == [12] * 4
    if sharded.by in expected:
        assert rows == [expected[sharded.by]] * 4


def test_tomorrows_rows_move_none_of_todays_when_sharded_in_any_way(sharded: Sharded) -> None:
    today, tomorrow = (
        [(file.key, file.digest) for file in shards.files if file.facts["day"] in DAYS[1:4]]
        for shards in (sharded.shards, sharded.tomorrow)
    )
    assert len(today) == 9
    assert today == tomorrow


def test_another_name_of_a_file_moves_no_row_when_its_order_stays(world: World) -> None:
    """By path means by the order of the paths: what is told apart is files, not what they are called."""
    for day in world.write_days(DAYS[0], 4):
        write_parts(world, day, [3, 2, 1])
    recipe = in_files(data__sharding__by="path", data__sharding__shards_per_day=2)
    before = make_shards(world, **recipe)
    for day in DAYS[:4]:
        (world.landing / f"trips/{day}/part-1.csv.gz").rename(world.landing / f"trips/{day}/part-1b.csv.gz")
    after = make_shards(world, **recipe)
    assert [file.digest for file in after.files] == [file.digest for file in before.files]


def test_storage_error_when_a_shards_hash_is_not_that_of_its_rows(world: World) -> None:
    world.write_days(DAYS[0], 4)
    path = world.store.local_path(make_shards(world).files[1].key).parent / "manifest.json"
    tampered = json.loads(path.read_text())
    tampered["files"][0]["facts"]["sample_hash"] = "1235"
    tampered["facts"]["sample_hash"] = "1234"
    path.write_text(json.dumps(tampered))
    with pytest.raises(StorageError, match="the shards of 2013-10-29 have the sample hash 1235, their rows had 1234"):
        make_shards(world)


def test_data_error_names_the_days_when_an_id_stands_in_two_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash that meets itself every day stands for a collision of 64 bits, which nobody can provoke."""
    monkeypatch.setattr(samples, "hash_each", lambda texts: np.arange(7, 7 + len(texts), dtype=np.uint64))
    world.write_days(DAYS[0], 4)
    with pytest.raises(
        DataError, match="6 sample ids stand for more than one row of the window, 0x7 of 2013-10-28 and"
    ):
        make_shards(world)


def test_the_log_tells_of_empty_shards_when_a_day_has_fewer_files(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write_days(DAYS[0], 4)
    with caplog.at_level("WARNING"):
        make_shards(world, data__sharding__by="size", data__sharding__shards_per_day=3)
    assert "shard: 2 of 3 shards of 2013-10-31 are empty: it has fewer files; shard by content, or lower" in caplog.text


def test_row_numbers_run_over_a_days_tables_in_the_order_of_paths_when_rows_have_no_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUP_FILES", 1)
    for day in world.write_days(DAYS[0], 4):
        write_parts(world, day, [2, 1, 2])
    shards = make_shards(world, **in_files(data__rows__key=[]))
    last = pl.read_parquet(world.store.local_path(shards.files[3].key)).sort("number")
    assert last["sample_id"].to_list() == [
        xxhash.xxh3_64_intdigest(f"2013-10-31\x1f{row}".encode()) for row in range(5)
    ]


def test_recipe_of_these_tests_has_columns_known_after() -> None:
    sources = [TREE["data"]["rows"], *(join["source"] for join in TREE["data"]["joins"])]
    after = [column["name"] for one in sources for column in one["columns"] if column.get("known") == "after"]
    assert after == ["left_at", "delay", "verdict"]
