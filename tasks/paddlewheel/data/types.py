"""Declared column types as polars types, and the one strict way to them from text or from a near type.

Types are as declared, never inferred: inference turns a whole-number column with one null into floats and loses what
lies beyond 2**53.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from paddlewheel.data.calendar import beyond_calendar
from paddlewheel.errors import DataError
from paddlewheel.recipe_data import ColumnType

POLARS_TYPES: Final[dict[ColumnType, Any]] = {
    "string": pl.String,
    "int64": pl.Int64,
    "float64": pl.Float64,
    "bool": pl.Boolean,
    "date": pl.Date,
    "timestamp": pl.Datetime("us", "UTC"),
    "binary": pl.Binary,
}
MEANINGS: Final[dict[ColumnType, str]] = {
    "string": "a text",
    "int64": "a whole number of 64 bits",
    "float64": "a finite number",
    "bool": "true or false",
    "date": "a date as 2013-11-01",
    "timestamp": "a time as 2013-11-01T10:00:00Z",
    "binary": "bytes in base64",
}
BOOL_TEXTS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
DATE_PATTERN: Final = r"^\d{4}-\d\d-\d\d$"
BASE64_PATTERN: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
TIMESTAMP_PATTERN: Final = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?$"


def column_type(dtype: Any, column: str) -> ColumnType:
    """The declared type that is stored as this polars type. Raises DataError naming the column for any other."""
    for kind, stored in POLARS_TYPES.items():
        if dtype == stored:
            return kind
    raise DataError(f"the column {column!r} has the type {dtype}; a recipe's columns are {', '.join(POLARS_TYPES)}")


def parse_texts(texts: pl.Series, kind: ColumnType) -> pl.Series:
    """Values of a declared type; null where a text is not one of it. A time without an offset is taken as UTC."""
    if kind == "string":
        return texts
    if kind == "int64":
        return texts.cast(pl.Int64, strict=False)
    if kind == "float64":
        values = texts.cast(pl.Float64, strict=False)
        return values.set(~values.is_finite(), None)
    if kind == "bool":
        return texts.str.to_lowercase().replace_strict(BOOL_TEXTS, default=None, return_dtype=pl.Boolean)
    if kind == "date":
        days = texts.set(~texts.str.contains(DATE_PATTERN), None).str.to_date("%Y-%m-%d", strict=False)
        return days.set(beyond_calendar(days), None)
    if kind == "binary":
        return texts.set(~texts.str.contains(BASE64_PATTERN), None).str.decode("base64", strict=False)
    zoned = (
        texts.set(~texts.str.contains(TIMESTAMP_PATTERN), None)
        .str.replace(" ", "T", literal=True)
        .str.replace(r"^(.{16})(Z|[+-].*)?$", "${1}:00${2}")
        .str.replace("Z$", "+00:00")
        .str.replace("^(.{10}T[^+-]*)$", "${1}+00:00")
    )
    moments = zoned.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", strict=False, time_unit="us")
    return moments.set(beyond_calendar(moments), None)


def coerce(series: pl.Series, kind: ColumnType) -> pl.Series:
    """The series as its declared type, where that loses nothing (a whole float as int64, a text that is a number).

    Raises DataError naming the column, the first value that cannot be, and its row.
    """
    if series.dtype == POLARS_TYPES[kind]:
        return series
    values, missing = take(series, kind)
    if series.dtype == pl.String and kind != "string":
        missing = missing | (series == "")
    lost = values.is_null() & ~missing
    if lost.any():
        row = lost.arg_max()
        raise DataError(
            f"column {series.name!r}, row {row + 1}: {series[row]!r} is not {MEANINGS[kind]} ({kind}); "
            f"{lost.sum()} of {len(series)} values are not"
        )
    return values


def take(series: pl.Series, kind: ColumnType) -> tuple[pl.Series, pl.Series]:
    """(values, missing): the series as its declared type, null where that would lose something; what was null before.

    A float that is no number counts as missing, one that is infinite is lost. Raises DataError naming the column where
    no value of its type can be one of the declared.
    """
    if series.dtype == pl.Null:
        return series.cast(POLARS_TYPES[kind]), series.is_null()
    if series.dtype in (pl.Categorical, pl.Enum):
        series = series.cast(pl.String)
    values = _near(series, kind)
    if values is None:
        raise DataError(f"column {series.name!r}: {MEANINGS[kind]} is needed ({kind}), these are {series.dtype}")
    missing = series.is_null()
    if series.dtype.is_float():
        missing = missing | series.is_nan().fill_null(False)
    return values, missing


def _near(series: pl.Series, kind: ColumnType) -> pl.Series | None:
    dtype = series.dtype
    if dtype == pl.String:
        return parse_texts(series, kind)
    if kind == "float64" and dtype.is_float():
        wide = series.cast(pl.Float64)
        return wide.set(~wide.is_finite(), None)
    if dtype == POLARS_TYPES[kind]:
        return series
    if kind == "string" and dtype.is_integer():
        return series.cast(pl.String)
    if kind == "int64" and dtype.is_float():
        whole = series.set(~(series == series.floor()), None)
        return whole.set(~whole.is_finite(), None).cast(pl.Int64, strict=False)
    if kind == "int64" and dtype.is_decimal():
        whole = series.cast(pl.Int64, strict=False)
        return whole.set(whole.cast(dtype, strict=False).fill_null(0) != series, None)
    if kind in ("int64", "float64") and (dtype.is_numeric() or dtype == pl.Boolean):
        return series.cast(POLARS_TYPES[kind], strict=False)
    if kind == "bool" and dtype.is_integer():
        return series.set((series != 0) & (series != 1), None).cast(pl.Boolean, strict=False)
    if kind == "timestamp" and dtype == pl.Datetime:
        zoned = series.dt.replace_time_zone("UTC") if dtype.time_zone is None else series.dt.convert_time_zone("UTC")
        near = zoned.cast(POLARS_TYPES[kind], strict=False)
        return near.set(near.cast(zoned.dtype) != zoned, None) if dtype.time_unit == "ns" else near
    if kind == "date" and dtype == pl.Datetime:
        days = series.dt.date()
        return days.set(days.cast(dtype) != series, None) if dtype.time_zone in (None, "UTC") else None
    if kind == "string" and dtype == pl.Binary:
        return series.cast(pl.String, strict=False)
    return None
