"""Measures of drift against numbers worked out by hand, and what is told of days that are as ever, odd or broken."""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from paddlewheel.data.checks.drift import ColumnDrift, comparable, judge, usual_measures
from paddlewheel.data.checks.drift_measures import bin_starts, bins, chance, measure
from paddlewheel.data.checks.drift_words import describe, drift_sentence, way_out
from paddlewheel.data.statistics.builder import StatisticsBuilder
from paddlewheel.data.statistics.table_statistics import ColumnStatistics, TableStatistics, merge
from paddlewheel.data.types import POLARS_TYPES
from paddlewheel.recipe_data import Column, ColumnType, Drift, Limit

COLUMNS = [
    Column(name="temp", type="float64", nullable=True),
    Column(name="carrier", type="string"),
    Column(name="month", type="int64"),
    Column(name="id", type="string"),
    Column(name="at", type="timestamp"),
]
FIRST = datetime.date(2024, 1, 1)


def one(values: list[Any], kind: ColumnType) -> ColumnStatistics:
    builder = StatisticsBuilder([Column(name="x", type=kind, nullable=True)])
    builder.add(pl.DataFrame({"x": pl.Series(values, dtype=POLARS_TYPES[kind])}))
    return builder.finish()["x"]


def day_of(number: int, *, rows: int = 400, **changed: Any) -> tuple[str, TableStatistics]:
    """A day of a station: a temperature that wanders, carriers, a month, ids that never return, times."""
    rng, day = np.random.default_rng(number), FIRST + datetime.timedelta(days=number)
    midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
    columns: dict[str, Any] = {
        "temp": (60 + 10 * math.sin(number / 5) + rng.normal(0, 4, rows)).tolist(),
        "carrier": rng.choice(["UA", "B6", "EV", "DL"], rows, p=[0.4, 0.3, 0.2, 0.1]).tolist(),
        "month": [day.month] * rows,
        "id": [f"{day}-{row}" for row in range(rows)],
        "at": [midnight + datetime.timedelta(minutes=int(minute)) for minute in rng.integers(0, 1440, rows)],
    }
    columns |= {name: change(columns[name]) for name, change in changed.items()}
    schema = {column.name: POLARS_TYPES[column.type] for column in COLUMNS}
    builder = StatisticsBuilder(COLUMNS)
    builder.add(pl.DataFrame(columns, schema=schema))
    return day.isoformat(), comparable(builder.finish(), day.isoformat())


@pytest.fixture(scope="module")
def train() -> dict[str, TableStatistics]:
    return dict(day_of(number) for number in range(40))


def told(train: dict[str, TableStatistics], seen: TableStatistics, drift: Drift | None = None) -> list[ColumnDrift]:
    usual = usual_measures(train, length=1, gap=0)
    return judge(
        COLUMNS, merge(train.values()), seen, source="s", over="partition", drift=drift or Drift(), usual=usual
    )


def warnings(train: dict[str, TableStatistics], seen: TableStatistics) -> dict[str, tuple[str, ...]]:
    return {found.column: found.warned for found in told(train, seen) if found.warned}


def test_psi_and_divergence_are_as_worked_out_when_shares_move() -> None:
    before, now = one(["a"] * 999_999 + ["b"] * 999_999, "string"), one(["a"] * 599_999 + ["b"] * 199_999, "string")
    found = measure(before, now)
    # shares 1/2, 1/2 -> 3/4, 1/4 (a third bin, the rest, is empty in both): (1/4) ln(3/2) - (1/4) ln(1/2)
    assert found["psi"] == pytest.approx(0.274653, abs=2e-5)
    # mixture 5/8, 3/8: half of [1/2 lg(4/5) + 1/2 lg(4/3) + 3/4 lg(6/5) + 1/4 lg(2/3)]
    assert found["divergence"] == pytest.approx(0.048795, abs=2e-5)
    assert found["missing"] == 0.0


def test_shares_are_exact_when_values_are_missing_new_or_out_of_range() -> None:
    before = one([float(n) for n in range(100)] + [None] * 100, "float64")
    now = one([float(n) for n in range(50, 150)] + [None] * 300, "float64")
    found = measure(before, now)
    assert (found["missing"], found["outside"]) == (0.25, 0.5)
    texts = measure(one(["a", "b"] * 100, "string"), one(["a"] * 150 + ["c"] * 30 + ["d"] * 20, "string"))
    assert texts["new"] == 0.25
    assert "outside" not in texts


def test_new_values_are_found_by_hash_when_the_reference_has_more_than_are_counted() -> None:
    before = one([f"value {number}" for number in range(3_000)], "string")
    now = one([f"value {number}" for number in range(2_900, 3_300)] + ["value 1"] * 100, "string")
    assert before.level > 0
    assert measure(before, now)["new"] == 0.6
    many = one([f"value {number}" for number in range(50_000)], "string")  # its sketch holds 4,096 hashes
    half = one([f"value {number}" for number in range(30_000, 70_000)], "string")
    assert measure(many, half)["new"] == pytest.approx(0.5, abs=0.2)


def test_nothing_is_measured_when_rows_are_few() -> None:
    before = one([1.0] * 1000, "float64")
    assert measure(before, one([2.0] * 29, "float64")) == {}
    assert set(measure(before, one([2.0] * 30, "float64"))) == {"missing", "outside"}
    assert set(measure(before, one([2.0] * 100, "float64"))) == {"missing", "outside", "psi", "divergence"}


def test_measures_are_nothing_when_a_column_is_constant_or_empty() -> None:
    constant = one([7] * 500, "int64")
    assert measure(constant, constant) == {"missing": 0.0, "outside": 0.0, "psi": 0.0, "divergence": 0.0}
    empty = one([None] * 500, "int64")
    assert measure(empty, empty) == {"missing": 0.0}
    assert measure(constant, empty) == {"missing": 1.0}


