"""JSON Lines: an object a line, plain, gzip or Zstandard. A column is a member of the object; one not there is null.

Numbers stay the digits that stand in the file until the schema takes them as their declared type, as in CSV: 2**53 + 1
is exact beside a null. A string counts as a number or a time where its text is one; only a string is a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile
from paddlewheel.data.readers.columns import column_faults
from paddlewheel.data.tables.encoded import read_utf8
from paddlewheel.recipe_data import Column

BUFFER_BYTES: Final = 4 << 20
MAX_LINE_BYTES: Final = 16 << 20
MAX_ROWS: Final = 1 << 14
LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Digits(str):
    """A number as it stands in the file."""

    __slots__ = ()


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_Digits, parse_float=_Digits, parse_constant=_refuse_constant)


def read(job: ReadJob, *, buffer_bytes: int = BUFFER_BYTES, max_rows: int = MAX_ROWS) -> Iterator[Chunk]:
    """The file's objects, at most `max_rows` a chunk; blank lines are passed over.

    Raises UnreadableFile for one that is cut off, empty, not of its encoding, or none of whose objects has a required
    column.
    """
    names: dict[str, None] = {}
    lines: list[tuple[int, str]] = []
    num_rows = held = 0
    for number, line in _lines(job, buffer_bytes):
        if line.strip():
            lines.append((number, line))
            held += len(line)
        if len(lines) == max_rows or held > buffer_bytes:
            yield _chunk(job, lines, names)
            num_rows += len(lines)
            lines, held = [], 0
    if lines or not num_rows:
        yield _chunk(job, lines, names)
    num_rows += len(lines)
    if not num_rows:
        raise UnreadableFile(f"{job.name}: the file is empty, there is no object in it; deliver it again")
    if names and (faults := column_faults(job.source, list(names))):
        raise UnreadableFile(
            f"{job.name}: {'; '.join(faults)} in every one of its {num_rows} lines. Its objects have: "
            f"{', '.join(list(names)[:40])}. Deliver the file with its columns, or change the columns of "
            f"{job.source.name!r} in the recipe"
        )


def _lines(job: ReadJob, buffer_bytes: int) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of every line."""
    rest, number = b"", 1
    for piece in read_utf8(job, min(buffer_bytes, 1 << 20)):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield number, line.removesuffix(b"\r").decode()
            number += 1
        if len(rest) > MAX_LINE_BYTES:
            raise UnreadableFile(
                f"{job.name}: line {number} is longer than {MAX_LINE_BYTES} bytes: is this JSON Lines?"
            )
    if rest:
        yield number, rest.removesuffix(b"\r").decode()


def _chunk(job: ReadJob, lines: Sequence[tuple[int, str]], names: dict[str, None]) -> Chunk:
    """The lines as a chunk; members met for the first time are added to `names`."""
    broken: dict[int, str] = {}
    objects: list[Mapping[str, Any]] = []
    for row, (_, line) in enumerate(lines):
        found: Mapping[str, Any] = {}
        try:
            value = _DECODER.decode(line)
            if isinstance(value, dict):
                found = value
            else:
                broken[row] = "not a JSON object"
        except (ValueError, RecursionError):
            broken[row] = "not JSON"
        objects.append(found)
        names.update(dict.fromkeys(found))
    wrong: dict[int, list[str]] = {}
    columns = [_texts(column, objects, wrong) for column in job.source.columns]
    declared = {column.name for column in job.source.columns}
    return Chunk(
        frame=pl.DataFrame(columns),
        places=pl.Series([number for number, _ in lines], dtype=pl.Int64),
        raws=lambda rows: [lines[row][1] for row in rows],
        broken={row: "; ".join(reasons) for row, reasons in wrong.items()} | broken,
        extra_columns=tuple(name for name in names if name not in declared),
    )


def _texts(column: Column, objects: Sequence[Mapping[str, Any]], wrong: dict[int, list[str]]) -> pl.Series:
    """A member of the objects as texts; what is no text, where one is declared, is told as wrong, by row."""
    texts: list[str | None] = []
    for row, one in enumerate(objects):
        value = one.get(column.name)
        if value is None or type(value) is str:
            text = value
        elif column.type in ("string", "binary"):
            way_out = "; write its texts as one, between separators, as a|b" if isinstance(value, list) else ""
            wrong.setdefault(row, []).append(f"{column.name} is {_kind(value)} and not {column.type}{way_out}")
            text = None
        else:
            text = str(value) if isinstance(value, _Digits) else json.dumps(value)
        texts.append(text)
    try:
        return pl.Series(column.name, texts, dtype=pl.String)
    except UnicodeEncodeError:
        for row, found in enumerate(texts):
            if found is not None and LONE_SURROGATE.search(found):
                wrong.setdefault(row, []).append(f"{column.name} has half of a surrogate pair, which is no character")
                texts[row] = None
        return pl.Series(column.name, texts, dtype=pl.String)


def _kind(value: Any) -> str:
    kinds = {_Digits: "a number", bool: "true or false", dict: "an object", list: "an array"}
    return kinds.get(type(value), "something else")
