"""Pictures that a table names: a CSV or JSON Lines file of path and label, the pictures beside it or below it.

The table is the file that is read, the pictures are planned with it: a row is a line of the table, refused where its
picture is not there or cannot be decoded.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile
from paddlewheel.data.readers.images import COLUMNS, look
from paddlewheel.data.tables.encoded import read_utf8
from paddlewheel.data.types import POLARS_TYPES

NAMES: Final = ("path", "label")
PIECE_BYTES: Final = 1 << 20
CHUNK_BYTES, CHUNK_ROWS = 8 << 20, 4096


def read(job: ReadJob) -> Iterator[Chunk]:
    """A row for each line of the table, in its order. Raises UnreadableFile for a table that cannot be taken apart."""
    whole = bool(job.source.params.get("verify", False))
    rows: list[dict[str, Any]] = []
    places: list[int] = []
    broken: dict[int, str] = {}
    size = 0
    for place, entry in _entries(job):
        row, fault = _row(job, entry, whole=whole)
        if fault is not None:
            broken[len(rows)] = fault
        rows.append(row)
        places.append(place)
        size += len(row.get("image") or b"")
        if size >= CHUNK_BYTES or len(rows) == CHUNK_ROWS:
            yield _chunk(job, rows, places, broken)
            rows, places, broken, size = [], [], {}, 0
    if rows:
        yield _chunk(job, rows, places, broken)


def _row(job: ReadJob, entry: Mapping[str, Any], *, whole: bool) -> tuple[dict[str, Any], str | None]:
    """Of one line: its row, and why it is refused."""
    row = {"path": entry.get("path"), "label": entry.get("label")}
    row = {name: None if value is None or value == "" else str(value) for name, value in row.items()}
    if row["path"] is None:
        return row, "the line names no picture"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(job.name), row["path"]))
    found = job.beside(path)
    if found is None:
        return row, "there is no such picture among the source's files"
    content = found.read_bytes()
    try:
        kind, width, height = look(path, content, whole=whole)
    except UnreadableFile as error:
        return row, str(error).removeprefix(f"{path}: ")
    made = {"path": path, "class": row["label"], "image": content, "width": width, "height": height, "format": kind}
    return row | made, None


def _entries(job: ReadJob) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Place (line) and fields of each line of the table."""
    lines = _lines(job)
    if ".jsonl" in posixpath.basename(job.name):
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    entry = json.loads(line)
                except ValueError as error:
                    raise UnreadableFile(f"{job.name}: line {number} is not JSON ({error})") from error
                if not isinstance(entry, dict) or "path" not in entry:
                    raise UnreadableFile(f"{job.name}: line {number} is no object with path and label")
                yield number, entry
        return
    reader = csv.DictReader(lines, strict=True)
    missing = [name for name in NAMES if name not in (reader.fieldnames or ())]
    if missing:
        raise UnreadableFile(f"{job.name}: the header lacks {' and '.join(missing)}; a table of pictures has both")
    try:
        for entry in reader:
            yield reader.line_num, entry
    except csv.Error as error:
        raise UnreadableFile(f"{job.name}: line {reader.line_num}: {error}") from error


def _lines(job: ReadJob) -> Iterator[str]:
    """Lines of the table, with their ends."""
    decoder, held = codecs.getincrementaldecoder("utf-8")(), ""
    for piece in itertools.chain(read_utf8(job, PIECE_BYTES), [None]):
        held += decoder.decode(piece or b"", final=piece is None)
        *whole, held = held.split("\n")
        yield from (f"{line}\n" for line in whole)
    if held:
        yield held


def _chunk(job: ReadJob, rows: Sequence[dict[str, Any]], places: Sequence[int], broken: dict[int, str]) -> Chunk:
    columns = []
    for column in job.source.columns:
        if column.name == "label":
            columns.append(pl.Series("label", [row["label"] for row in rows], dtype=pl.String))
        elif column.name in COLUMNS:
            values = [row.get(column.name) for row in rows]
            columns.append(pl.Series(column.name, values, dtype=POLARS_TYPES[COLUMNS[column.name]]))

    def raws(picked: Sequence[int]) -> list[str]:
        return [json.dumps({name: rows[one][name] for name in NAMES}, ensure_ascii=False) for one in picked]

    return Chunk(
        frame=pl.DataFrame(columns), places=pl.Series(places, dtype=pl.Int64), raws=raws, broken=broken, nulls_set=True
    )
