"""Days against the days before them: which columns are further from the training window than the recipe bears.

A `fail` limit is taken as it stands. A `warn` limit is passed only by what is unusual too: beyond what chance makes of
so few rows, and beyond what the training window's own days did against the days before them, so that weather, a
calendar column or a growing id is not told every night. Days and times are compared by their distance from the day
that they were delivered for. Rejected: one fixed mark for all columns, which is either always passed or never.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from paddlewheel.data.checks.drift_measures import chance, measure
from paddlewheel.data.statistics.table_statistics import ColumnStatistics, TableStatistics, merge
from paddlewheel.data.statistics.theta import THETA_EMPTY
from paddlewheel.recipe_data import Column, Drift

FEWEST_TRIALS: Final = 4
MOST_TRIALS: Final = 15
BEYOND_USUAL: Final = 2.0
Days = Mapping[str, TableStatistics]


@dataclass(frozen=True, kw_only=True)
class ColumnDrift:
    """A column's measures over some days. usual: what the training window's own days reach, where it has enough.

    warned, failed: measures that pass a limit.
    """

    source: str
    column: str
    over: str
    measures: Mapping[str, float]
    usual: Mapping[str, float]
    warned: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def to_tree(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self) | {"warned": list(self.warned), "failed": list(self.failed)}

    @staticmethod
    def from_tree(tree: Mapping[str, Any]) -> ColumnDrift:
        """What `to_tree` gave."""
        lists = {"warned": tuple(tree["warned"]), "failed": tuple(tree["failed"])}
        return ColumnDrift(**{**tree, **lists})


def limits_of(column: Column, drift: Drift) -> Drift:
    """A column's own limits, or else the recipe's."""
    return column.drift if column.drift is not None else drift


def comparable(statistics: TableStatistics, day: str | None) -> TableStatistics:
    """What is compared: numbers by their histograms alone, days and times by their distance from `day` (None: not)."""
    zero = (datetime.date.fromisoformat(day) - datetime.date(1970, 1, 1)).days if day else None
    return TableStatistics(rows=statistics.rows, columns=tuple(_bare(one, zero) for one in statistics.columns))


def judge(
    columns: Sequence[Column],
    reference: TableStatistics,
    seen: TableStatistics,
    *,
    source: str,
    over: str,
    drift: Drift,
    usual: Mapping[str, Mapping[str, float]] | None = None,
) -> list[ColumnDrift]:
    """Each column's drift, in the order of the recipe; columns that are too few rows to measure are left out."""
    found = []
    for column in columns:
        if column.name not in reference or column.name not in seen:
            continue
        before, now = reference[column.name], seen[column.name]
        measures = measure(before, now) if before.type == now.type else {}
        if not measures:
            continue
        limits, known = limits_of(column, drift), (usual or {}).get(column.name, {})
        warned = [
            name
            for name, value in measures.items()
            if _passes(value, getattr(limits, name).warn)
            and value > getattr(limits, name).warn + chance(name, before, now)
            and value > BEYOND_USUAL * known.get(name, 0.0)
        ]
        failed = [name for name, value in measures.items() if _passes(value, getattr(limits, name).fail)]
        one = ColumnDrift(
            source=source,
            column=column.name,
            over=over,
            measures=measures,
            usual={name: known[name] for name in measures if name in known},
            warned=tuple(warned),
            failed=tuple(failed),
        )
        found.append(one)
    return found


def usual_measures(train: Days, *, length: int, gap: int) -> dict[str, dict[str, float]]:
    """By column, what blocks of `length` days of the training window's second half reach against the days before them.

    gap: days between, as between the window and what is judged. The second highest, so that one broken day among them
    does not hide the next. Nothing with fewer than 4 blocks.
    """
    days = list(train)
    starts = _trials(len(days), length, gap)
    if len(starts) < FEWEST_TRIALS:
        return {}
    reached: dict[str, dict[str, list[float]]] = {}
    before, end = merge(train[day] for day in days[: starts[0] - gap]), starts[0] - gap
    for start in starts:
        before, end = merge([before, *(train[day] for day in days[end : start - gap])]), start - gap
        block = merge(train[day] for day in days[start : start + length])
        for column in before.columns:
            for name, value in measure(column, block[column.name]).items():
                reached.setdefault(column.name, {}).setdefault(name, []).append(value)
    return {
        column: {name: sorted(values)[-2:][0] for name, values in by_name.items()}
        for column, by_name in reached.items()
    }


def _trials(num_days: int, length: int, gap: int) -> list[int]:
    """First days of the blocks: evenly over the second half, with at least a day before the gap."""
    first, last = max(num_days // 2, gap + 1), num_days - length
    count = min(MOST_TRIALS, last - first + 1)
    return [first + round(index * (last - first) / max(count - 1, 1)) for index in range(count)] if count > 0 else []


def _passes(value: float, limit: float | None) -> bool:
    return limit is not None and value > limit


def _bare(column: ColumnStatistics, zero: int | None) -> ColumnStatistics:
    """Without what only texts are compared by: merging that for every trial would cost more than all the rest."""
    if column.type in ("string", "bool"):
        return column
    bare = dataclasses.replace(column, theta=THETA_EMPTY, level=0, values={})
    if column.type not in ("date", "timestamp"):
        return bare
    moved = {} if zero is None else {bucket - zero: rows for bucket, rows in column.histogram.items()}
    return dataclasses.replace(bare, histogram=moved, minimum=None, maximum=None)
