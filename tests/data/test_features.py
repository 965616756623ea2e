"""Fitted features: values by hand, and the same bits whatever else is in the batch."""

from __future__ import annotations

import datetime
import json
import math

import numpy as np
import polars as pl
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlewheel.data.encoding.fitted import FittedFeatures, Inputs
from paddlewheel.data.features import fit
from paddlewheel.errors import DataError, RecipeError, StorageError
from paddlewheel.recipe_data import Feature

from .conftest import World, make_recipe
from .every_kind import EVERY_KIND, ROW, draw_rows, rows_frame


def utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


def fit_one(frame: pl.DataFrame, kind: str, columns: list[str], **parameters: object) -> FittedFeatures:
    feature = Feature(name="f", kind=kind, columns=tuple(columns), **parameters)  # type: ignore[arg-type]
    return fit(frame, [feature])


def ids(fitted: FittedFeatures, frame: pl.DataFrame) -> list[int]:
    inputs = fitted.apply(frame)
    assert (inputs.ids_BF.dtype, inputs.ids_BF.shape, inputs.dense_BD.shape) == (
        np.int32,
        (len(frame), 1),
        (len(frame), 0),
    )
    assert inputs.ids_BF.max(initial=0) < fitted.id_sizes[0]
    return inputs.ids_BF[:, 0].tolist()


def dense(fitted: FittedFeatures, frame: pl.DataFrame) -> list[list[float]]:
    inputs = fitted.apply(frame)
    assert inputs.dense_BD.dtype == np.float32
    assert inputs.dense_BD.shape == (len(frame), len(fitted.dense_names))
    return [[pytest.approx(value, abs=1e-6) for value in row] for row in inputs.dense_BD.tolist()]


def test_ids_follow_count_then_value_when_category() -> None:
    train = pl.DataFrame({"c": ["b", "a", "z", "z", "z", "a", "b", "rare", None, None, None, None]})
    fitted = fit_one(train, "category", ["c"], min_count=2)
    assert fitted.id_sizes == (4,)
    assert ids(fitted, pl.DataFrame({"c": ["z", "a", "b", "rare", "new", None]})) == [1, 2, 3, 0, 0, 0]


def test_ids_are_of_the_text_when_category_of_whole_numbers() -> None:
    fitted = fit_one(pl.DataFrame({"c": [10, 9, 9, 10]}), "category", ["c"])
    assert ids(fitted, pl.DataFrame({"c": [10, 9, 1]})) == [1, 2, 0]  # "10" sorts before "9"


def test_ids_are_xxh3_of_the_text_when_hash_or_cross() -> None:
    frame = pl.DataFrame({"a": ["EWR", "JFK", None], "b": [5, None, 7]})
    assert ids(fit_one(frame, "hash", ["a"], buckets=100), frame) == [
        xxhash.xxh3_64_intdigest(b"EWR") % 100 + 1,
        xxhash.xxh3_64_intdigest(b"JFK") % 100 + 1,
        0,
    ]
    crossed = fit_one(frame, "cross", ["a", "b"], buckets=100)
    assert ids(crossed, frame) == [xxhash.xxh3_64_intdigest(b"EWR\x1f5") % 100 + 1, 0, 0]
    assert crossed.id_sizes == (101,)


def test_hash_is_known_when_computed_elsewhere() -> None:
    frame = pl.DataFrame({"a": ["", "abc"]})
    # xxh3_64 of "" and "abc" as the reference implementation gives them
    assert ids(fit_one(frame, "hash", ["a"], buckets=1000), frame) == [
        0x2D06800538D394C2 % 1000 + 1,
        0x78AF5F94892F3950 % 1000 + 1,
    ]


def test_ids_are_bins_when_quantile() -> None:
    train = pl.DataFrame({"x": [0.0, 1.0, 2.0, 3.0, 4.0, None]})
    fitted = fit_one(train, "quantile", ["x"], bins=4)  # edges 1, 2, 3
    assert fitted.id_sizes == (5,)
    assert ids(fitted, pl.DataFrame({"x": [-9.0, 1.0, 1.5, 3.0, 99.0, None]})) == [1, 2, 2, 4, 4, 0]


