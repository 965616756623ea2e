"""The same metrics by slice, one value of one column each: a good average may hide a group that got worse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from paddlewheel.errors import DataError
from paddlewheel.evaluation.compare import Comparison, Scored, compare, points_only, seed_of
from paddlewheel.recipe import Evaluation

MAX_SLICES = 100  # of one column; a column of thousands of values is no way to cut a holdout
MISSING = "(missing)"


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One value of the column, its rows, how many have label 1, and the comparison on them.

    `enough`: at least `min_slice_rows`; a smaller slice has point values alone, without intervals.
    """

    value: str
    rows: int
    positives: int
    enough: bool
    comparison: Comparison

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        facts = {"value": self.value, "rows": self.rows, "positives": self.positives, "enough": self.enough}
        return facts | self.comparison.to_json()


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The slices of one column, the largest first; `left_out` values beyond MAX_SLICES with `left_out_rows` rows."""

    column: str
    slices: tuple[Slice, ...]
    left_out: int
    left_out_rows: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "column": self.column,
            "slices": [one.to_json() for one in self.slices],
            "left_out": self.left_out,
            "left_out_rows": self.left_out_rows,
        }


def cut_by(frame: pl.DataFrame, scored: Scored, settings: Evaluation, *, run_key: str) -> list[Cut]:
    """The slice columns of the recipe, each cut into its values; `scored` has the frame's rows in their order.

    Raises DataError for columns that the rows do not have.
    """
    missing = [column for column in settings.slices if column not in frame.columns]
    if missing:
        raise DataError(
            f"evaluation.slices: the holdout rows have no column {', '.join(missing)}; they have "
            f"{', '.join(frame.columns)} (columns with known: after are not kept)"
        )
    return [_cut(column, _groups(frame[column]), scored, settings, run_key) for column in settings.slices]


def _cut(column: str, groups: list[tuple[str, np.ndarray]], scored: Scored, settings: Evaluation, run_key: str) -> Cut:
    slices = []
    for value, rows in groups[:MAX_SLICES]:
        part, enough = scored.take(rows), len(rows) >= settings.min_slice_rows
        seed = seed_of(run_key, column, value)
        slices.append(
            Slice(
                value=value,
                rows=len(rows),
                positives=int(np.sum(part.labels_B > 0.5)),
                enough=enough,
                comparison=compare(part, settings, seed=seed) if enough else points_only(part),
            )
        )
    rest = groups[MAX_SLICES:]
    left_out_rows = sum(len(rows) for _, rows in rest)
    return Cut(column=column, slices=tuple(slices), left_out=len(rest), left_out_rows=left_out_rows)


def _groups(series: pl.Series) -> list[tuple[str, np.ndarray]]:
    """Row numbers by value as text, the largest group first, then by value."""
    texts = series.cast(pl.String, strict=False).fill_null(MISSING).alias("value")
    rows = pl.DataFrame([texts]).with_row_index("row").group_by("value").agg(pl.col("row").sort())
    groups = [(str(value), found.to_numpy()) for value, found in zip(rows["value"], rows["row"], strict=True)]
    return sorted(groups, key=lambda group: (-len(group[1]), group[0]))
