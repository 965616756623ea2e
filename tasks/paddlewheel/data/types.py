"""Declared column types as polars types, and the one strict way to them from text or from a near type.

Types are as declared, never inferred: inference turns a whole-number column with one null into floats and loses what
lies beyond 2**53.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from paddlewheel.errors import DataError
from paddlewheel.recipe_data import ColumnType

POLARS_TYPES: Final[dict[ColumnType, Any]] = {
    "string": pl.String,
    "int64": pl.Int64,
    "float64": pl.Float64,
    "bool": pl.Boolean,
    "date": pl.Date,
    "timestamp": pl.Datetime("us", "UTC"),
}
MEANINGS: Final[dict[ColumnType, str]] = {
    "string": "a text",
    "int64": "a whole number of 64 bits",
    "float64": "a finite number",
    "bool": "true or false",
    "date": "a date as 2013-11-01",
    "timestamp": "a time as 2013-11-01T10:00:00Z",
}
BOOL_TEXTS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
DATE_PATTERN: Final = r"^\d{4}-\d\d-\d\d$"
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
        return texts.set(~texts.str.contains(DATE_PATTERN), None).str.to_date("%Y-%m-%d", strict=False)
    zoned = (
        texts.set(~texts.str.contains(TIMESTAMP_PATTERN), None)
        .str.replace(" ", "T", literal=True)
        .str.replace(r"^(.{16})(Z|[+-].*)?$", "${1}:00${2}")
        .str.replace("Z$", "+00:00")
        .str.replace("^(.{10}T[^+-]*)$", "${1}+00:00")
    )
    return zoned.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", strict=False, time_unit="us")


def coerce(series: pl.Series, kind: ColumnType) -> pl.Series:
    """The series as its declared type, where that loses nothing (a whole float as int64, a text that is a number).

    Raises DataError naming the column, the first value that cannot be, and its row.
    """
    wanted = POLARS_TYPES[kind]
    if series.dtype == wanted:
        return series
    if series.dtype == pl.Null:
        return series.cast(wanted)
    if series.dtype in (pl.Categorical, pl.Enum):
        series = series.cast(pl.String)
    values = _near(series, kind)
    if values is None:
        raise DataError(f"column {series.name!r}: {MEANINGS[kind]} is needed ({kind}), these are {series.dtype}")
    missing = series.is_null()
    if series.dtype == pl.String and kind != "string":
        missing = missing | (series == "")
    elif series.dtype.is_float():
        missing = missing | series.is_nan()
    lost = values.is_null() & ~missing
    if lost.any():
        row = lost.arg_max()
        raise DataError(
            f"column {series.name!r}, row {row}: {series[row]!r} is not {MEANINGS[kind]} ({kind}); "
            f"{lost.sum()} of {len(series)} values are not"
        )
    return values


def _near(series: pl.Series, kind: ColumnType) -> pl.Series | None:
    dtype = series.dtype
    if dtype == pl.String:
        return parse_texts(series, kind)
    if kind == "string" and dtype.is_integer():
        return series.cast(pl.String)
    if kind == "int64" and dtype.is_float():
        whole = series.set(~(series == series.floor()), None)
        return whole.set(~whole.is_finite(), None).cast(pl.Int64, strict=False)
    if kind in ("int64", "float64") and (dtype.is_numeric() or dtype == pl.Boolean):
        return series.cast(POLARS_TYPES[kind], strict=False)
    if kind == "timestamp" and dtype == pl.Datetime:
        zoned = series.dt.replace_time_zone("UTC") if dtype.time_zone is None else series.dt.convert_time_zone("UTC")
        return zoned.cast(POLARS_TYPES[kind], strict=False)
    return None
