"""A chunk of a file against its declared schema: typed rows, and every row that breaks it with every reason.

Checks run a column at a time; only refused rows become Python objects. What is accepted does not depend on how a file
is cut into chunks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from paddlewheel.data.readers import Chunk
from paddlewheel.data.types import MEANINGS, POLARS_TYPES, parse_texts, take
from paddlewheel.recipe_data import Column, Source

WHOLE_ROW = "(row)"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a row is refused. `counted` is the reason without what differs from row to row."""

    column: str
    value: str | None
    reason: str
    counted: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """N rows in the declared types and order, and what is wrong with those that break the schema, by their index."""

    frame: pl.DataFrame
    faults: dict[int, list[Reason]]


def check_chunk(chunk: Chunk, source: Source) -> Checked:
    """The rows of a chunk by the source's schema. Values that are not of their type are null.

    Raises DataError, naming the column, where a column's own type cannot be taken as the declared one.
    """
    faults: dict[int, list[Reason]] = {}
    for row, reason in chunk.broken.items():
        faults[row] = [Reason(column=WHOLE_ROW, value=None, reason=reason, counted=_without_numbers(reason))]
    size, columns = len(chunk.places), []
    for column in source.columns:
        if column.name in chunk.frame.columns:
            found = chunk.frame[column.name]
        else:
            found = pl.Series(column.name, [None], dtype=POLARS_TYPES[column.type]).new_from_index(0, size)
            if not column.required and column.name not in source.key:
                columns.append(found)
                continue
        values, bad = _check_column(column, found, chunk, source.null_values)
        for mask, reason in bad:
            for row in mask.arg_true():
                if row not in chunk.broken:
                    value = _shown(chunk, column.name, found, row)
                    one = Reason(column=column.name, value=value, reason=reason, counted=reason)
                    faults.setdefault(row, []).append(one)
        columns.append(values if values.name == column.name else values.alias(column.name))
    return Checked(frame=pl.DataFrame(columns), faults=faults)


def refusal_lines(chunk: Chunk, faults: dict[int, list[Reason]], file: str) -> bytes:
    """Lines of refused.jsonl: a JSON object a refused row, with file, line or row, text and reasons."""
    rows = sorted(faults)
    lines = []
    for row, raw in zip(rows, chunk.raws(rows), strict=True):
        reasons = [{"column": one.column, "value": one.value, "reason": one.reason} for one in faults[row]]
        place: dict[str, Any] = {"file": file, chunk.unit: chunk.places[row]}
        if chunk.row_group is not None:
            place["row_group"] = chunk.row_group
        lines.append(json.dumps({**place, "raw": raw, "reasons": reasons}, ensure_ascii=False) + "\n")
    return "".join(lines).encode(errors="backslashreplace")


def _check_column(
    column: Column, found: pl.Series, chunk: Chunk, null_values: tuple[str, ...]
) -> tuple[pl.Series, list[tuple[pl.Series, str]]]:
    """Typed values, and for each broken rule the mask of the rows that break it with the reason.

    Sound columns cost no mask: a rule is first asked of the column's extremes and number of nulls.
    """
    values, missing, num_missing = _take(column, found, chunk, null_values)
    bad: list[tuple[pl.Series, str]] = []
    if values.null_count() != num_missing:
        bad.append((values.is_null() & ~missing(), f"not {MEANINGS[column.type]} ({column.type})"))
    if num_missing and not column.nullable:
        bad.append((missing(), "missing"))
    lowest, highest = _bounds(column)
    if lowest is not None and (least := values.min()) is not None and least < lowest:
        bad.append((values < lowest, f"below the minimum {_plain(column.minimum)}"))
    if highest is not None and (most := values.max()) is not None and most > highest:
        bad.append((values > highest, f"above the maximum {_plain(column.maximum)}"))
    if column.allowed is not None:
        allowed = parse_texts(pl.Series([str(value) for value in column.allowed], dtype=pl.String), column.type)
        listed = ", ".join(str(value) for value in column.allowed)
        bad.append((~values.is_in(allowed.to_list()), f"not one of {listed}"))
    if column.pattern is not None:
        pattern = re.compile(column.pattern)
        strange = [text for text in values.drop_nulls().unique().to_list() if not pattern.fullmatch(text)]
        if strange:
            bad.append((values.is_in(strange), f"does not match {column.pattern}"))
    return values, [(mask.fill_null(False), reason) for mask, reason in bad]


def _take(
    column: Column, found: pl.Series, chunk: Chunk, null_values: tuple[str, ...]
) -> tuple[pl.Series, Callable[[], pl.Series], int]:
    """The values in the declared type, which of them are missing, as a mask when it is asked for, and how many."""
    if found.dtype in (pl.Categorical, pl.Enum):
        found = found.cast(pl.String)
    if found.dtype == pl.String and null_values and not chunk.nulls_set:
        found = found.set(found.is_in(list(null_values)).fill_null(False), None)
    if found.dtype == pl.String:
        return parse_texts(found, column.type), found.is_null, found.null_count()
    misfits = list(chunk.misfits.get(column.name, ()))
    if found.dtype == POLARS_TYPES[column.type] and not found.dtype.is_float():
        values, num_missing = found, found.null_count() - len(misfits)
        return values, lambda: values.is_null().scatter(misfits, False) if misfits else values.is_null(), num_missing
    values, mask = take(found, column.type)
    return values, lambda: mask, int(mask.sum())


def _shown(chunk: Chunk, name: str, found: pl.Series, row: int) -> str | None:
    """A refused value as it stands in the file."""
    value = found[row]
    if value is None:
        return chunk.text_of(row, name) if chunk.text_of is not None else None
    return value.hex() if isinstance(value, bytes) else str(value)


def _bounds(column: Column) -> tuple[Any, Any]:
    """Bounds in the column's own type: a float bound would round whole numbers beyond 2**53."""
    if column.type == "int64":
        lowest = None if column.minimum is None or column.minimum < -(2**63) else math.ceil(column.minimum)
        highest = None if column.maximum is None or column.maximum >= 2**63 else math.floor(column.maximum)
        return lowest, highest
    if column.type == "float64":
        return column.minimum, column.maximum
    return None, None


def _plain(bound: float | None) -> float | int | None:
    return int(bound) if bound is not None and bound.is_integer() else bound


def _without_numbers(reason: str) -> str:
    if re.match(r"\d+ fields, ", reason):
        return "wrong number of fields"
    return re.sub(r"\d[\d.,]*", "…", reason)
