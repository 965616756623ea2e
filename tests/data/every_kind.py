"""A feature of every kind, and rows to fit and to apply them on."""

from __future__ import annotations

import datetime
from typing import get_args

import numpy as np
import polars as pl
from hypothesis import strategies as st

from paddlewheel.recipe_data import Feature, FeatureKind

EVERY_KIND = [
    Feature(name="category", kind="category", columns=("s",), min_count=2, max_size=50),
    Feature(name="number_category", kind="category", columns=("n",)),
    Feature(name="float_category", kind="category", columns=("x",)),
    Feature(name="hash", kind="hash", columns=("s",), buckets=97),
    Feature(name="time_hash", kind="hash", columns=("t",), buckets=2**30),
    Feature(name="cross", kind="cross", columns=("s", "n", "b", "d"), buckets=1013),
    Feature(name="quantile", kind="quantile", columns=("x",), bins=8),
    Feature(name="weekday", kind="weekday", columns=("t",), timezone="America/New_York"),
    Feature(name="month", kind="month", columns=("d",)),
    Feature(name="hour", kind="hour", columns=("t",), timezone="Europe/Berlin"),
    Feature(name="year_day", kind="year_day", columns=("t",), timezone="America/New_York"),
    Feature(name="standard", kind="standard", columns=("x",)),
    Feature(name="flag", kind="standard", columns=("b",)),
    Feature(name="log1p", kind="log1p", columns=("x",)),
    Feature(name="clip", kind="clip", columns=("x",), lower=-2.5, upper=1e6),
    Feature(name="clock", kind="clock", columns=("n",)),
    Feature(name="cyclic", kind="cyclic", columns=("x",), period=7.3),
    Feature(name="age", kind="age", columns=("n", "m")),
    Feature(name="multi", kind="multi", columns=("s",), length=3, separator="|", min_count=1),
    Feature(name="words", kind="words", columns=("s",), length=5, buckets=211, ngram=3),
    Feature(name="characters", kind="characters", columns=("s",), length=6, buckets=211, ngram=5),
    Feature(name="bytes", kind="bytes", columns=("s",), length=9),
]
if {feature.kind for feature in EVERY_KIND} != set(get_args(FeatureKind)):
    raise ValueError("a kind of feature is missing here")

SCHEMA = {
    "s": pl.String, "n": pl.Int64, "m": pl.Int64, "b": pl.Boolean, "x": pl.Float64, "d": pl.Date,
    "t": pl.Datetime("us", "UTC"),
}  # fmt: skip
FIRST, LAST = datetime.datetime(1890, 1, 1), datetime.datetime(2100, 1, 1)
TEXT = st.sampled_from(["EWR", "JFK", "", "ö", "a\x1fb", "a|b|", "\x00", "the quick  fox", "日本語です"])
ROW = st.tuples(
    st.none() | TEXT | st.text(max_size=6),
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2400) | st.sampled_from([2**53, 2**53 + 1]),
    st.none() | st.integers(1900, 2100),
    st.none() | st.booleans(),
    st.none() | st.floats() | st.floats(-100, 100) | st.sampled_from([0.0, -0.0, 1.0]),
    st.none() | st.dates(FIRST.date(), LAST.date()),
    st.none() | st.datetimes(FIRST, LAST, timezones=st.just(datetime.UTC)),
)


def rows_frame(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def draw_rows(count: int, seed: int) -> pl.DataFrame:
    """Rows as a generator draws them, a tenth of each column missing: texts of all sorts, times from 1900 to 2100."""
    draw = np.random.default_rng(seed)
    words = [
        "the",
        "Straße",
        "日本語",
        "a|b",
        "x\x1fy",
        "NUL\x00",
        'say "no"',
        "two\nlines",
        "e\u0301",
        "\U0001f600",
        "1",
    ]
    texts = [" ".join(draw.choice(words, draw.integers(1, 6))) for _ in range(count)]
    numbers = np.where(draw.random(count) < 0.5, draw.integers(0, 2400, count), 2**53 + draw.integers(0, 3, count))
    floats = np.where(draw.random(count) < 0.5, draw.lognormal(3, 4, count), -draw.integers(0, 3, count).astype(float))
    start, end = int(FIRST.timestamp()), int(LAST.timestamp())
    columns = {
        "s": pl.Series(texts),
        "n": pl.Series(numbers),
        "m": pl.Series(draw.integers(1900, 2100, count)),
        "b": pl.Series(draw.random(count) < 0.3),
        "x": pl.Series(floats),
        "d": pl.Series(draw.integers(-30_000, 40_000, count).astype(np.int32)).cast(pl.Date),
        "t": pl.Series(draw.integers(start * 10**6, end * 10**6, count)).cast(pl.Datetime("us", "UTC")),
    }
    return pl.DataFrame(
        {name: column.set(pl.Series(draw.random(count) < 0.1), None) for name, column in columns.items()}
    )