def test_bins_hold_a_tenth_each_when_values_are_spread_and_a_heavy_value_stands_alone() -> None:
    spread = one([*range(1000)], "int64")
    assert bin_starts(spread) == [100, 200, 300, 400, 500, 600, 700, 800, 900]
    heavy = one([0] * 500 + [*range(1, 501)], "int64")
    assert bin_starts(heavy) == [1, 101, 201, 301, 401]
    assert bins(heavy, one([-5, 0, 1, 100, 5_000], "int64")) == ([500, 100, 100, 100, 100, 100], [2, 2, 0, 0, 0, 1])


def test_chance_exceeds_what_equal_distributions_reach_when_rows_are_few() -> None:
    rng, beyond = np.random.default_rng(2), 0
    before = one(rng.normal(size=5_000).tolist(), "float64")
    for _ in range(200):
        now = one(rng.normal(size=150).tolist(), "float64")
        beyond += measure(before, now)["psi"] > chance("psi", before, now)
    assert beyond <= 2  # one in a thousand


def test_nothing_is_told_when_a_day_is_as_the_days_before(train: dict[str, TableStatistics]) -> None:
    for number in (40, 43, 47):
        assert warnings(train, day_of(number)[1]) == {}


def test_month_and_growing_ids_are_not_told_when_the_window_has_them_turn_every_month(
    train: dict[str, TableStatistics],
) -> None:
    found = {one.column: one for one in told(train, day_of(40)[1])}
    assert found["id"].measures["new"] == 1.0
    assert found["id"].usual["new"] == 1.0  # each day's ids are new: as ever


@pytest.mark.parametrize(
    ("column", "change", "measures"),
    [
        ("temp", lambda values: [None] * len(values), ("missing",)),
        ("temp", lambda values: [(value - 32) / 1.8 for value in values], ("outside",)),  # it wanders too far for more
        (
            "carrier",
            lambda values: ["ZZ" if row % 4 == 0 else value for row, value in enumerate(values)],
            ("psi", "new"),
        ),
        ("carrier", lambda values: ["UA"] * len(values), ("psi", "divergence")),
        ("at", lambda values: [value - datetime.timedelta(days=1) for value in values], ("outside",)),
    ],
    ids=["missing", "celsius", "new carrier", "one carrier", "rows of the day before"],
)
def test_measure_is_told_when_a_day_is_broken(
    train: dict[str, TableStatistics], column: str, change: Any, measures: tuple[str, ...]
) -> None:
    assert warnings(train, day_of(40, **{column: change})[1]) == {column: measures}


def test_broken_day_is_told_when_one_of_the_training_days_was_broken_too(train: dict[str, TableStatistics]) -> None:
    gone = {"temp": lambda values: [None] * len(values)}
    with_one = train | dict([day_of(35, **gone)])
    assert warnings(with_one, day_of(40, **gone)[1]) == {"temp": ("missing",)}


def test_fail_limit_is_taken_as_it_stands_when_the_measure_is_usual(train: dict[str, TableStatistics]) -> None:
    drift = Drift(new=Limit(warn=0.1, fail=0.5))
    found = {one.column: one for one in told(train, day_of(40)[1], drift)}
    assert (found["id"].failed, found["id"].warned) == (("new",), ())


def test_columns_own_limits_replace_the_recipes_when_it_has_some(train: dict[str, TableStatistics]) -> None:
    gone = day_of(40, temp=lambda values: [None] * len(values))[1]
    own = [Column(name="temp", type="float64", drift=Drift(missing=Limit()))]
    assert [found.warned for found in judge(own, merge(train.values()), gone, source="s", over="o", drift=Drift())] == [
        ()
    ]


def test_nothing_is_usual_when_the_window_has_few_days(train: dict[str, TableStatistics]) -> None:
    few = {day: train[day] for day in list(train)[:5]}
    assert usual_measures(few, length=1, gap=0) == {}


def test_sentence_has_limit_value_and_both_distributions_when_a_measure_fails(
    train: dict[str, TableStatistics],
) -> None:
    drift = Drift(missing=Limit(warn=0.1, fail=0.5))
    day, gone = day_of(40, temp=lambda values: [None] * len(values))
    reference = merge(train.values())
    found = next(one for one in told(train, gone, drift) if one.column == "temp")
    text = drift_sentence(found, COLUMNS[0], drift, (day, gone["temp"]), ("training days", reference["temp"]))
    assert text.startswith(
        "s.temp: share of missing values changed by 1 (fail missing 0.5, usually up to 0). 2024-02-10: "
    )
    assert "2024-02-10: 400 rows, 100.0% missing. training days: 16,000 rows, 0.0% missing, median " in text
    assert way_out(found, COLUMNS[0]) == (
        "Mend the data, or raise data.drift.missing.fail in the recipe if this is as it should be"
    )
    both = dataclasses.replace(found, failed=("missing", "psi"))
    assert "raise data.drift.missing.fail and data.drift.psi.fail in the recipe" in way_out(both, COLUMNS[0])


def test_description_names_the_most_frequent_when_values_are_texts() -> None:
    assert describe(one(["UA"] * 60 + ["B6"] * 30 + ["EV"] * 10 + [None] * 25, "string")) == (
        "125 rows, 20.0% missing, 3 values (UA 60%, B6 30%, EV 10%)"
    )


def test_drift_is_read_back_as_it_was_when_it_stood_in_a_manifest(train: dict[str, TableStatistics]) -> None:
    found = told(train, day_of(40)[1])
    assert [ColumnDrift.from_tree(one.to_tree()) for one in found] == found
