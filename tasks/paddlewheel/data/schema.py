"""A source file against its declared schema: typed rows, and every row that breaks it with every reason.

Checks run a column at a time on the whole file; only refused rows become Python objects.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from paddlewheel.data.records import read_records
from paddlewheel.data.types import MEANINGS, POLARS_TYPES, parse_texts
from paddlewheel.errors import DataError
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
class Refusal:
    """A row that breaks the schema: its first line in the file (the header is line 1), its text, every reason."""

    line: int
    raw: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One file's rows in the declared types and order, its refusals, and columns that the recipe does not name."""

    frame: pl.DataFrame
    refusals: tuple[Refusal, ...]
    extra_columns: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Refused rows by `column: reason`; a row with two reasons counts in both."""
        counter: Counter[str] = Counter()
        for refusal in self.refusals:
            counter.update({f"{reason.column}: {reason.counted}" for reason in refusal.reasons})
        return dict(sorted(counter.items()))

    def refusal_lines(self, file: str) -> bytes:
        """refused.jsonl: a JSON object a refused row, with file, line, raw text and reasons."""
        lines = []
        for refusal in self.refusals:
            reasons = [{"column": one.column, "value": one.value, "reason": one.reason} for one in refusal.reasons]
            entry = {"file": file, "line": refusal.line, "raw": refusal.raw, "reasons": reasons}
            lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
        return "".join(lines).encode()


def read_table(path: Path, content: bytes, source: Source) -> Table:
    """The rows of a file by the source's schema.

    Raises DataError, naming file and column, where a required column is missing or stands there twice.
    """
    records = read_records(path, content)
    places = _places(path, records.header, source)
    faults: dict[int, list[Reason]] = {}
    widths = records.fields.list.len()
    whole = (widths == len(records.header)).fill_null(False)
    for row in (~whole).arg_true():
        faults[row] = [_row_fault(widths[row], len(records.header))]
    columns = []
    for column in source.columns:
        if column.name not in places:
            columns.append(pl.Series(column.name, [None] * len(whole), dtype=POLARS_TYPES[column.type]))
            continue
        texts = records.fields.list.get(places[column.name], null_on_oob=True)
        values, bad = _check_column(column, texts, source.null_values)
        for mask, reason in bad:
            for row in (mask & whole).arg_true():
                one = Reason(column=column.name, value=texts[row], reason=reason, counted=reason)
                faults.setdefault(row, []).append(one)
        columns.append(values.alias(column.name))
    frame = pl.DataFrame(columns)
    for row, fault in _duplicates(frame, records.lines, set(faults), source.key):
        faults[row] = [fault]
    refusals = tuple(
        Refusal(line=records.lines[row], raw=records.raws[row], reasons=tuple(faults[row])) for row in sorted(faults)
    )
    if faults:
        kept = pl.Series([row not in faults for row in range(len(frame))], dtype=pl.Boolean)
        frame = frame.filter(kept)
    declared = {column.name for column in source.columns}
    extra = tuple(name for name in records.header if name not in declared)
    return Table(frame=frame.rechunk(), refusals=refusals, extra_columns=extra)


def _places(path: Path, header: tuple[str, ...], source: Source) -> dict[str, int]:
    places, faults = {}, []
    for column in source.columns:
        found = header.count(column.name)
        if found == 1:
            places[column.name] = header.index(column.name)
        elif found:
            faults.append(f"the column {column.name!r} stands in the header {found} times")
        elif column.required:
            near = difflib.get_close_matches(column.name, header, n=1)
            hint = f" (there is {near[0]!r})" if near else ""
            faults.append(f"the column {column.name!r} is missing{hint}")
    if faults:
        raise DataError(
            f"{path}: {'; '.join(faults)}. The header has: {', '.join(header)}. "
            f"Deliver the file with its columns, or change the columns of {source.name!r} in the recipe"
        )
    return places


def _row_fault(width: int | None, wanted: int) -> Reason:
    if width is None:
        return Reason(column=WHOLE_ROW, value=None, reason="a quote is out of place", counted="a quote is out of place")
    reason = f"{width} fields, the header has {wanted}"
    return Reason(column=WHOLE_ROW, value=None, reason=reason, counted="wrong number of fields")


def _check_column(
    column: Column, texts: pl.Series, null_values: tuple[str, ...]
) -> tuple[pl.Series, list[tuple[pl.Series, str]]]:
    """Typed values, and for each broken rule the mask of the rows that break it with the reason."""
    missing = texts.is_null() | texts.is_in(list(null_values))
    texts = texts.set(missing, None)
    values = parse_texts(texts, column.type)
    bad = [(values.is_null() & ~missing, f"not {MEANINGS[column.type]} ({column.type})")]
    if not column.nullable:
        bad.append((missing, "missing"))
    lowest, highest = _bounds(column)
    if lowest is not None:
        bad.append((values < lowest, f"below the minimum {_plain(column.minimum)}"))
    if highest is not None:
        bad.append((values > highest, f"above the maximum {_plain(column.maximum)}"))
    if column.allowed is not None:
        allowed = parse_texts(pl.Series([str(value) for value in column.allowed]), column.type)
        listed = ", ".join(str(value) for value in column.allowed)
        bad.append((~values.is_in(allowed.to_list()), f"not one of {listed}"))
    if column.pattern is not None:
        pattern = re.compile(column.pattern)
        strange = [text for text in texts.drop_nulls().unique().to_list() if not pattern.fullmatch(text)]
        if strange:
            bad.append((texts.is_in(strange), f"does not match {column.pattern}"))
    return values, [(mask.fill_null(False), reason) for mask, reason in bad if mask.any()]


def _bounds(column: Column) -> tuple[Any, Any]:
    """Bounds in the column's own type: a float bound would round whole numbers beyond 2**53."""
    if column.type == "int64":
        lowest = None if column.minimum is None else math.ceil(column.minimum)
        return lowest, None if column.maximum is None else math.floor(column.maximum)
    if column.type == "float64":
        return column.minimum, column.maximum
    return None, None


def _plain(bound: float | None) -> float | int | None:
    return int(bound) if bound is not None and bound.is_integer() else bound


def _duplicates(
    frame: pl.DataFrame, lines: pl.Series, refused: set[int], key: tuple[str, ...]
) -> Iterator[tuple[int, Reason]]:
    """Rows whose key an earlier sound row of the file has."""
    if not key:
        return
    numbered = frame.select(key).with_columns(lines.alias("(line)")).with_row_index("(row)")
    if refused:
        numbered = numbered.filter(~pl.col("(row)").is_in(list(refused)))
    first = pl.struct(key).is_first_distinct()
    again = numbered.filter(~first)
    if not len(again):
        return
    firsts = numbered.filter(first).select(*key, pl.col("(line)").alias("(first)"))
    for row in again.join(firsts, on=key, how="left", nulls_equal=True).iter_rows(named=True):
        value = ", ".join(str(row[name]) for name in key)
        reason = f"the same key as line {row['(first)']}"
        yield row["(row)"], Reason(column=", ".join(key), value=value, reason=reason, counted="duplicate key")
