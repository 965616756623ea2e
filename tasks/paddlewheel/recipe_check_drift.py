"""Drift limits against themselves and against the columns they are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paddlewheel.recipe_data import Column, ColumnType, Data, Drift
from paddlewheel.recipe_tree import Fault

SHARES = ("missing", "outside", "divergence", "new")  # never above 1
BINNED: tuple[ColumnType, ...] = ("string", "bool", "int64", "float64", "binary")
ORDERED: tuple[ColumnType, ...] = ("int64", "float64", "binary", "date", "timestamp")
APPLY: dict[str, Sequence[ColumnType]] = {
    "outside": ORDERED,
    "psi": BINNED,
    "divergence": BINNED,
    "new": ("string", "bool"),
}
DEFAULT = Drift()


def check_drift(data: Data) -> Iterator[Fault]:
    """Marks in the wrong order or that no value passes; a column's marks of measures that its type does not have."""
    yield from _check_marks("data.drift", data.drift)
    yield from _check_columns("data.rows", data.rows.columns)
    for index, join in enumerate(data.joins):
        yield from _check_columns(f"data.joins.{index}.source", join.source.columns)


def _check_columns(path: str, columns: Sequence[Column]) -> Iterator[Fault]:
    for index, column in enumerate(columns):
        if column.drift is None:
            continue
        place = f"{path}.columns.{index}.drift"
        yield from _check_marks(place, column.drift)
        for name, types in APPLY.items():
            limit = getattr(column.drift, name)
            if column.type not in types and limit not in (getattr(DEFAULT, name), type(limit)()):
                allowed = f"is measured of columns of type {', '.join(types)}; this is a {column.type}"
                yield Fault(path=f"{place}.{name}", value={"warn": limit.warn, "fail": limit.fail}, allowed=allowed)


def _check_marks(path: str, drift: Drift) -> Iterator[Fault]:
    for name in ("missing", "outside", "psi", "divergence", "new"):
        limit = getattr(drift, name)
        if limit.warn is not None and limit.fail is not None and limit.fail < limit.warn:
            yield Fault(path=f"{path}.{name}.fail", value=limit.fail, allowed=f"must not be below warn {limit.warn:g}")
        for mark in ("warn", "fail"):
            value = getattr(limit, mark)
            if name in SHARES and value is not None and value >= 1:
                allowed = "must be below 1: the measure never exceeds 1; {} sets no mark"
                yield Fault(path=f"{path}.{name}.{mark}", value=value, allowed=allowed)
