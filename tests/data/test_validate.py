"""The recipe's limits over the window."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import pytest

from paddlewheel.champions import Change, move, now
from paddlewheel.data.ingest import ingest
from paddlewheel.data.plan import plan
from paddlewheel.data.validate import validate
from paddlewheel.errors import DataError, StorageError
from paddlewheel.manifest import Manifest, input_of, publish_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import digest_file
from paddlewheel.storage.local import LocalStore

from .conftest import TRIPS_HEADER, World, make_recipe, trip

DAYS = ["2013-10-28", "2013-10-29", "2013-10-30", "2013-10-31"]


def run(world: World, recipe: Recipe) -> str:
    planned = plan(recipe, DAYS[-1], store=world.store)
    return validate(recipe, [ingest(recipe, planned, 0, store=world.store)], store=world.store)


def bear(fraction: float) -> Recipe:
    return make_recipe(data__rows__max_refused_fraction=fraction)


def test_count_limit_reasons_and_way_out_are_told_when_too_much_was_refused(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=6)
    world.write_trips(DAYS[1], [trip(DAYS[1], n) for n in range(1, 6)] + [trip(DAYS[1], 6, delay="late")])
    world.manifest(run(world, bear(0.05)))  # 1 of 24 is 4.2 %
    with pytest.raises(DataError) as error:
        run(world, bear(0.04))
    assert "trips in the window: 1 of 24 rows were refused (4.17%); the recipe bears max_refused_fraction 4.00%" in str(
        error.value
    )
    assert "trips/2013-10-29.csv.gz line 7, column delay: 'late': not a finite number (float64)" in str(error.value)
    assert "raise the limit" in str(error.value)
    assert "/refused.jsonl; the first:" in str(error.value)
    assert [key for key in world.tree("datasets/mini.validated") if key.endswith("manifest.json")] != []


def test_a_refused_value_is_shortened_when_it_is_long(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=6)
    world.write_trips(DAYS[3], [trip(DAYS[3], 1), trip(DAYS[3], 2, delay="9z" * 100_000)])
    with pytest.raises(DataError) as error:
        run(world, bear(0.0))
    assert f"line 3, column delay: '{'9z' * 39}9…': not a finite number (float64)" in str(error.value)


def test_data_error_when_the_partitions_own_file_is_bad_though_the_window_bears_it(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=6)
    world.write_trips(DAYS[3], [trip(DAYS[3], 1), trip(DAYS[3], 2, delay="late")])  # 1 of 20, but 1 of 2 of that day
    with pytest.raises(DataError, match=r"trips of 2013-10-31: 1 of 2 rows were refused \(50\.00%\)"):
        run(world, bear(0.1))


def test_both_files_are_named_when_one_key_stands_in_two(world: World) -> None:
    world.write_days(DAYS[0], 4)
    world.write_trips(DAYS[2], [trip(DAYS[2], 1), trip(DAYS[1], 4)])
    with pytest.raises(
        DataError,
        match=r"date 2013-10-29, number 4 stands in trips/2013-10-29\.csv\.gz and in trips/2013-10-30\.csv\.gz",
    ):
        run(world, bear(0.0))


def test_profile_counts_the_window_when_validated(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=2)
    world.write_trips(DAYS[0], [trip(DAYS[0], 1).replace(",100,", ",,"), trip(DAYS[0], 3, delay="x")])
    facts = world.manifest(run(world, bear(0.5))).facts
    # trips 1, 2 on three days, trip 1 without miles on the first, whose trip 3 was refused
    assert (facts["rows"], facts["refused"]) == (7, 1)
    assert facts["refused_by_reason"] == {"delay: not a finite number (float64)": 1}
    assert facts["days"] == [
        {"day": DAYS[0], "rows": 1, "refused": 1},
        {"day": DAYS[1], "rows": 2, "refused": 0},
        {"day": DAYS[2], "rows": 2, "refused": 0},
        {"day": DAYS[3], "rows": 2, "refused": 0},
    ]
    told = facts["statistics"]["trips"]
    assert (told["train"]["rows"], told["holdout"]["rows"], told["partition"]["rows"]) == (5, 2, 2)
    assert told["train"]["columns"]["miles"] == {
        "missing": 1,
        "distinct": 2,
        "minimum": 100.0,
        "maximum": 200.0,
        "quantiles": [100.0, 100.0, 100.0, 200.0, 200.0],
    }
    assert told["train"]["columns"]["origin"]["top"] == [["JFK", 3], ["EWR", 2]]
    assert told["holdout"]["columns"]["hour_utc"]["maximum"] == "2013-10-31T12:00:00+00:00"
    assert facts["statistics"]["planes"] == {"all": {"rows": 2, "columns": ANY}}
    assert facts["holdout"] == ["2013-10-31"]


def test_most_frequent_values_are_told_by_count_then_value_when_there_are_many(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=1)
    rows = [trip(DAYS[3], n).replace(f",N{n % 3},", f",N{n % 7 if n < 40 else 100 + n},") for n in range(1, 60)]
    world.write_trips(DAYS[3], rows)
    # numbers 1 to 39: N1, N2, N3, N4 six times, N0, N5, N6 five times
    partition = world.manifest(run(world, bear(0.5))).facts["statistics"]["trips"]["partition"]
    assert partition["columns"]["plane"]["top"] == [["N1", 6], ["N2", 6], ["N3", 6], ["N4", 6], ["N0", 5]]


def many(day: str, count: int = 200, **changed: Callable[[int], str]) -> list[str]:
    """Rows of a day with enough of them to be compared; by column what is changed."""
    names = TRIPS_HEADER.split(",")
    rows = []
    for number in range(1, count + 1):
        fields = dict(zip(names, trip(day, number, delay=str(number % 40)).split(","), strict=True))
        fields |= {name: change(number) for name, change in changed.items()}
        rows.append(",".join(fields[name] for name in names))
    return rows


def write_many(world: World, **changed: Callable[[int], str]) -> None:
    """Four days of 200 rows, the last one changed."""
    world.write_days(DAYS[0], 4)
    for day in DAYS[:3]:
        world.write_trips(day, many(day))
    world.write_trips(DAYS[3], many(DAYS[3], **changed))


def test_broken_day_is_warned_of_when_the_recipe_has_no_fail_limit(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    write_many(world, miles=lambda _: "")
    with caplog.at_level(logging.WARNING):
        manifest = world.manifest(run(world, bear(0.0)))
    (line,) = manifest.facts["drift_warnings"]
    assert f"validate: {line}" in caplog.messages
    assert line == (
        "trips.miles: share of missing values changed by 1 (warn missing 0.1). 2013-10-31: 200 rows, 100.0% missing. "
        "training days: 600 rows, 0.0% missing, median 10,010 (5 to 95%: 1000 to 18,990)"
    )
    found = [one for one in manifest.facts["drift"] if one["warned"]]
    assert [(one["source"], one["column"], one["over"], one["warned"]) for one in found] == [
        ("trips", "miles", "partition", ["missing"])
    ]


def test_data_error_has_value_limit_and_way_out_when_drift_passes_a_fail_limit(world: World) -> None:
    write_many(world, miles=lambda _: "")
    recipe = make_recipe(data__drift={"missing": {"warn": 0.1, "fail": 0.5}})
    with pytest.raises(
        DataError, match=r"trips\.miles: share of missing values changed by 1 \(fail missing 0\.5\)"
    ) as error:
        run(world, recipe)
    assert "raise data.drift.missing.fail in the recipe if this is as it should be" in str(error.value)
    assert [key for key in world.tree("datasets/mini.validated") if key.endswith("manifest.json")] == []
    run(world, bear(0.0))  # without the limit it is a warning


def test_rows_of_another_day_are_told_when_they_lie_under_a_days_name(world: World) -> None:
    world.write_days(DAYS[0], 4)
    for day in DAYS[:3]:
        world.write_trips(day, many(day))
    other = many("2013-10-20")
    world.write_trips(DAYS[3], other)
    told = world.manifest(run(world, bear(0.0))).facts["drift_warnings"]
    assert [line.partition(":")[0] for line in told] == ["trips.date", "trips.hour_utc"]
    assert "2013-10-31: 200 rows, 0.0% missing, -11 to -11 days from its day" in told[0]


def test_nothing_drifts_when_days_are_alike(world: World) -> None:
    write_many(world)
    facts = world.manifest(run(world, bear(0.0))).facts
    assert (facts["drift_warnings"], facts["notes"]) == ([], [])


def test_data_error_when_the_partitions_own_day_has_a_header_alone(world: World) -> None:
    world.write_days(DAYS[0], 4)
    world.write_trips(DAYS[3], [])
    with pytest.raises(DataError, match=r"trips of 2013-10-31: no row is left \(its files have no more than a h"):
        run(world, bear(0.0))


def test_data_error_says_why_when_no_row_of_the_partitions_own_day_is_left(world: World) -> None:
    world.write_days(DAYS[0], 4)
    recipe = make_recipe(data__rows__max_refused_fraction=1.0, data__rows__max_unreadable_fraction=1.0)
    path = world.write_trips(DAYS[3], [trip(DAYS[3], 1, delay="late")])
    with pytest.raises(DataError, match=r"trips of 2013-10-31: no row is left \(1 were refused\)"):
        run(world, recipe)
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"no row is left \(1 of its files cannot be read\)"):
        run(world, recipe)


def test_days_are_named_when_they_have_no_rows_or_no_label(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write_days(DAYS[0], 4)
    world.write_trips(DAYS[1], [])
    world.write_trips(DAYS[3], [trip(DAYS[3], n, delay="") for n in range(1, 4)])
    world.write(f"weather/{DAYS[3]}.csv.gz", "station,at,wind,verdict\n")
    with caplog.at_level(logging.WARNING):
        notes = world.manifest(run(world, bear(0.0))).facts["notes"]
    assert notes == [
        "trips: no rows on 2013-10-29",
        "trips: no row has the label delay on 2013-10-31",
        "weather: no rows on 2013-10-31",
    ]
    assert "validate: trips: no row has the label delay on 2013-10-31" in caplog.messages


def test_unreadable_files_are_listed_with_reasons_when_the_recipe_bears_them(world: World) -> None:
    world.write_days(DAYS[0], 4)
    path = world.landing / "trips" / f"{DAYS[1]}.csv.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"trips in the window: 1 of 4 files cannot be read \(25\.00%\)") as error:
        run(world, bear(0.0))
    assert "max_unreadable_fraction 0.00%" in str(error.value)
    assert "trips/2013-10-29.csv.gz: " in str(error.value)
    manifest = world.manifest(run(world, make_recipe(data__rows__max_unreadable_fraction=0.25)))
    assert manifest.facts["unreadable"] == {"trips": 1}
    (quarantine,) = [file for file in manifest.files if file.facts["part"] == "quarantine"]
    (line,) = world.store.read(quarantine.key).splitlines()
    entry = json.loads(line)
    assert (entry["source"], entry["path"], entry["partition"]) == ("trips", "trips/2013-10-29.csv.gz", DAYS[1])
    assert entry["digest"] == digest_file(path)
    assert entry["reason"] != ""
    assert manifest.facts["notes"] == ["trips: no rows on 2013-10-29"]


def test_manifest_is_the_same_when_another_store_has_the_same_files(world: World, tmp_path: Path) -> None:
    other = World(store=LocalStore(tmp_path / "other"))
    facts = []
    for one in (world, other):
        write_many(one, miles=lambda number: str(number * 3))
        facts.append(one.manifest(run(one, bear(0.0))))
    assert facts[0].facts == facts[1].facts
    digests = [[(file.key.rpartition("/")[2], file.digest) for file in one.files] for one in facts]
    assert digests[0] == digests[1]


def test_storage_error_when_a_batch_is_missing(world: World) -> None:
    world.write_days(DAYS[0], 4)
    recipe = bear(0.0)
    planned = plan(recipe, DAYS[-1], store=world.store)
    made = ingest(recipe, planned, 0, store=world.store)
    with pytest.raises(StorageError, match=r"validate needs the ingest manifests of all 1 batches of one plan"):
        validate(recipe, [made, made], store=world.store)


def champion_of(world: World, validated_uri: str) -> None:
    """A champion whose run descends from this data: its pointer and its run's manifest, as promote leaves them."""
    run_manifest = Manifest(kind="run", name="mini", key="runs/theirs", inputs=(input_of(world.store, validated_uri),))
    publish_manifest(world.store, run_manifest)
    change = Change(version=1, run="theirs", partition=DAYS[0], action="promoted", by="test", reason="", at=now())
    move(world.store, "mini", None, change)


