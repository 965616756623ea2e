"""Landing files to tables: done once, verified again, never half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import xxhash

from paddlewheel.data.ingest import ingest, plan_ingest
from paddlewheel.data.plan import plan
from paddlewheel.data.tables.group import GroupJob, GroupResult
from paddlewheel.data.tables.isolate import Readers
from paddlewheel.errors import DataError, RecipeError, StorageError
from paddlewheel.manifest import Manifest, verify
from paddlewheel.recipe import dump
from paddlewheel.storage.local import LocalStore

from .conftest import TRIPS_HEADER, World, make_recipe, trip

DAYS = ["2013-10-28", "2013-10-29", "2013-10-30", "2013-10-31"]


def run(world: World, partition: str = DAYS[-1]) -> str:
    return ingest(make_recipe(), plan(make_recipe(), partition, store=world.store), 0, store=world.store)


def test_bad_rows_stand_in_the_refusal_file_when_a_file_breaks_the_schema(world: World) -> None:
    world.write_days(DAYS[0], 4)
    bad = trip(DAYS[1], 2).replace(",JFK,", ",LAX,").replace(",EWR,", ",LAX,")
    world.write_trips(DAYS[1], [trip(DAYS[1], 1), bad, trip(DAYS[1], 1), trip(DAYS[1], 3).replace(",300,", ",far,")])
    manifest = world.manifest(run(world))
    (refused,) = [file for file in manifest.files if file.facts["part"] == "refused"]
    entries = [json.loads(line) for line in world.store.read(refused.key).splitlines()]
    assert [(entry["file"], entry["line"], entry["reasons"]) for entry in entries] == [
        ("trips/2013-10-29.csv.gz", 3, [{"column": "origin", "value": "LAX", "reason": "not one of EWR, JFK"}]),
        (
            "trips/2013-10-29.csv.gz",
            4,
            [{"column": "date, number", "value": "2013-10-29, 1", "reason": "the same key as line 2"}],
        ),
        (
            "trips/2013-10-29.csv.gz",
            5,
            [{"column": "miles", "value": "far", "reason": "not a finite number (float64)"}],
        ),
    ]
    assert manifest.facts["rows"] == {"planes": 2, "trips": 19, "weather": 32}
    assert manifest.facts["refused"] == {"planes": 0, "trips": 3, "weather": 0}
    assert manifest.facts["reasons"]["trips"] == {
        "date, number: duplicate key": 1,
        "miles: not a finite number (float64)": 1,
        "origin: not one of EWR, JFK": 1,
    }


def test_types_are_the_declared_ones_when_a_column_is_all_null(world: World) -> None:
    world.write_days(DAYS[0], 4)
    world.write_trips(DAYS[0], [trip(DAYS[0], 1).replace(",1007,", ",,")])
    (rows,) = [
        file
        for file in world.manifest(run(world)).files
        if (file.facts["source"], file.facts["partition"], file.facts["part"]) == ("trips", DAYS[0], "rows")
    ]
    assert dict(pl.read_parquet(world.store.local_path(rows.key)).schema) == {
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


def test_nothing_is_written_when_run_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write_days(DAYS[0], 4)
    first, before = run(world), world.tree()
    caplog.clear()
    with caplog.at_level("INFO"):
        assert run(world) == first
    assert world.tree() == before
    assert "ingest: already done, 18 files verified, skipped" in caplog.text


def test_only_the_new_day_is_read_when_tomorrow_comes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write_days(DAYS[0], 5)
    run(world)
    with caplog.at_level("INFO"):
        run(world, "2013-11-01")
    # trips of 4 days, weather of these and of the day before, planes; new are trips and weather of 2013-11-01
    assert "ingest: 2 files read, 8 found ingested with digests right" in caplog.text


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\0"), Path.unlink])
def test_storage_error_names_the_file_and_the_way_out_when_a_table_is_damaged(world: World, damage: object) -> None:
    world.write_days(DAYS[0], 4)
    first = world.manifest(run(world))
    file = world.store.local_path(first.files[2].key)
    damage(file)  # type: ignore[operator]
    with pytest.raises(StorageError, match=rf"{file.name} (has the digest|is missing).*remove (file://\S+) so that"):
        run(world)
    for entry in file.parent.iterdir():
        entry.unlink()
    again = world.manifest(run(world))
    assert [entry.digest for entry in again.files] == [entry.digest for entry in first.files]
    verify(world.store, again)


def test_data_error_when_a_file_was_changed_since_the_plan(world: World) -> None:
    world.write_days(DAYS[0], 4)
    planned = plan(make_recipe(), DAYS[3], store=world.store)
    world.write_trips(DAYS[2], [trip(DAYS[2], 9)])
    with pytest.raises(
        DataError, match=r"trips/2013-10-30\.csv\.gz: changed since the run was planned.*plan step again"
    ):
        ingest(make_recipe(), planned, 0, store=world.store)
    assert [key for key in world.tree() if f"trips/{DAYS[2]}" in key] == []


def test_unreadable_files_are_recorded_and_the_others_ingested_when_several_cannot_be_read(world: World) -> None:
    world.write_days(DAYS[0], 4)
    (path := world.landing / f"trips/{DAYS[1]}.csv.gz").write_bytes(path.read_bytes()[:-20])
    world.write(f"trips/{DAYS[2]}.csv.gz", TRIPS_HEADER.replace(",delay", "") + "\n")
    (world.landing / f"weather/{DAYS[2]}.csv.gz").write_bytes(b"")
    manifest = world.manifest(run(world))
    tables = [world.manifest(entry.key) for entry in manifest.inputs[1:]]
    found = {one["path"]: one["reason"] for table in tables for one in table.facts["unreadable"]}
    assert list(found) == [f"trips/{DAYS[1]}.csv.gz", f"trips/{DAYS[2]}.csv.gz", f"weather/{DAYS[2]}.csv.gz"]
    told = ("cut off after", "the column 'delay' is missing", "the file is empty (0 bytes)")
    assert [part in reason for part, reason in zip(told, found.values(), strict=True)] == [True, True, True]
    assert str(world.store.folder) not in json.dumps(list(found.values()))
    assert manifest.facts["rows"]["trips"] == 2 * 6


def table_of(world: World, uri: str, path: str) -> Manifest:
    """The table that holds this landing file."""
    tables = [world.manifest(entry.key) for entry in world.manifest(uri).inputs[1:]]
    return next(
        table for table in tables if path in [one["path"] for one in table.facts["files"] + table.facts["unreadable"]]
    )


def test_data_error_when_a_file_is_gone_since_the_plan(world: World) -> None:
    world.write_days(DAYS[0], 4)
    planned = plan(make_recipe(), DAYS[3], store=world.store)
    (world.landing / "planes.csv.gz").unlink()
    with pytest.raises(DataError, match=r"planes\.csv\.gz: gone since the run was planned; run the plan step again"):
        ingest(make_recipe(), planned, 0, store=world.store)


def test_every_changed_file_is_told_when_several_were_changed_since_the_plan(world: World) -> None:
    days = world.write_days(DAYS[0], 4)
    planned = plan(make_recipe(), DAYS[3], store=world.store)
    for day in days[:2]:
        world.write_trips(day, [trip(day, 9)])
    with pytest.raises(DataError) as error:
        ingest(make_recipe(), planned, 0, store=world.store)
    assert [line.partition(": changed since")[0][-24:] for line in str(error.value).splitlines()] == [
        f"trips/{day}.csv.gz".rjust(24, "/")[-24:] for day in days[:2]
    ]


def test_data_error_when_a_file_is_written_while_it_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write_days(DAYS[0], 4)
    planned = plan(make_recipe(), DAYS[3], store=world.store)
    read = Readers.read

    def write_after(readers: Readers, job: GroupJob, folder: Path) -> GroupResult:
        result = read(readers, job, folder)
        if job.files[0].name == f"trips/{DAYS[2]}.csv.gz":
            world.write_trips(DAYS[2], [trip(DAYS[2], 9)])
        return result

    monkeypatch.setattr(Readers, "read", write_after)
    with pytest.raises(DataError, match=rf"trips/{DAYS[2]}\.csv\.gz: changed since the run was planned"):
        ingest(make_recipe(), planned, 0, store=world.store)


def test_nothing_is_read_when_the_listing_is_as_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write_days(DAYS[0], 4)
    first = world.manifest(run(world))
    monkeypatch.setattr(Readers, "read", None)
    monkeypatch.setattr("paddlewheel.data.tables.parts.digest_file", None)
    uri = ingest(make_recipe(), plan(make_recipe(training__epochs=9), DAYS[3], store=world.store), 0, store=world.store)
    assert world.manifest(uri).files == first.files


def test_the_same_table_is_found_when_a_file_was_only_touched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    days = world.write_days(DAYS[0], 4)
    first = world.manifest(run(world))
    for day in days:
        (world.landing / f"trips/{day}.csv.gz").touch()
    monkeypatch.setattr(Readers, "read", None)
    assert world.manifest(run(world)).files == first.files


def test_tables_have_the_same_keys_when_the_landing_folder_lies_elsewhere(world: World, tmp_path: Path) -> None:
    world.write_days(DAYS[0], 4)
    first = world.manifest(run(world))
    (other := World(store=LocalStore(tmp_path / "other"))).store.folder.mkdir()
    world.landing.rename(tmp_path / "elsewhere")
    recipe = make_recipe(data__landing=str(tmp_path / "elsewhere"))
    second = other.manifest(ingest(recipe, plan(recipe, DAYS[-1], store=other.store), 0, store=other.store))
    assert second.files == first.files
    assert [one.digest for one in second.inputs[1:]] == [one.digest for one in first.inputs[1:]]


def test_tables_are_kept_when_what_decides_over_no_row_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write_days(DAYS[0], 4)
    first = world.manifest(run(world))
    monkeypatch.setattr(Readers, "read", None)
    recipe = make_recipe(
        data__rows__path="trips/{partition}*", data__rows__max_refused_fraction=1, data__rows__columns__6__unit="miles",
        data__rows__columns__7__known="before", data__rows__max_unreadable_fraction=1,
    )  # fmt: skip
    uri = ingest(recipe, plan(recipe, DAYS[-1], store=world.store), 0, store=world.store)
    assert world.manifest(uri).files == first.files


def test_files_of_a_day_are_one_table_with_the_counts_of_each(world: World) -> None:
    days = world.write_days(DAYS[0], 4)
    for day in days:
        for name, numbers in (("a", (1, 2)), ("b", (3,))):
            rows = [
                TRIPS_HEADER,
                *(trip(day, n) for n in numbers),
                trip(day, 8).replace(",JFK,", ",LAX,").replace(",EWR,", ",LAX,"),
            ]
            world.write(f"trips/{day}/{name}.csv.gz", "\n".join(rows) + "\n")
    recipe = make_recipe(data__rows__path="trips/{partition}/*.csv.gz")
    uri = ingest(recipe, plan(recipe, DAYS[-1], store=world.store), 0, store=world.store)
    table = table_of(world, uri, f"trips/{days[0]}/a.csv.gz")
    assert [(one["path"], one["rows"], one["refused"]) for one in table.facts["files"]] == [
        (f"trips/{days[0]}/a.csv.gz", 2, 1),
        (f"trips/{days[0]}/b.csv.gz", 1, 1),
    ]
    assert (table.facts["rows"], table.facts["refused"], table.facts["partition"]) == (3, 2, days[0])
    listed = [
        file
        for file in world.manifest(uri).files
        if file.facts["source"] == "trips" and file.facts["partition"] == days[0]
    ]
    assert [(file.facts["part"], file.rows) for file in listed] == [
        ("rows", 3),
        ("refused", None),
        ("statistics", None),
    ]
    assert {file.facts["table"] for file in listed} == {table.key.rpartition("/")[2]}
    assert listed[0].facts["files"] == 2


def test_a_crashing_file_costs_its_rows_alone_when_ingested(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    days = world.write_days(DAYS[0], 4)
    (log := world.store.folder / "log").mkdir()
    for day in days:
        for name, content in (("a", "1\n2"), ("b", "segv" if day == days[1] else "3")):
            (path := world.landing / f"own/{day}/{name}").parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    label = {"name": "y", "type": "int64", "required": False, "nullable": True, "known": "after"}
    own = {
        "data.joins": [],
        "features": [{"name": "id", "kind": "hash", "columns": ["id"], "buckets": 10}],
        "data.label.column": "y",
        "data.rows": {
            "name": "own",
            "path": "own/{partition}/*",
            "format": "fatal_readers:read",
            "params": {"log": str(log)},
            "columns": [{"name": "id", "type": "int64"}, label],
        },
    }
    recipe = make_recipe(**own)
    manifest = world.manifest(ingest(recipe, plan(recipe, DAYS[-1], store=world.store), 0, store=world.store))
    assert manifest.facts["rows"] == {"own": 3 * 3 + 2}
    table = table_of(world, world.store.uri(f"{manifest.key}/manifest.json"), f"own/{days[1]}/b")
    assert [(one["path"], one["reason"]) for one in table.facts["unreadable"]] == [
        (f"own/{days[1]}/b", "its reader crashed in native code (SIGSEGV)")
    ]
    assert table.facts["unreadable"][0]["digest"] == xxhash.xxh3_128_hexdigest(b"segv")


def test_storage_error_when_a_file_may_not_be_read(world: World) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    world.write_days(DAYS[0], 4)
    (world.landing / "planes.csv.gz").chmod(0)
    with pytest.raises(StorageError, match=r"cannot read .*planes\.csv\.gz: Permission denied"):
        run(world)


def test_batches_together_are_the_window_when_there_are_several(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write_days(DAYS[0], 4)
    planned = plan(make_recipe(), DAYS[3], store=world.store)
    whole = world.manifest(ingest(make_recipe(), planned, 0, store=world.store))
    monkeypatch.setattr("paddlewheel.data.landing.groups.BATCH_BYTES", 1 << 20)
    batches = plan_ingest(make_recipe(data__max_batches=3), planned, store=world.store)
    assert batches == [0, 1, 2]
    recipe = make_recipe(data__max_batches=3)
    parts = [world.manifest(ingest(recipe, planned, batch, store=world.store)) for batch in batches]
    assert sorted(file.key for part in parts for file in part.files) == sorted(file.key for file in whole.files)
    assert [(part.facts["batch"], part.facts["batches"]) for part in parts] == [(0, 3), (1, 3), (2, 3)]
    with pytest.raises(RecipeError, match=r"there is no batch 3 of .*: it has 3, from 0 on"):
        ingest(recipe, planned, 3, store=world.store)


def test_extra_columns_are_told_once_when_files_have_them(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write_days(DAYS[0], 4)
    world.write("planes.csv.gz", "tail,seats,colour\nN0,1,red\n")
    run(world)
    told = "ingest: columns of planes that the recipe does not name are ignored: colour"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [told]


INGEST = """
import json, sys
from pathlib import Path
from paddlewheel.data.ingest import ingest
from paddlewheel.data.plan import plan
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore
root, recipe, partition = sys.argv[1:]
store, loaded = LocalStore(Path(root)), load_recipe(json.loads(Path(recipe).read_text()))
print(ingest(loaded, plan(loaded, partition, store=store), 0, store=store))
"""


def test_digests_are_the_same_when_the_process_was_killed_in_the_middle(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    World(store=LocalStore(tmp_path)).write_days("2013-09-01", 61, trips=300)
    recipe = make_recipe(data__landing=str(landing), data__window__train_days=60)
    (recipe_path := tmp_path / "recipe.json").write_text(json.dumps(dump(recipe)))
    killed, whole = tmp_path / "killed", tmp_path / "whole"

    def command(root: Path) -> list[str]:
        return [sys.executable, "-c", INGEST, str(root), str(recipe_path), "2013-10-31"]

    process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(killed.glob("datasets/mini.trips/*/manifest.json"))) < 5:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(list(killed.glob("datasets/mini.trips/*/manifest.json"))) < 61
    uris = [
        subprocess.run(command(root), check=True, capture_output=True, text=True).stdout.strip()
        for root in (killed, whole)
    ]
    manifests = [World(store=LocalStore(root)).manifest(uri) for root, uri in zip((killed, whole), uris, strict=True)]
    assert [file.digest for file in manifests[0].files] == [file.digest for file in manifests[1].files]
    assert manifests[0].key == manifests[1].key
    assert len(manifests[0].files) == 2 * (61 + 61 + 1)  # rows and statistics
