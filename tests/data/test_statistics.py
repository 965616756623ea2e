"""Statistics against counting by hand, numpy and DataSketches itself; any split and order of the rows: equal bytes."""

from __future__ import annotations

import datetime
import itertools
import random
from typing import Any

import datasketches
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlewheel.data.statistics.builder import StatisticsBuilder, TableStatistics, merge
from paddlewheel.data.statistics.histogram import bucket_edges, bucket_of
from paddlewheel.data.statistics.table_statistics import ColumnStatistics
from paddlewheel.data.statistics.theta import sketch_of
from paddlewheel.data.types import POLARS_TYPES
from paddlewheel.errors import StorageError
from paddlewheel.recipe_data import Column, ColumnType


def columns(**types: ColumnType) -> list[Column]:
    return [Column(name=name, type=kind, nullable=True) for name, kind in types.items()]


def statistics(frame: pl.DataFrame, declared: list[Column]) -> TableStatistics:
    builder = StatisticsBuilder(declared)
    builder.add(frame)
    return builder.finish()


def one(values: list[Any], kind: ColumnType) -> ColumnStatistics:
    frame = pl.DataFrame({"x": pl.Series(values, dtype=POLARS_TYPES[kind])})
    return statistics(frame, columns(x=kind))["x"]


DECLARED = columns(text="string", whole="int64", real="float64", truth="bool", day="date", time="timestamp")
ROWS = st.lists(
    st.tuples(
        st.none() | st.sampled_from(["", "a", "b", "twelve bytes", "thirteen byte", "Zürich"]) | st.text(max_size=40),
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
        st.none() | st.floats() | st.sampled_from([0.0, -0.0, 1.5]),
        st.none() | st.booleans(),
        st.none() | st.dates(),
        st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    ),
    max_size=60,
)


def frame_of(rows: list[Any]) -> pl.DataFrame:
    schema = {column.name: POLARS_TYPES[column.type] for column in DECLARED}
    return pl.DataFrame(rows, schema=schema, orient="row")


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 9))
def test_bytes_are_equal_when_rows_are_split_ordered_and_merged_in_any_way(
    rows: list[Any], cuts: list[int], seed: int
) -> None:
    whole = statistics(frame_of(rows), DECLARED).to_json()
    shuffled = random.Random(seed).sample(rows, len(rows))
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {0, len(rows)})
    pieces = [frame_of(shuffled[start:end]) for start, end in itertools.pairwise(ends)]
    streamed = StatisticsBuilder(DECLARED)
    for piece in pieces:
        streamed.add(piece)
    assert streamed.finish().to_json() == whole
    parts = [statistics(piece, DECLARED) for piece in [*pieces, frame_of([])]]
    again = [TableStatistics.from_json(part.to_json(), "a part") for part in parts]
    assert merge(again).to_json() == merge(parts).to_json() == whole


def test_bytes_are_equal_when_columns_have_more_values_than_are_counted() -> None:
    rng = np.random.default_rng(5)
    frame = pl.DataFrame(
        {
            "id": rng.permutation(30_000),
            "word": [f"w{min(rank, 9000)}" for rank in rng.zipf(1.3, 30_000)],
            "real": rng.normal(size=30_000),
        }
    )
    declared = columns(id="int64", word="string", real="float64")
    whole = statistics(frame, declared)
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=1)
    cuts = [0, 17, 5_000, 5_001, 22_222, 30_000]
    parts = [statistics(shuffled.slice(a, b - a), declared) for a, b in itertools.pairwise(cuts)]
    assert merge([merge(parts[3:]), merge(parts[:3])]).to_json() == whole.to_json()
    assert whole["id"].level == 5  # 30,000 / 2**5 is the first below 1,024
    assert whole["word"].level > 0
    (top, rows), frequent = whole["word"].top(1)[0], frame["word"].value_counts(sort=True).row(0)
    assert top == frequent[0] == "w1"
    assert rows == pytest.approx(frequent[1], rel=0.05)


@pytest.mark.parametrize("size", [0, 1, 2, 3_000, 50_000])
def test_sketch_is_the_librarys_own_when_it_is_fed_value_by_value(size: int) -> None:
    texts = [f"{'long ' * (number % 5)}{number}" for number in range(size)]
    frame = pl.DataFrame({"text": texts, "whole": range(size), "real": [n / 7 for n in range(size)]}, strict=False)
    found = statistics(frame, columns(text="string", whole="int64", real="float64"))
    for name, values in (("text", texts), ("whole", range(size)), ("real", [n / 7 for n in range(size)])):
        sketch = datasketches.update_theta_sketch(12)
        for value in values:
            sketch.update(value)
        sketch.trim()
        assert found[name].theta == sketch.compact().serialize()
        assert found[name].distinct == pytest.approx(size, rel=0.05)


def test_union_by_the_library_is_the_merge_when_tables_share_values() -> None:
    tables = [statistics(pl.DataFrame({"x": range(a, a + 6_000)}), columns(x="int64")) for a in (0, 3_000, 9_000)]
    union = datasketches.theta_union(12)
    for table in tables:
        union.update(sketch_of(table["x"].theta))
    assert merge(tables)["x"].theta == union.get_result().serialize()


