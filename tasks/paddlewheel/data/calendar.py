"""Days and moments of the years 1 to 9999: what texts of four-digit years and Python's own dates can say.

Parquet and Arrow can hold others, mostly zeros and infinities of other systems; Python fails on the first.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

FIRST_DAY: Final = -719_162  # 0001-01-01, in days since 1970
LAST_DAY: Final = 2_932_896  # 9999-12-31
DAY_UNITS: Final = {"ms": 86_400_000, "us": 86_400_000_000}


def beyond_calendar(values: pl.Series) -> pl.Series:
    """Which of these days or moments lie outside the years 1 to 9999."""
    unit: Any = getattr(values.dtype, "time_unit", None)
    if unit == "ns":  # 64 bits of them reach from 1677 to 2262
        return pl.repeat(False, len(values), eager=True)
    per_day = DAY_UNITS.get(unit, 1)
    numbers = values.to_physical().cast(pl.Int64)
    return (numbers < FIRST_DAY * per_day) | (numbers >= (LAST_DAY + 1) * per_day)


def drop_beyond(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[int, str]]:
    """The frame with nulls for what lies outside the years 1 to 9999, and those rows by index, with the reason."""
    broken: dict[int, str] = {}
    for values in frame.get_columns():
        if values.dtype in (pl.Date, pl.Datetime) and (beyond := beyond_calendar(values)).any():
            frame = frame.with_columns(values.set(beyond.fill_null(False), None))
            for row in beyond.arg_true():
                before = f"{broken[row]}; " if row in broken else ""
                broken[row] = f"{before}{values.name} lies outside the years of four digits"
    return frame, broken
