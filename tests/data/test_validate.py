"""The recipe's limits over the window."""

from __future__ import annotations

import pytest

from paddlewheel.data.ingest import ingest
from paddlewheel.data.plan import plan
from paddlewheel.data.validate import validate
from paddlewheel.errors import DataError
from paddlewheel.recipe import Recipe

from .conftest import World, make_recipe, trip

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
    profile = facts["profile"]["trips"]
    assert profile["miles"] == {
        "rows": 7,
        "nulls": 1,
        "distinct": 3,
        "minimum": 100.0,
        "maximum": 200.0,
        "mean": 150.0,
    }
    assert profile["origin"]["top"] == [["JFK", 4], ["EWR", 3]]
    assert profile["plane"]["top"] == [["N1", 4], ["N2", 3]]
    assert profile["hour_utc"]["maximum"] == "2013-10-31T12:00:00+00:00"
    assert facts["holdout"] == ["2013-10-31"]


def test_most_frequent_values_are_told_by_count_then_value_when_there_are_many(world: World) -> None:
    world.write_days(DAYS[0], 4, trips=1)
    rows = [trip(DAYS[3], n).replace(f",N{n % 3},", f",N{n % 7 if n < 40 else 100 + n},") for n in range(1, 60)]
    world.write_trips(DAYS[3], rows)
    # numbers 1 to 39: N1, N2, N3, N4 six times, N0, N5, N6 five times; N1 three times more on the days before
    top = world.manifest(run(world, bear(0.5))).facts["profile"]["trips"]["plane"]["top"]
    assert top == [["N1", 9], ["N2", 6], ["N3", 6], ["N4", 6], ["N0", 5]]
