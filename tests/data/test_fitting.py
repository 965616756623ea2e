"""What features learn: exact sums and quantiles, and the same JSON by any split and order of the rows."""

from __future__ import annotations

import datetime
import itertools
import math
import statistics
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlewheel.data.encoding.exact_sums import ExactMoments
from paddlewheel.data.encoding.quantiles import Quantiles
from paddlewheel.data.features import fit, fit_files
from paddlewheel.data.row_batches import read_batches
from paddlewheel.recipe_data import Feature

from .every_kind import EVERY_KIND, ROW, rows_frame

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def feature_of(kind: str, **parameters: object) -> Feature:
    return Feature(name="f", kind=kind, columns=("c",), **parameters)  # type: ignore[arg-type]


def moments(*parts: list[float]) -> ExactMoments:
    made = ExactMoments()
    for part in parts:
        made.add(np.array(part, np.float64))
    return made


def quantiles(values: list[float], bins: int, *, keep: int, cut: int) -> tuple[float, ...]:
    found, again = Quantiles(bins, keep=keep), True
    while again:
        found.add(np.array(values[:cut], np.float64))
        found.add(np.array(values[cut:], np.float64))
        again = found.end_pass()
    return found.edges()


@settings(max_examples=100, deadline=None)
@given(values=st.lists(FINITE, min_size=1, max_size=30), cut=st.integers(0, 30))
def test_mean_is_the_correctly_rounded_one_whatever_the_split(values: list[float], cut: int) -> None:
    whole, split = moments(values), moments(values[cut:], values[:cut][::-1])
    assert whole.mean() == float(sum(map(Fraction, values)) / len(values))
    assert (split.mean(), split.deviation()) == (whole.mean(), whole.deviation())
    if 1e-150 < max(map(abs, values)) < 1e150:
        variance = float(statistics.pvariance(list(map(Fraction, values))))
        assert whole.deviation() == pytest.approx(math.sqrt(variance), rel=1e-15)


def test_sums_are_exact_where_floats_lose_everything() -> None:
    made = moments([1e308, 1.0, -1e308], [5e-324, 1e308, -1e308])
    assert made.mean() == 1 / 6
    assert moments([1e16 + 2, 1e16, 1e16 - 2]).deviation() == pytest.approx(math.sqrt(8 / 3), rel=1e-15)
    assert moments([1.7e308, 1.7e308, -1.7e308]).mean() == pytest.approx(1.7e308 / 3)
    assert moments([5e-324, 5e-324]).deviation() == 0.0
    assert (moments().mean(), moments().deviation()) == (0.0, 0.0)


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(FINITE | st.sampled_from([0.0, -0.0, 1.0, 2.0]), min_size=1, max_size=40),
    bins=st.integers(2, 9),
    cut=st.integers(0, 40),
)
def test_quantiles_of_many_are_those_of_few(values: list[float], bins: int, cut: int) -> None:
    few = quantiles(values, bins, keep=1000, cut=cut)
    assert quantiles(values[::-1], bins, keep=0, cut=cut) == few
    assert [math.copysign(1, edge) for edge in few if edge == 0] in ([], [1.0])
    ordered = sorted(values)
    assert len(set(few)) == len(few)
    assert ordered[0] <= min(few) <= max(few) <= ordered[-1]


