"""What clocks and calendars say of a time: local ones, of a time zone or of UTC.

On the day of a change to summer time the clock jumps, and so do these values. Zones are those of polars' own copy of
the IANA database.
"""

from __future__ import annotations

import polars as pl

DAY_MICROSECONDS = 86_400 * 1_000_000
HOUR_MICROSECONDS = 3_600 * 1_000_000


def local_time(times: pl.Series, timezone: str | None) -> pl.Series:
    """The times as a clock in the time zone shows them; a date is as it is."""
    return times.dt.convert_time_zone(timezone) if timezone and times.dtype == pl.Datetime else times


def calendar_ids(times: pl.Series, kind: str) -> pl.Series:
    """1 (Monday) to 7 for a weekday, 1 to 12 for a month; null where the time is."""
    return times.dt.weekday() if kind == "weekday" else times.dt.month()


def hour_of_day(times: pl.Series) -> pl.Series:
    """Hours since midnight on the clock with their fraction: float64, 0 <= hour < 24."""
    wall = times.dt.replace_time_zone(None).dt.timestamp("us")
    return (wall % DAY_MICROSECONDS).cast(pl.Float64) / HOUR_MICROSECONDS


def share_of_year(times: pl.Series) -> pl.Series:
    """Days since the year's first day by the days of that year: float64, 0 <= share < 1."""
    days = 365.0 + times.dt.is_leap_year().cast(pl.Float64)
    return (times.dt.ordinal_day().cast(pl.Float64) - 1.0) / days
