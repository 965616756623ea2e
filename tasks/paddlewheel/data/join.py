"""Columns of another source for each sample: the row of the same keys, or the last such row up to a moment."""

from __future__ import annotations

import datetime

import polars as pl

from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Join, Moment

KEY, TIME, FOUND, ROW = "(key {})", "(time)", "(found)", "(row)"
UTC_TIME = pl.Datetime("us", "UTC")


def join_source(samples: pl.DataFrame, table: pl.DataFrame, join: Join) -> tuple[pl.DataFrame, int]:
    """(samples in their order with the source's columns as `<source>_<column>`, how many samples found no row).

    Columns that are known only after the prediction are left out. An as-of join takes the last row at or before the
    sample's moment, no older than the tolerance; of two rows of one moment the later one in the files. A missing key or
    moment finds nothing. Raises DataError where a lookup would find two rows for one sample.
    """
    keys = [KEY.format(index) for index in range(len(join.keys))]
    left = samples.with_columns(pl.col(name).alias(key) for name, key in zip(join.keys, keys, strict=True))
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
    if join.left_time is None or join.right_time is None:
        _check_once(right, join, keys)
        joined = left.join(right, on=keys, how="left", maintain_order="left")
    else:
        joined = _join_asof(left.with_columns(_moment(join.left_time)), right.drop_nulls(TIME), join, keys)
    missed = joined[FOUND].null_count()
    return joined.drop(*keys, FOUND), missed


def _join_asof(left: pl.DataFrame, right: pl.DataFrame, join: Join, keys: list[str]) -> pl.DataFrame:
    tolerance = None if join.tolerance_hours is None else datetime.timedelta(hours=join.tolerance_hours)
    numbered = left.with_row_index(ROW)
    joined = (
        numbered.drop_nulls(TIME)
        .sort(TIME)
        .join_asof(
            right.sort(TIME, maintain_order=True),
            on=TIME,
            by=keys,
            strategy="backward",
            tolerance=tolerance,
            check_sortedness=False,  # polars cannot check it within groups; both sides are sorted above
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


def _moment(moment: Moment) -> pl.Expr:
    time = pl.col(moment.column).cast(UTC_TIME)
    if moment.plus_minutes is not None:
        minutes = pl.col(moment.plus_minutes).cast(pl.Float64)
        time = time + pl.duration(microseconds=(minutes * 60e6).round().cast(pl.Int64))
    return time.alias(TIME)