def test_quantiles_lie_between_order_statistics() -> None:
    for keep in (0, 100):
        assert quantiles([4.0, 1.0, 0.0, 3.0, 2.0], 4, keep=keep, cut=2) == (1.0, 2.0, 3.0)
        assert quantiles([0.0, 10.0], 4, keep=keep, cut=1) == (2.5, 5.0, 7.5)
        assert quantiles([7.0] * 9, 4, keep=keep, cut=5) == (7.0,)
        assert quantiles([-1.7e308, 1.7e308], 2, keep=keep, cut=1) == (0.0,)
        assert quantiles([], 4, keep=keep, cut=0) == ()
        assert quantiles([float(n) for n in range(101)], 4096, keep=keep, cut=50)[:2] == (100 / 4096, 200 / 4096)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    seed=st.integers(0, 99),
    alone=st.booleans(),
)
def test_any_split_and_order_over_files_and_batches_gives_the_same_json(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, ...]], cuts: list[int], seed: int, alone: bool
) -> None:
    whole = fit(rows_frame(rows), EVERY_KIND).to_json()
    order = np.random.default_rng(seed).permutation(len(rows))
    frame = rows_frame([rows[index] for index in order]).with_columns(picture=pl.lit(b"\x00\xff"))
    folder, edges = tmp_path_factory.mktemp("shards"), [0, *sorted(cuts), len(rows)]
    paths = []
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        paths.append(folder / f"{number}.parquet")
        frame[min(start, len(rows)) : min(end, len(rows))].write_parquet(paths[-1], row_group_size=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paddlewheel.data.row_batches.BATCH_ROWS", 4)
        patch.setattr("paddlewheel.data.encoding.fitting.MERGE_ROWS", 2)
        if alone:  # a pass a feature, as of very many rows
            patch.setattr("paddlewheel.data.features.VALUES_A_PASS", 1)
            patch.setattr("paddlewheel.data.encoding.quantiles.KEEP", 2)
        assert fit_files(paths, EVERY_KIND, rows=len(rows)).to_json() == whole


def test_file_comes_in_batches_of_bounded_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    frame = pl.DataFrame({"n": range(5000), "fat": [f"{n % 7}" * 5000 for n in range(5000)]})  # seven in the file
    frame.write_parquet(path, row_group_size=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paddlewheel.data.row_batches.BATCH_BYTES", 1 << 20)
        batches = list(read_batches(path, ["n", "fat"]))
        narrow = list(read_batches(path, ["n"]))
    assert max(batch.estimated_size() for batch in batches) < 2 << 20
    assert pl.concat(batches).equals(frame)
    assert max(map(len, batches)) < max(map(len, narrow))


def test_vocabulary_is_cut_by_count_then_by_bytes() -> None:
    frame = pl.DataFrame({"c": ["ö", "z", "a", "Z", "a", "a", "z", "ö", "rare"]})
    feature = feature_of("category", min_count=2, max_size=2)
    assert fit(frame, [feature]).features[0].vocabulary == ("a", "z")  # z and ö twice each: z is 7a, ö is c3 b6
    assert fit(frame, [feature_of("category", max_size=99)]).features[0].vocabulary == ("a", "z", "ö", "Z", "rare")


def test_whole_numbers_beyond_the_floats_are_told_apart_when_category() -> None:
    values = [2**53 + 1, None, 2**53, 2**53 + 1, -(2**63)]
    fitted = fit(pl.DataFrame({"c": values}), [feature_of("category")])
    assert fitted.features[0].vocabulary == ("9007199254740993", "-9223372036854775808", "9007199254740992")
    assert fitted.apply(pl.DataFrame({"c": values})).ids_BF[:, 0].tolist() == [1, 0, 3, 1, 2]
    assert fitted.apply(pl.DataFrame({"c": ["9007199254740993", ""]})).ids_BF[:, 0].tolist() == [1, 0]


def test_day_of_the_year_goes_round_a_leap_year_and_before_1970() -> None:
    days = [datetime.date(1968, 1, 1), datetime.date(1968, 12, 31), datetime.date(1969, 7, 2), None]
    frame = pl.DataFrame({"c": days})
    fitted = fit(frame, [feature_of("year_day")])
    assert fitted.dense_names == ("f_sin", "f_cos", "f_missing")
    dense = fitted.apply(frame).dense_BD.tolist()
    last, middle = 2 * math.pi * 365 / 366, 2 * math.pi * 182 / 365
    assert dense == [
        [0, 1, 0],
        [pytest.approx(math.sin(last), abs=1e-6), pytest.approx(math.cos(last), abs=1e-6), 0],
        [pytest.approx(math.sin(middle), abs=1e-6), pytest.approx(math.cos(middle), abs=1e-6), 0],
        [0, 0, 1],
    ]


def test_hour_is_what_the_clock_shows_over_a_change_to_summer_time_and_before_1970() -> None:
    texts = [
        "2014-03-09T06:59:59Z",  # 01:59:59 in New York
        "2014-03-09T07:00:00Z",  # 03:00 of summer time
        "2014-11-02T05:30:00Z",  # 01:30 of summer time
        "2014-11-02T06:30:00Z",  # 01:30 again
        "1969-12-31T23:00:00Z",  # 18:00
        "1900-01-01T05:00:00.000001Z",  # a microsecond past midnight
    ]
    frame = pl.DataFrame({"c": texts}).select(pl.col("c").str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", time_unit="us"))
    fitted = fit(frame, [feature_of("hour", timezone="America/New_York")])
    hours = [2 - 1 / 3600, 3, 1.5, 1.5, 18, 1e-6 / 3600]
    expected = [[math.sin(hour * math.pi / 12), math.cos(hour * math.pi / 12)] for hour in hours]
    np.testing.assert_allclose(fitted.apply(frame).dense_BD, np.array(expected), atol=1e-6)


def test_values_are_clipped_before_they_are_standardised() -> None:
    frame = pl.DataFrame({"c": [-50.0, 1.0, 3.0, 900.0]})  # 0, 1, 3, 4: mean 2, deviation sqrt(2.5)
    fitted = fit(frame, [feature_of("clip", lower=0.0, upper=4.0)])
    assert fitted.features[0].mean == 2.0
    told = fitted.apply(pl.DataFrame({"c": [-1e300, 2.0, 4.5, float("nan"), float("inf"), None]})).dense_BD[:, 0]
    side = 2 / math.sqrt(2.5)
    np.testing.assert_allclose(told, [-side, 0, side, 0, 0, 0], rtol=1e-6)
