"""Columns of another source for each sample."""

from __future__ import annotations

import datetime
import random
from typing import Any

import polars as pl
import pytest

from paddlewheel.data.samples.join import build_right, join_right, joined_columns
from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Column, Join, Moment, Source

from .conftest import make_recipe

ASOF: Join = make_recipe().data.joins[0]
LOOKUP: Join = make_recipe().data.joins[1]
NOON = datetime.datetime(2013, 11, 1, 12, tzinfo=datetime.UTC)


def join(samples: pl.DataFrame, table: pl.DataFrame, how: Join) -> tuple[pl.DataFrame, int]:
    return join_right(samples, build_right(table, how), how)


def trips_at(*moments: datetime.datetime | None, origin: str | None = "EWR") -> pl.DataFrame:
    return pl.DataFrame(
        {"hour_utc": moments, "minute": [0] * len(moments), "origin": [origin] * len(moments)},
        schema={"hour_utc": pl.Datetime("us", "UTC"), "minute": pl.Int64, "origin": pl.String},
    )


def weather_at(*rows: tuple[str | None, datetime.datetime | None, float]) -> pl.DataFrame:
    schema = {"station": pl.String, "at": pl.Datetime("us", "UTC"), "wind": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(verdict=pl.lit(None, pl.String))


def test_observation_is_found_at_its_moment_and_at_the_tolerance_when_joined_as_of() -> None:
    second = datetime.timedelta(seconds=1)
    six = datetime.timedelta(hours=6)
    samples = trips_at(NOON - second, NOON, NOON + six, NOON + six + second, None)
    joined, missed = join(samples, weather_at(("EWR", NOON, 7.0)), ASOF)
    assert joined["weather_wind"].to_list() == [None, 7.0, 7.0, None, None]
    assert joined["weather_at"].to_list() == [None, NOON, NOON, None, None]
    assert joined["weather_station"].to_list() == [None, "EWR", "EWR", None, None]
    assert missed == 3
    assert "weather_verdict" not in joined.columns


def test_null_keys_and_moments_find_nothing_when_joined_as_of() -> None:
    weather = weather_at((None, NOON, 1.0), ("EWR", None, 2.0), ("JFK", NOON, 3.0))
    assert join(trips_at(NOON, origin=None), weather, ASOF)[0]["weather_wind"].to_list() == [None]
    assert join(trips_at(NOON), weather, ASOF)[0]["weather_wind"].to_list() == [None]


def last_before(trip_row: dict[str, Any], observations: list[tuple[Any, ...]]) -> float | None:
    """The same by looking at every observation."""
    moment = trip_row["hour_utc"] + datetime.timedelta(minutes=trip_row["minute"])
    best = None
    for station, at, wind in observations:
        if station != trip_row["origin"] or at > moment or moment - at > datetime.timedelta(hours=6):
            continue
        if best is None or at >= best[0]:
            best = (at, wind)
    return best[1] if best else None


@pytest.mark.parametrize("seed", range(20))
def test_as_of_join_is_that_of_a_brute_force_when_rows_are_in_any_order(seed: int) -> None:
    draw = random.Random(seed)
    minute = datetime.timedelta(minutes=1)
    rows = [
        {
            "hour_utc": NOON + 30 * minute * draw.randrange(-40, 40),
            "minute": draw.choice([0, 1, 30, 59]),
            "origin": draw.choice(["EWR", "JFK", "LGA"]),
        }
        for _ in range(60)
    ]
    observations = [
        (draw.choice(["EWR", "JFK"]), NOON + 30 * minute * draw.randrange(-60, 40), float(index)) for index in range(25)
    ]
    schema = {"hour_utc": pl.Datetime("us", "UTC"), "minute": pl.Int64, "origin": pl.String}
    joined, missed = join(pl.DataFrame(rows, schema=schema), weather_at(*observations), ASOF)
    expected = [last_before(row, observations) for row in rows]
    assert joined["weather_wind"].to_list() == expected
    assert joined["origin"].to_list() == [row["origin"] for row in rows]
    assert missed == expected.count(None)


def test_data_error_when_a_lookup_would_find_two_rows() -> None:
    planes = pl.DataFrame({"tail": ["N1", None, "N1", None], "seats": [1, 2, 3, 4]})
    with pytest.raises(
        DataError, match=r"planes: 2 rows share their tail with another \(tail N1 first\).*source's key"
    ):
        join(pl.DataFrame({"plane": ["N1"]}), planes, LOOKUP)


def test_rows_keep_their_order_and_nulls_find_nothing_when_looked_up() -> None:
    planes = pl.DataFrame({"tail": ["N1", None, "N2", None], "seats": [1, 2, 3, 4]})
    joined, missed = join(pl.DataFrame({"plane": ["N2", None, "N1", "N9"]}), planes, LOOKUP)
    assert joined.rows() == [("N2", "N2", 3), (None, None, None), ("N1", "N1", 1), ("N9", None, None)]
    assert missed == 2


def test_read_are_keys_moment_and_columns_known_before_when_joined() -> None:
    assert joined_columns(ASOF) == ["station", "at", "wind"]
    assert joined_columns(LOOKUP) == ["tail", "seats"]


def test_the_later_row_of_the_files_wins_when_two_stand_at_one_moment() -> None:
    weather = weather_at(("EWR", NOON, 2.0), ("EWR", NOON, 1.0), ("JFK", NOON, 3.0))
    assert join(trips_at(NOON), weather, ASOF)[0]["weather_wind"].to_list() == [1.0]


def test_observations_before_1970_are_found_when_joined_as_of() -> None:
    moon = datetime.datetime(1969, 7, 20, 20, 17, 40, 500_000, tzinfo=datetime.UTC)
    micro = datetime.timedelta(microseconds=1)
    weather = weather_at(("EWR", moon, 1.0), ("EWR", datetime.datetime(1583, 1, 1, tzinfo=datetime.UTC), 2.0))
    joined, missed = join(
        trips_at(moon - micro, moon, moon + datetime.timedelta(hours=6, microseconds=1)), weather, ASOF
    )
    assert (joined["weather_wind"].to_list(), missed) == ([None, 1.0, None], 2)


def test_the_hour_that_comes_twice_is_two_hours_when_summer_time_ends() -> None:
    """New York, 2013-11-03: 01:30 is 05:30 UTC, and an hour later 06:30 UTC."""
    summer, winter = (
        datetime.datetime.fromisoformat(f"2013-11-03T01:30:00{offset}") for offset in ("-04:00", "-05:00")
    )
    weather = weather_at(("EWR", summer.astimezone(datetime.UTC), 1.0), ("EWR", winter.astimezone(datetime.UTC), 2.0))
    minute = datetime.timedelta(minutes=1)
    moments = [summer - minute, summer, summer + 59 * minute, winter, winter + minute]
    joined, _ = join(trips_at(*(moment.astimezone(datetime.UTC) for moment in moments)), weather, ASOF)
    assert joined["weather_wind"].to_list() == [None, 1.0, 1.0, 2.0, 2.0]


def test_no_hour_is_missing_when_summer_time_begins() -> None:
    """New York, 2013-03-10: 01:59 is 06:59 UTC, and the minute after is 03:00, 07:00 UTC."""
    before, after = (
        datetime.datetime.fromisoformat(f"2013-03-10T{text}") for text in ("01:59:00-05:00", "03:00:00-04:00")
    )
    weather = weather_at(("EWR", before.astimezone(datetime.UTC), 1.0))
    within = Join(
        source=ASOF.source, kind="asof", keys=ASOF.keys, left_time=ASOF.left_time, right_time=ASOF.right_time,
        tolerance_hours=1 / 60,
    )  # fmt: skip
    moments = [after.astimezone(datetime.UTC), after.astimezone(datetime.UTC) + datetime.timedelta(seconds=1)]
    assert join(trips_at(*moments), weather, within)[0]["weather_wind"].to_list() == [1.0, None]


def numbered_join(kind: Any, **more: Any) -> Join:
    columns = [("id", "int64"), ("second", "int64"), ("day", "date"), ("value", "float64")]
    source = Source(name="right", columns=tuple(Column(name=name, type=kind) for name, kind in columns))
    return Join(source=source, kind=kind, keys={"id": "id", "second": "second"}, **more)


@pytest.mark.parametrize("kind", ["lookup", "asof"])
@pytest.mark.parametrize("keys", [{"id": "id"}, {"id": "id", "second": "second"}])
def test_whole_numbers_beyond_doubles_are_told_apart_when_they_are_keys(kind: Any, keys: dict[str, str]) -> None:
    moment = Moment(column="day")
    times = {"left_time": moment, "right_time": moment} if kind == "asof" else {}
    how = Join(source=numbered_join(kind).source, kind=kind, keys=keys, **times)
    day = datetime.date(2013, 11, 1)
    ids = [2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1, 2**63 - 1]
    right = pl.DataFrame({"id": ids, "second": ids, "day": [day] * 5, "value": [0.0, 1.0, 2.0, 3.0, 4.0]})
    asked = [2**53 + 1, None, 2**63 - 2, 2**63 - 1, -(2**53) - 1, -(2**53)]
    left = pl.DataFrame({"id": asked, "second": asked, "day": [day] * 6}, schema_overrides={"id": pl.Int64})
    joined, missed = join(left, right, how)
    assert (joined["right_value"].to_list(), missed) == ([1.0, None, None, 4.0, 3.0, None], 3)
    assert joined["right_id"].to_list() == [2**53 + 1, None, None, 2**63 - 1, -(2**53) - 1, None]


def test_a_moment_out_of_all_bounds_finds_nothing_when_its_minutes_are_absurd() -> None:
    samples = trips_at(NOON, NOON, NOON).with_columns(minute=pl.Series([2**62, -(2**62), 0]))
    joined, missed = join(samples, weather_at(("EWR", NOON, 7.0)), ASOF)
    assert (joined["weather_wind"].to_list(), missed) == ([None, None, 7.0], 2)


def test_a_date_is_its_midnight_when_it_is_a_moment() -> None:
    moment = Moment(column="day")
    how = numbered_join("asof", left_time=moment, right_time=moment, tolerance_hours=24)
    days = [datetime.date(2013, 11, number) for number in (1, 2, 3)]
    left = pl.DataFrame({"id": [1] * 3, "second": [1] * 3, "day": days})
    right = pl.DataFrame({"id": [1], "second": [1], "day": [days[0]], "value": [7.0]})
    assert join(left, right, how)[0]["right_value"].to_list() == [7.0, 7.0, None]


def test_nothing_is_found_when_the_source_has_no_row() -> None:
    joined, missed = join(trips_at(NOON, None), weather_at(), ASOF)
    assert (joined["weather_wind"].to_list(), missed) == ([None, None], 2)
    joined, missed = join(
        pl.DataFrame({"plane": ["N1"]}), pl.DataFrame(schema={"tail": pl.String, "seats": pl.Int64}), LOOKUP
    )
    assert (joined.columns, missed) == (["plane", "planes_tail", "planes_seats"], 1)