def test_ids_are_local_days_and_months_when_weekday_and_month() -> None:
    # 2013-11-01 was a Friday; 03:00 UTC of it is still Thursday, October in New York
    frame = pl.DataFrame({"t": [utc("2013-11-01T03:00:00"), utc("2013-11-03T12:00:00"), None]})
    assert ids(fit_one(frame, "weekday", ["t"], timezone="America/New_York"), frame) == [4, 7, 0]
    assert ids(fit_one(frame, "weekday", ["t"]), frame) == [5, 7, 0]


def test_month_is_read_from_a_date() -> None:
    frame = pl.DataFrame({"t": [datetime.date(2013, 1, 31), datetime.date(2013, 12, 1), None]})
    assert ids(fit_one(frame, "month", ["t"]), frame) == [1, 12, 0]


def test_numbers_are_standardised_by_the_training_window_when_standard() -> None:
    fitted = fit_one(pl.DataFrame({"x": [1, 2, 3, 6, None]}), "standard", ["x"])  # mean 3, variance 3.5
    assert fitted.dense_names == ("f", "f_missing")
    assert dense(fitted, pl.DataFrame({"x": [3, 10, None]})) == [[0, 0], [7 / math.sqrt(3.5), 0], [0, 1]]


def test_there_is_no_indicator_when_training_had_nothing_missing() -> None:
    fitted = fit_one(pl.DataFrame({"x": [1.0, 3.0]}), "standard", ["x"])
    assert fitted.dense_names == ("f",)
    assert dense(fitted, pl.DataFrame({"x": [None, 3.0, float("nan"), float("inf")]})) == [[0], [1], [0], [0]]


def test_constant_column_is_centred_and_not_divided_by_nothing() -> None:
    fitted = fit_one(pl.DataFrame({"x": [0.1] * 7}), "standard", ["x"])
    assert dense(fitted, pl.DataFrame({"x": [0.1, 1.1]})) == [[0], [1]]


def test_values_stay_finite_when_the_training_window_overflows() -> None:
    fitted = fit_one(pl.DataFrame({"x": [1.7e308, 1.7e308, -1.7e308]}), "standard", ["x"])
    assert np.isfinite(FittedFeatures.from_json(fitted.to_json()).apply(pl.DataFrame({"x": [1.7e308]})).dense_BD).all()


def test_column_without_any_value_gives_zero_and_its_indicator() -> None:
    fitted = fit_one(pl.DataFrame({"x": [None, None]}, schema={"x": pl.Float64}), "standard", ["x"])
    assert dense(fitted, pl.DataFrame({"x": [None, 5.0]})) == [[0, 1], [5, 0]]


def test_logarithm_is_standardised_when_log1p() -> None:
    fitted = fit_one(pl.DataFrame({"x": [0.0, math.e**2 - 1]}), "log1p", ["x"])  # logarithms 0 and 2
    assert dense(fitted, pl.DataFrame({"x": [0.0, math.e - 1, -1.0, -5.0]})) == [[-1], [0], [0], [0]]


def test_age_is_the_difference_of_years_standardised() -> None:
    train = pl.DataFrame({"year": [2013, 2013, 2013], "built": [2003, 1993, None]})  # ages 10, 20
    fitted = fit_one(train, "age", ["year", "built"])
    assert fitted.columns == ("year", "built")
    assert dense(fitted, pl.DataFrame({"year": [2013, None, 2020], "built": [1998, 2000, 2000]})) == [
        [0, 0], [0, 1], [1, 0],
    ]  # fmt: skip


