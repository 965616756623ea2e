"""Columns of another source for each sample: the row of the same keys, or the last such row up to a moment."""

from __future__ import annotations

import datetime

import polars as pl

from paddlewheel.errors import DataError
from paddlewheel.recipe import Join, Moment

LEFT_TIME, RIGHT_TIME, FOUND = "__left_time", "__right_time", "__found"


def join_source(samples: pl.DataFrame, table: pl.DataFrame, join: Join) -> tuple[pl.DataFrame, int]:
    """(samples with the source's columns as `<source>_<column>`, how many samples found no row).

    An as-of join takes the last row at or before the sample's moment, no older than the tolerance. Raises DataError
    where a lookup would find two rows for one sample.
    """
    left_keys, right_keys = list(join.keys), [f"{join.source.name}_{name}" for name in join.keys.values()]
    right = table.select([column.name for column in join.source.columns])
    if join.kind == "asof" and join.right_time is not None:
        right = right.with_columns(_moment(join.right_time).alias(RIGHT_TIME))
    right = right.rename({column.name: f"{join.source.name}_{column.name}" for column in join.source.columns})
    right = right.with_columns(pl.lit(True).alias(FOUND))
    if join.kind == "asof" and join.left_time is not None:
        joined = _join_asof(samples, right, join, left_keys, right_keys)
    else:
        twice = right.filter(pl.struct(right_keys).is_duplicated())
        if twice.height:
            named = ", ".join(f"{name} {twice[name][0]}" for name in right_keys)
            raise DataError(
                f"{join.source.name} holds {twice.height} rows whose keys are not theirs alone ({named} first); "
                f"name the keys in data.joins' source.key so that the second is refused"
            )
        joined = samples.join(
            right, left_on=left_keys, right_on=right_keys, how="left", coalesce=False, maintain_order="left"
        )
    missed = joined[FOUND].null_count()
    return joined.drop(FOUND), missed


def _join_asof(
    samples: pl.DataFrame, right: pl.DataFrame, join: Join, left_keys: list[str], right_keys: list[str]
) -> pl.DataFrame:
    if join.left_time is None:
        raise DataError(f"the join with {join.source.name} has no left_time")
    tolerance = None if join.tolerance_hours is None else datetime.timedelta(hours=join.tolerance_hours)
    timed = samples.with_columns(_moment(join.left_time).alias(LEFT_TIME)).with_row_index("__row").sort(LEFT_TIME)
    # join_asof drops the right side's keys: they are the left side's wherever a row was found.
    joined = timed.join_asof(
        right.drop_nulls(RIGHT_TIME).sort(RIGHT_TIME),
        left_on=LEFT_TIME,
        right_on=RIGHT_TIME,
        by_left=left_keys,
        by_right=right_keys,
        strategy="backward",
        tolerance=tolerance,
        check_sortedness=False,
        coalesce=True,
    )
    found = pl.col(FOUND).is_not_null()
    copies = [
        pl.when(found).then(pl.col(left)).alias(name)
        for left, name in zip(left_keys, right_keys, strict=True)
        if name not in joined.columns
    ]
    return joined.sort("__row").with_columns(copies).drop("__row", LEFT_TIME, RIGHT_TIME, strict=False)


def _moment(moment: Moment) -> pl.Expr:
    time = pl.col(moment.column)
    return time if moment.plus_minutes is None else time + pl.duration(minutes=pl.col(moment.plus_minutes))