def test_counts_are_exact_when_a_column_has_few_values() -> None:
    found = one(["b", "a", None, "b", "", "x" * 70, "x" * 71], "string")
    assert (found.rows, found.missing, found.distinct, found.level) == (7, 1, 5, 0)
    counts = found.counts()
    assert (counts["b"], counts["a"], counts[""]) == (2, 1, 1)
    assert sorted(name[:41] for name in counts if name.startswith("x")) == ["x" * 40 + "…"] * 2  # two, not one
    assert (found.minimum, found.quantile(0.5)) == (None, None)
    assert one([True, True, None, False], "bool").counts() == {True: 2, False: 1}


def test_whole_numbers_are_exact_when_beyond_what_a_float_holds() -> None:
    found = one([2**53 + 1, None, -(2**63), 2**63 - 1], "int64")
    assert (found.minimum, found.maximum, found.missing) == (-(2**63), 2**63 - 1, 1)
    assert found.counts() == {2**53 + 1: 1, -(2**63): 1, 2**63 - 1: 1}


def test_quantile_is_nothing_but_zero_when_floats_are_zero() -> None:
    found = one([0.0] * 1100 + [float(number) for number in range(1, 1100)], "float64")
    assert (found.level, found.quantile(0.2)) == (1, 0.0)


def test_values_are_missing_when_they_are_not_finite() -> None:
    found = one([1.0, float("nan"), float("inf"), None, -0.0, 0.0], "float64")
    assert (found.missing, found.minimum, found.maximum) == (3, 0.0, 1.0)
    assert found.counts() == {0.0: 2, 1.0: 1}


@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_quantiles_are_within_one_in_512_when_values_spread_over_magnitudes(kind: ColumnType) -> None:
    rng = np.random.default_rng(3)
    values = np.sort(rng.lognormal(3, 3, 20_001) * rng.choice([-1, 1], 20_001))
    if kind == "int64":
        values = np.trunc(values)
    found = one(values.tolist() if kind == "float64" else values.astype(int).tolist(), kind)
    for share in (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0):
        wanted = values[max(0, int(np.ceil(share * 20_001)) - 1)]
        assert found.quantile(share) == pytest.approx(wanted, rel=1 / 512, abs=1e-12)


def test_quantiles_are_exact_when_whole_numbers_are_small() -> None:
    found = one(list(range(-1023, 1024)), "int64")
    assert found.level == 1
    assert [found.quantile(share) for share in (0, 0.25, 0.5, 1)] == [-1023.0, -512.0, 0.0, 1023.0]


def test_quantiles_are_exact_when_each_value_is_counted() -> None:
    found = one([1_000_003, 2_000_003, 3_000_003, None], "int64")
    assert [found.quantile(share) for share in (0, 0.5, 1)] == [1_000_003.0, 2_000_003.0, 3_000_003.0]


@given(value=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1))
def test_bucket_holds_its_value_when_edges_are_told(value: float) -> None:
    kind: ColumnType = "int64" if isinstance(value, int) else "float64"
    low, high = bucket_edges(kind, bucket_of(kind, value))
    assert low <= float(value) <= high
    if kind == "int64":
        found = one([value], "int64")
        assert list(found.histogram) == [bucket_of(kind, value)]


def test_times_count_by_day_when_before_1970() -> None:
    times = [
        datetime.datetime(1969, 12, 31, 23, tzinfo=datetime.UTC),
        datetime.datetime(2013, 11, 1, tzinfo=datetime.UTC),
    ]
    found = one(times, "timestamp")
    assert dict(found.histogram) == {-1: 1, 16010: 1}
    assert (found.minimum, found.maximum) == (-3_600_000_000, 16010 * 86_400_000_000)
    assert dict(one([datetime.date(1969, 12, 31)], "date").histogram) == {-1: 1}


def test_lengths_are_told_when_a_column_is_binary() -> None:
    builder = StatisticsBuilder(columns(x="binary"))
    builder.add(pl.DataFrame({"x": [b"abc", None, b"", b"defg"]}))
    found = builder.finish()["x"]
    assert (found.missing, found.minimum, found.maximum, dict(found.histogram)) == (1, 0, 4, {0: 1, 3: 1, 4: 1})


def test_column_is_missing_throughout_when_the_frame_lacks_it() -> None:
    found = statistics(pl.DataFrame({"x": [1, 2]}), columns(x="int64", y="string"))["y"]
    assert (found.rows, found.missing, found.counts()) == (2, 2, {})


def test_storage_error_names_the_file_when_statistics_are_damaged() -> None:
    raw = statistics(pl.DataFrame({"x": [1]}), columns(x="int64")).to_json()
    with pytest.raises(StorageError, match=r"table/statistics\.json holds no statistics"):
        TableStatistics.from_json(raw[:-9], "table/statistics.json")
