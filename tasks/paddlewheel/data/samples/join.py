"""Columns of another source for each sample: the row of the same keys, or the last such row up to a moment.

The other source is held in memory, with the columns that are joined alone (of an as-of join the days that can matter);
the samples come by in pieces. Rejected: a sorted merge of both sides on disk, for sources that describe stations,
planes and users and are small beside the rows.
"""

from __future__ import annotations

import datetime
from typing import Final

import polars as pl

from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Join, Moment

KEY, TIME, FOUND, ROW = "(key {})", "(time)", "(found)", "(row)"
UTC_TIME = pl.Datetime("us", "UTC")
MOST_MINUTES: Final = 2e9  # about the 3,800 years before and after; beyond, a moment in microseconds could overflow


def joined_columns(join: Join) -> list[str]:
    """The columns of the join's source that it reads."""
    known = [column.name for column in join.source.columns if column.known == "before"]
    moment = join.right_time
    times = [] if moment is None else [moment.column, *filter(None, [moment.plus_minutes])]
    return list(dict.fromkeys([*join.keys.values(), *times, *known]))


def build_right(table: pl.DataFrame, join: Join) -> pl.DataFrame:
    """The source's rows as `join_right` looks them up: keys, moment, and columns as `<source>_<column>`.

    Rows without a key or moment leave, and columns that are known only after the prediction. Raises DataError where a
    lookup would find two rows for one sample.
    """
    keys = _key_names(join)
    right = table.select(
        *(pl.col(name).alias(key) for name, key in zip(join.keys.values(), keys, strict=True)),
        *([] if join.right_time is None else [_moment(join.right_time)]),
        *(
            pl.col(one.name).alias(f"{join.source.name}_{one.name}")
            for one in join.source.columns
            if one.known == "before"
        ),
        pl.lit(True).alias(FOUND),
    ).drop_nulls(keys)
    if join.right_time is None:
        _check_once(right, join, keys)
        return right
    return right.drop_nulls(TIME).sort(TIME, maintain_order=True)


def join_right(samples: pl.DataFrame, right: pl.DataFrame, join: Join) -> tuple[pl.DataFrame, int]:
    """(samples in their order with the columns of `build_right`, how many samples found no row).

    An as-of join takes the last row at or before the sample's moment, no older than the tolerance; of two rows of one
    moment the later one in the files, in the order of their paths. A missing key or moment finds nothing.
    """
    keys = _key_names(join)
    left = samples.with_columns(pl.col(name).alias(key) for name, key in zip(join.keys, keys, strict=True))
    if join.left_time is None:
        joined = left.join(right, on=keys, how="left", maintain_order="left")
    else:
        joined = _join_asof(left.with_columns(_moment(join.left_time)), right, join, keys)
    missed = joined[FOUND].null_count()
    return joined.drop(*keys, FOUND), missed


def _join_asof(left: pl.DataFrame, right: pl.DataFrame, join: Join, keys: list[str]) -> pl.DataFrame:
    tolerance = None if join.tolerance_hours is None else datetime.timedelta(hours=join.tolerance_hours)
    numbered = left.with_row_index(ROW)
    joined = (
        numbered.drop_nulls(TIME)
        .sort(TIME)
        .join_asof(
            right,
            on=TIME,
            by=keys,
            strategy="backward",
            tolerance=tolerance,
            check_sortedness=False,  # polars cannot check it within groups; both sides are sorted by TIME
        )
    )
    whole = pl.concat([joined, numbered.filter(pl.col(TIME).is_null())], how="diagonal")
    return whole.sort(ROW).drop(ROW, TIME)


def _check_once(right: pl.DataFrame, join: Join, keys: list[str]) -> None:
    twice = right.filter(pl.struct(keys).is_duplicated())
    if twice.height:
        named = ", ".join(f"{name} {twice[key][0]}" for name, key in zip(join.keys.values(), keys, strict=True))
        raise DataError(
            f"{join.source.name}: {twice.height} rows share their {', '.join(join.keys.values())} with another "
            f"({named} first), and a lookup needs one; name these columns in the source's key, so that the later row "
            "is refused"
        )


def _key_names(join: Join) -> list[str]:
    return [KEY.format(index) for index in range(len(join.keys))]


def _moment(moment: Moment) -> pl.Expr:
    """UTC to the microsecond; a date is its midnight. Null where a part is null or lies out of all bounds."""
    time = pl.col(moment.column).cast(UTC_TIME)
    if moment.plus_minutes is not None:
        minutes = pl.col(moment.plus_minutes).cast(pl.Float64)
        minutes = pl.when(minutes.abs() <= MOST_MINUTES).then(minutes)
        time = time + pl.duration(microseconds=(minutes * 60e6).round().cast(pl.Int64))
    return time.alias(TIME)
