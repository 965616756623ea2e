"""Rows to samples: label, joins, ids, one dataset a day."""

from __future__ import annotations

import datetime

import polars as pl
import pytest
import xxhash

from paddlewheel.errors import DataError, StorageError
from paddlewheel.manifest import Manifest

from .conftest import TREE, World, make_recipe, trip

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


def test_recipe_of_these_tests_has_columns_known_after() -> None:
    sources = [TREE["data"]["rows"], *(join["source"] for join in TREE["data"]["joins"])]
    after = [column["name"] for one in sources for column in one["columns"] if column.get("known") == "after"]
    assert after == ["left_at", "delay", "verdict"]