def test_clock_goes_round_the_day() -> None:
    fitted = fit_one(pl.DataFrame({"t": [0, 600, None]}), "clock", ["t"])
    assert fitted.dense_names == ("f_sin", "f_cos", "f_missing")
    half_past_six = math.radians(277.5)  # 18.5 hours of 15 degrees each
    assert dense(fitted, pl.DataFrame({"t": [0, 600, 1200, 1830, 2400, None]})) == [
        [0, 1, 0],
        [1, 0, 0],
        [0, -1, 0],
        [math.sin(half_past_six), math.cos(half_past_six), 0],
        [0, 1, 0],
        [0, 0, 1],
    ]


def test_cyclic_has_its_period() -> None:
    fitted = fit_one(pl.DataFrame({"d": [90.0, 360.0]}), "cyclic", ["d"], period=360)
    assert fitted.dense_names == ("f_sin", "f_cos")
    assert dense(fitted, pl.DataFrame({"d": [90.0, 360.0, 225.0, None]})) == [
        [1, 0], [0, 1], [-math.sqrt(0.5), -math.sqrt(0.5)], [0, 0],
    ]  # fmt: skip


def same_bits(first: Inputs, second: Inputs) -> bool:
    return first.ids_BF.tobytes() == second.ids_BF.tobytes() and first.dense_BD.tobytes() == second.dense_BD.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    train=st.lists(ROW, min_size=1, max_size=12), rows=st.lists(ROW, min_size=1, max_size=40), seed=st.integers(0, 99)
)
def test_row_gives_the_same_bits_alone_in_a_batch_and_in_any_order(
    train: list[tuple[object, ...]], rows: list[tuple[object, ...]], seed: int
) -> None:
    fitted = FittedFeatures.from_json(fit(rows_frame(train), EVERY_KIND).to_json())
    batch = fitted.apply(rows_frame(rows))
    assert np.isfinite(batch.dense_BD).all()
    assert (batch.ids_BF >= 0).all()
    assert (batch.ids_BF < np.array(fitted.id_sizes)).all()
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = fitted.apply(rows_frame([rows[index] for index in order]))
    assert same_bits(shuffled, Inputs(ids_BF=batch.ids_BF[order], dense_BD=batch.dense_BD[order]))
    for index in order[:3]:
        alone = Inputs(ids_BF=batch.ids_BF[index : index + 1], dense_BD=batch.dense_BD[index : index + 1])
        assert same_bits(fitted.apply(rows_frame([rows[index]])), alone)


def test_same_bits_when_read_from_json_and_from_other_types() -> None:
    frame = pl.DataFrame({"n": [5, None, 7], "s": ["a", "b", None], "x": [1.0, 2.0, None]})
    features = [
        Feature(name="n", kind="category", columns=("n",)),
        Feature(name="s", kind="category", columns=("s",)),
        Feature(name="x", kind="standard", columns=("x",)),
    ]
    fitted = fit(frame, features)
    again = FittedFeatures.from_json(fitted.to_json())
    assert again == fitted
    other = pl.DataFrame({"x": ["1", "2", ""], "n": [5.0, None, 7.0], "s": ["a", "b", None], "more": [1, 2, 3]})
    assert same_bits(again.apply(other), fitted.apply(frame))
    nothing = pl.DataFrame({"x": [None], "n": [None], "s": [None]})
    assert same_bits(again.apply(nothing), again.apply(pl.DataFrame(nothing, schema=frame.schema)))


def test_every_column_is_told_when_rows_do_not_fit() -> None:
    fitted = fit(
        pl.DataFrame({"n": [5], "x": [1.0], "s": ["a"]}),
        [Feature(name=name, kind="category", columns=(name,)) for name in ("n", "x", "s")],
    )
    with pytest.raises(DataError) as error:
        fitted.apply(pl.DataFrame({"n": [1.0, 5.5], "x": ["1", "far"]}))
    assert str(error.value) == (
        "the rows do not fit the model's features: column 'n', row 2: 5.5 is not a whole number of 64 bits (int64); "
        "1 of 2 values are not; column 'x', row 2: 'far' is not a finite number (float64); 1 of 2 values are not; "
        "column 's' (string) is missing"
    )