def test_window_is_compared_with_the_champions_data_when_there_is_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    write_many(world)
    first = run(world, bear(0.0))
    champion_of(world, first)
    assert run(world, bear(0.0)) == first
    assert world.tree("datasets/mini.drift") == {}  # the champion learnt from this very data
    for day in DAYS[:3]:
        world.write_trips(day, many(day, plane=lambda number: f"N{number % 3}00"))
    with caplog.at_level(logging.WARNING):
        second = run(world, bear(0.0))
    told = "validate: further from the champion's data (2013-10-31) than the recipe's limits: trips.plane (psi"
    assert told in caplog.text
    before = world.tree("datasets/mini.drift")
    (key,) = before
    facts = world.manifest(world.store.uri(key)).facts
    assert [(one["column"], one["measures"]["new"]) for one in facts["drift"] if "new" in one["warned"]] == [
        ("plane", 1.0)
    ]
    assert [entry.key for entry in world.manifest(world.store.uri(key)).inputs] == [
        world.store.key(second),
        world.store.key(first),
    ]
    assert run(world, bear(0.0)) == second
    assert world.tree("datasets/mini.drift") == before
    world.store.remove("runs/theirs/manifest.json")
    assert run(world, bear(0.0)) == second
    assert "the data is not compared with the champion's: cannot read" in caplog.text
