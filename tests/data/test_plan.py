"""The window of a partition and the landing files that it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlewheel.data.landing.groups import FileGroup, read_groups
from paddlewheel.data.plan import newest_day, plan, recipe_of
from paddlewheel.errors import DataError, RecipeError, StorageError
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore

from .conftest import TREE, World, make_recipe, trip


def groups_of(world: World, uri: str) -> dict[str, list[FileGroup]]:
    """The groups of a plan by source."""
    found: dict[str, list[FileGroup]] = {}
    for group in read_groups(world.store, world.manifest(uri)):
        found.setdefault(group.source, []).append(group)
    return found


def test_window_ends_with_the_partition_when_planned(world: World) -> None:
    world.write_days("2013-10-28", 6)
    uri = plan(make_recipe(data__window__holdout_days=2), "2013-11-02", store=world.store)
    facts = world.manifest(uri).facts
    assert facts["train"] == ["2013-10-29", "2013-10-30", "2013-10-31"]
    assert facts["holdout"] == ["2013-11-01", "2013-11-02"]
    assert facts["partition"] == "2013-11-02"
    groups = groups_of(world, uri)
    assert [[file.path for file in group.files] for group in groups["trips"]] == [
        [f"trips/{day}.csv.gz"] for day in ("2013-10-29", "2013-10-30", "2013-10-31", "2013-11-01", "2013-11-02")
    ]
    assert groups["planes"][0].partition is None


def test_weather_of_the_day_before_is_planned_when_it_is_there(world: World) -> None:
    days = world.write_days("2013-10-28", 5)
    weather = groups_of(world, plan(make_recipe(), days[4], store=world.store))["weather"]
    assert [group.partition for group in weather] == days
    (world.landing / f"weather/{days[0]}.csv.gz").unlink()
    weather = groups_of(world, plan(make_recipe(), days[4], store=world.store))["weather"]
    assert [group.partition for group in weather] == days[1:]


@pytest.mark.parametrize("partition", ["2013-02-29", "2013-1-1", "20131101", "yesterday", "", "2013-11-01T00:00"])
def test_recipe_error_when_the_partition_is_no_day(world: World, partition: str) -> None:
    with pytest.raises(RecipeError, match="is not a day of the calendar; write it as 2013-11-01"):
        plan(make_recipe(), partition, store=world.store)


@pytest.mark.parametrize("partition", ["2013-10-27", "2014-01-01"])
def test_days_of_the_data_are_told_when_the_partition_is_outside(world: World, partition: str) -> None:
    world.write_days("2013-10-28", 4)
    told = rf"{partition} is outside the data: .*holds trips of 2013-10-28\.\.2013-10-31 \(4 days\)"
    with pytest.raises(DataError, match=told):
        plan(make_recipe(), partition, store=world.store)
    assert list(world.store.list("datasets")) == []


def test_first_possible_partition_is_told_when_the_window_begins_before_the_data(world: World) -> None:
    world.write_days("2013-10-28", 4)
    with pytest.raises(DataError, match=r"begins on 2013-10-27.*trips/2013-10-27\.csv\.gz is missing.*2013-10-31 on"):
        plan(make_recipe(), "2013-10-30", store=world.store)


@pytest.mark.parametrize("path", ["trips/2013-10-30.csv.gz", "weather/2013-10-31.csv.gz", "planes.csv.gz"])
def test_file_is_named_when_a_needed_one_is_missing(world: World, path: str) -> None:
    world.write_days("2013-10-28", 4)
    (world.landing / path).unlink()
    with pytest.raises(DataError, match=rf"a file is missing for the source '\w+': file://.*{path}"):
        plan(make_recipe(), "2013-10-31", store=world.store)


def test_way_out_is_told_when_there_is_no_landing_folder(world: World) -> None:
    with pytest.raises(
        DataError, match=r"holds no file like trips/\{partition\}\.csv\.gz.*put the data there, or change data.landing"
    ):
        plan(make_recipe(), "2013-10-31", store=world.store)
    with pytest.raises(DataError, match=r"put the data there \(the demo's: paddlewheel demo ctr LANDING\)"):
        plan(make_recipe(data__demo="ctr"), "2013-10-31", store=world.store)


def test_a_folder_is_named_when_it_lies_where_a_file_is_meant(world: World) -> None:
    world.write_days("2013-10-28", 4)
    for path in ("planes.csv.gz", "trips/2013-10-30.csv.gz"):
        (world.landing / path).rename(world.landing / "kept")
        (world.landing / path).mkdir()
        with pytest.raises(DataError, match=rf"{path} is a folder: put a file there, or write /\*\* after it") as error:
            plan(make_recipe(), "2013-10-31", store=world.store)
        assert error.value.exit_code == 3
        (world.landing / path).rmdir()
        (world.landing / "kept").rename(world.landing / path)


def test_many_files_a_day_are_one_group_sorted_by_path(world: World) -> None:
    days = world.write_days("2013-10-28", 4)
    for day in days:
        for name in ("b", "a c", "_SUCCESS", ".part.crc"):
            world.write(f"trips/{day}/{name}.csv.gz", "x")
    groups = groups_of(world, plan(make_recipe(data__rows__path="trips/{partition}/*"), days[3], store=world.store))
    assert [[file.path for file in group.files] for group in groups["trips"]] == [
        [f"trips/{day}/_SUCCESS.csv.gz", f"trips/{day}/a c.csv.gz", f"trips/{day}/b.csv.gz"] for day in days
    ]


def test_the_newest_day_is_the_last_of_which_every_source_is_there(world: World) -> None:
    world.write_days("2013-10-28", 4)
    world.write("trips/2013-11-99.csv.gz", "x")
    world.write("weather/2013-12-01.csv.gz", "x")
    assert newest_day(make_recipe(), store=world.store) == "2013-10-31"
    (world.landing / "weather/2013-10-31.csv.gz").unlink()
    assert newest_day(make_recipe(), store=world.store) == "2013-10-30"
    for path in (world.landing / "weather").iterdir():
        path.unlink()
    with pytest.raises(
        DataError, match=r"holds trips of .*2013-10-31, but no day of which it holds all of trips, weath"
    ):
        newest_day(make_recipe(), store=world.store)


def test_nothing_is_read_when_planned(world: World) -> None:
    world.write_days("2013-10-28", 4)
    (world.landing / "planes.csv.gz").chmod(0)
    (group,) = groups_of(world, plan(make_recipe(), "2013-10-31", store=world.store))["planes"]
    stat = (world.landing / "planes.csv.gz").stat()
    assert group.files[0].bytes == stat.st_size
    assert str(stat.st_mtime_ns) in group.files[0].etag
    assert not group.known


def test_a_damaged_listing_is_an_error(world: World) -> None:
    world.write_days("2013-10-28", 4)
    manifest = world.manifest(plan(make_recipe(), "2013-10-31", store=world.store))
    path = world.store.local_path(manifest.files[0].key)
    path.write_bytes(path.read_bytes().replace(b"2013-10-29", b"2013-10-30"))
    with pytest.raises(StorageError, match="is not the file that its plan recorded; restore it, or remove"):
        list(read_groups(world.store, manifest))


def test_landing_is_taken_as_it_is_when_absolute(world: World, tmp_path: Path) -> None:
    world.write_days("2013-10-28", 4)
    (elsewhere := tmp_path / "else where").mkdir()
    world.landing.rename(elsewhere / "landing")
    store = LocalStore(tmp_path / "other root")
    for landing in (str(elsewhere / "landing"), (elsewhere / "landing").as_uri()):
        uri = plan(make_recipe(data__landing=landing), "2013-10-31", store=store)
        facts = World(store=store).manifest(uri).facts
        assert facts["landing"] == (elsewhere / "landing").as_uri()


def test_plan_is_another_when_a_file_was_delivered_again(world: World) -> None:
    days = world.write_days("2013-10-28", 4)
    first = plan(make_recipe(), days[3], store=world.store)
    assert plan(make_recipe(), days[3], store=world.store) == first
    world.write_trips(days[0], [trip(days[0], 99)])
    assert plan(make_recipe(), days[3], store=world.store) != first


def test_recipe_comes_back_when_it_was_overridden(world: World) -> None:
    world.write_days("2013-10-28", 4)
    recipe = make_recipe(training__epochs=7, resources__ranks_per_node=3)
    assert recipe_of(world.store, plan(recipe, "2013-10-31", store=world.store)) == recipe


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("data.label.column", "miles", "data.label.column: 'miles': the label is known only after"),
        (
            "data.label.column",
            "plane",
            "data.label.column: 'plane': must be an int64, a float64 or a bool, this is a string",
        ),
        ("data.joins.1.keys", {"number": "tail"}, "data.joins.1.keys.number: 'tail': joins int64 to string"),
        ("data.joins.0.keys", {"origin": "verdict"}, "data.joins.0.keys.origin: 'verdict': is known only after"),
        ("data.joins.0.left_time.column", "origin", "left_time.column: 'origin': must be a timestamp or date"),
        ("data.joins.0.left_time.plus_minutes", "plane", "plus_minutes: 'plane': must be a int64 or float64"),
        ("data.rows.columns.4.minimum", 3, "columns.4.minimum: 3.0: is for a column of type int64 or float64"),
        ("data.rows.columns.1.pattern", "x", "columns.1.pattern: 'x': is for a column of type string"),
        ("data.rows.path", "/trips/{partition}.csv", "data.rows.path: .*: must be relative to the landing folder"),
        ("data.rows.path", "../{partition}.csv", "data.rows.path: .*: must be relative to the landing folder"),
        ("data.rows.path", "a**b/{partition}.csv", "data.rows.path: .*: has .. within a name"),
        ("data.joins.0.tolerance_hours", 1e12, "data.joins.0.tolerance_hours: .*: must be at most 8784 .a year"),
        ("training.epochs", True, "training.epochs: True: must be a number, not true"),
        ("data.joins.0.source.max_refused_fraction", False, "max_refused_fraction: False: must be a number, not false"),
    ],
)
def test_recipe_is_refused_when_data_sections_do_not_fit(path: str, value: object, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        load_recipe(TREE, {path: value})