def test_storage_error_when_json_is_of_another_version() -> None:
    raw = fit_one(pl.DataFrame({"x": [1.0]}), "standard", ["x"]).to_json()
    tree = json.loads(raw) | {"version": 9}
    with pytest.raises(StorageError, match="features of version 9, this program reads 2"):
        FittedFeatures.from_json(json.dumps(tree).encode())
    with pytest.raises(StorageError, match="not fitted features"):
        FittedFeatures.from_json(raw[:40])


def test_features_of_a_model_published_by_version_1_are_applied_as_then() -> None:
    nothing = {"buckets": 0, "deviation": 1.0, "edges": [], "indicator": False, "mean": 0.0, "period": 0.0}
    nothing |= {"timezone": None, "vocabulary": []}
    tree = {
        "version": 1,
        "columns": [{"name": "s", "type": "string"}, {"name": "n", "type": "int64"}],
        "features": [
            nothing | {"name": "c", "kind": "category", "columns": ["s"], "vocabulary": ["JFK", "EWR"]},
            nothing | {"name": "x", "kind": "cross", "columns": ["s", "n"], "buckets": 100},
            nothing
            | {"name": "a", "kind": "standard", "columns": ["n"], "mean": 5.0, "deviation": 2.0, "indicator": True},
            nothing | {"name": "t", "kind": "clock", "columns": ["n"]},
        ],
    }
    inputs = FittedFeatures.from_json(json.dumps(tree).encode()).apply(
        pl.DataFrame({"s": ["EWR", None], "n": [600, None]})
    )
    assert inputs.ids_BF.tolist() == [[2, xxhash.xxh3_64_intdigest(b"EWR\x1f600") % 100 + 1], [0, 0]]
    assert inputs.dense_BD.tolist() == [[297.5, 0, 1, pytest.approx(0, abs=1e-7)], [0, 1, 0, 0]]


def test_no_rows_give_no_inputs() -> None:
    fitted = fit(draw_rows(50, seed=1), EVERY_KIND)
    inputs = fitted.apply(draw_rows(50, seed=1).clear())
    assert inputs.ids_BF.shape == (0, len(fitted.id_names))
    assert inputs.dense_BD.shape == (0, len(fitted.dense_names))
    missing = fitted.apply(rows_frame([(None,) * 7] * 2))
    assert not missing.ids_BF.any()


def test_recipe_error_when_there_is_no_such_time_zone() -> None:
    with pytest.raises(RecipeError, match="feature 'f': there is no time zone 'Mars/North'"):
        fit_one(pl.DataFrame({"t": [utc("2013-11-01T03:00:00")]}), "hour", ["t"], timezone="Mars/North")


def test_data_error_when_nothing_was_left_to_learn_from() -> None:
    with pytest.raises(DataError, match=r"no training rows to fit features on; widen data\.window\.train_days"):
        fit_one(pl.DataFrame({"x": []}, schema={"x": pl.Float64}), "standard", ["x"])
    with pytest.raises(DataError, match="the training rows have no column y; they have x"):
        fit_one(pl.DataFrame({"x": [1.0]}), "standard", ["y"])


def test_only_the_training_days_are_learnt_from_when_fitted(world: World) -> None:
    world.write_days("2013-10-28", 4, trips=4)
    uri = world.chain(make_recipe(), "2013-10-31")["features"]
    manifest = world.manifest(uri)
    first = world.store.read(manifest.files[0].key)
    # miles 100, 200, 300, 400 on each of three days
    miles = next(one for one in FittedFeatures.from_json(first).features if one.name == "miles")
    assert (miles.mean, miles.deviation) == (250.0, pytest.approx(math.sqrt(12500)))
    assert manifest.facts["rows"] == 12
    world.write_trips("2013-10-31", ["2013-10-31,1,2013-10-31T10:00:00Z,0,EWR,N1,99999,,30"])
    again = world.manifest(world.chain(make_recipe(), "2013-10-31")["features"])
    assert world.store.read(again.files[0].key) == first
