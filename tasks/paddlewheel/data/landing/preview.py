"""The first rows of a source as the recipe types them, before a night reads all of it. Nothing is published.

Rows that repeat a key are not looked for: that takes the whole day.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from paddlewheel.data.checks.limits import told_reason
from paddlewheel.data.landing.groups import SourceFile, sources_of
from paddlewheel.data.landing.listing import PARTITION, by_day, list_sources, open_landing
from paddlewheel.data.plan import parse_partition
from paddlewheel.data.readers import ReadJob, UnreadableFile
from paddlewheel.data.readers.images import is_beside
from paddlewheel.data.statistics.builder import StatisticsBuilder
from paddlewheel.data.statistics.table_statistics import TableStatistics, Value
from paddlewheel.data.tables.group_pass import kept_rows, load_reader
from paddlewheel.data.tables.schema import WHOLE_ROW, check_chunk, refusal_lines
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_data import ColumnType, Source
from paddlewheel.storage import Store

MOST_FILES: Final = 20
LONGEST_SHOWN: Final = 24


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What the first rows of a source are. frame: N typed rows; refused: entries as in refused.jsonl.

    statistics: of all sound rows among the `looked_at`; unreadable: reasons of files that could not be read.
    """

    source: str
    partition: str | None
    files: tuple[str, ...]
    num_files: int
    frame: pl.DataFrame
    looked_at: int
    refused: tuple[dict[str, Any], ...]
    statistics: TableStatistics
    extra_columns: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def preview(recipe: Recipe, *, source: str | None, partition: str | None, rows: int, store: Store) -> Preview:
    """The first `rows` sound rows of a source (None: the main one) on a day (None: the newest that is there).

    Reads file after file, whole chunks, until there are enough. Raises RecipeError for an unknown source, DataError
    where there is no file, StorageError for a database that cannot be reached.
    """
    sources = sources_of(recipe)
    name = source or recipe.data.rows.name
    if name not in sources:
        raise RecipeError(f"the recipe has no source {name!r}; it has {', '.join(sources)}")
    wanted = sources[name]
    if partition is not None:
        parse_partition(partition)
    landing = open_landing(store, recipe.data.landing)
    day, files = _files_of(wanted, partition, landing)
    listed = {file.path for file in files}
    jobs = (
        ReadJob(
            name=file.path, source=wanted, partition=day,
            path=None if wanted.sql is not None else landing.local_path(file.path),
            beside=lambda path: landing.local_path(path) if path in listed else None,
        )
        for file in [file for file in files if not is_beside(wanted, file.path)][:MOST_FILES]
    )  # fmt: skip
    return _look(wanted, day, jobs, rows, len(files))


def _files_of(source: Source, partition: str | None, landing: Store) -> tuple[str | None, Sequence[SourceFile]]:
    """The day, and its files."""
    if source.sql is not None:
        if by_day(source) and partition is None:
            raise RecipeError(f"{source.name} is a query of a day; say which: --partition DAY")
        return (partition if by_day(source) else None), [SourceFile(path=source.name, bytes=0, etag="")]
    listing = list_sources(landing, [source])[source.name]
    if not by_day(source):
        day, files = None, listing.single
    else:
        day = partition or (listing.held[-1] if listing.held else None)
        files = listing.days.get(day, []) if day else []
    if not files:
        held = f"; it has files of {listing.held[0]}..{listing.held[-1]}" if listing.held else ""
        path = source.path.replace(PARTITION, day) if day else source.path
        raise DataError(f"the landing folder {landing.root} holds no file like {path}{held}")
    return day, files


def _look(source: Source, day: str | None, jobs: Iterator[ReadJob], rows: int, num_files: int) -> Preview:
    read, statistics = load_reader(source), StatisticsBuilder(source.columns)
    frames: list[pl.DataFrame] = []
    refused: list[dict[str, Any]] = []
    names, unreadable, extra = [], [], dict[str, None]()
    looked_at = found = 0
    for job in jobs:
        names.append(job.name)
        try:
            for chunk in read(job):
                checked = check_chunk(chunk, source)
                refused += map(json.loads, refusal_lines(chunk, checked.faults, job.name).splitlines())
                frame = checked.frame[kept_rows(len(checked.frame), checked.faults)]
                statistics.add(frame)
                frames.append(frame)
                extra.update(dict.fromkeys(chunk.extra_columns))
                looked_at += len(chunk.places)
                found += len(frame)
                if found >= rows:
                    break
        except UnreadableFile as error:
            unreadable.append(str(error))
        if found >= rows:
            break
    frame = pl.concat(frames)[:rows] if frames else pl.DataFrame({column.name: [] for column in source.columns})
    return Preview(
        source=source.name, partition=day, files=tuple(names), num_files=num_files, frame=frame, looked_at=looked_at,
        refused=tuple(refused), statistics=statistics.finish(), extra_columns=tuple(extra),
        unreadable=tuple(unreadable),
    )  # fmt: skip


def lines_of(found: Preview, *, most_refused: int = 5) -> list[str]:
    """The preview for people: rows, refusals with reasons, a line of statistics a column."""
    of_day = f" of {found.partition}" if found.partition else ""
    lines = [
        f"{found.source}{of_day}: {found.looked_at} rows looked at in {len(found.files)} of {found.num_files} "
        f"{'file' if found.num_files == 1 else 'files'}, {len(found.refused)} refused",
        *(f"unreadable: {reason}" for reason in found.unreadable),
    ]
    if found.extra_columns:
        lines.append(f"columns that the recipe does not name: {', '.join(found.extra_columns)}")
    types = [column.type for column in found.statistics.columns]
    rows = [[_shown(value) for value in row] for row in found.frame.rows()]
    lines += ["", *_aligned([found.frame.columns, types, *rows])]
    if found.refused:
        lines += ["", "refused:"]
    for entry in found.refused[:most_refused]:
        place = next(f"{unit} {entry[unit]}" for unit in ("line", "row") if unit in entry)
        told = "; ".join(
            ("" if one["column"] == WHOLE_ROW else f"{one['column']}: ") + told_reason(one) for one in entry["reasons"]
        )
        lines.append(f"  {entry['file']} {place}: {told}")
    if len(found.refused) > most_refused:
        lines.append(f"  … and {len(found.refused) - most_refused} more")
    header = ["column", "type", "missing", "distinct", "least", "middle", "greatest", "most frequent"]
    return [*lines, "", *_aligned([header, *_statistics_rows(found.statistics)])]


def tree_of(found: Preview) -> dict[str, Any]:
    """The preview for machines."""
    return {
        "source": found.source,
        "partition": found.partition,
        "files": list(found.files),
        "num_files": found.num_files,
        "looked_at": found.looked_at,
        "rows": [{name: _plain(value) for name, value in row.items()} for row in found.frame.to_dicts()],
        "refused": list(found.refused),
        "extra_columns": list(found.extra_columns),
        "unreadable": list(found.unreadable),
        "statistics": json.loads(found.statistics.to_json()),
    }


def _statistics_rows(statistics: TableStatistics) -> list[list[str]]:
    rows = []
    for column in statistics.columns:
        middle = column.quantile(0.5)  # of times the day: their histogram is one of days
        day_or_number = _moment(middle, "date" if column.type == "timestamp" else column.type)
        about = "about " if column.level else ""  # then only a part of the rows is counted
        top = ", ".join(f"{_told(value, column.type)} ({about}{count})" for value, count in column.top(3))
        if column.present > 1 and column.distinct == column.present:
            top = "each value once"
        rows.append(
            [
                *(column.name, column.type, f"{column.missing_share:.1%}", str(column.distinct)),
                *(_moment(column.minimum, column.type), day_or_number, _moment(column.maximum, column.type), top),
            ]
        )
    return rows


def _told(value: Value, kind: ColumnType) -> str:
    """A frequent value: days and moments stand in statistics as numbers."""
    return _moment(value, kind) if kind in ("date", "timestamp") and not isinstance(value, str) else _shown(value)


def _moment(number: float | None, kind: ColumnType) -> str:
    if number is None:
        return ""
    start = datetime.datetime(1970, 1, 1)
    if kind == "date":
        return (start + datetime.timedelta(days=number)).date().isoformat()
    if kind == "timestamp":
        return f"{start + datetime.timedelta(microseconds=number):%Y-%m-%dT%H:%M:%SZ}"
    return str(int(number)) if kind in ("int64", "binary") else f"{number:.6g}"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.isoformat().replace("+00:00", "Z")


def _shown(value: Any) -> str:
    text = "" if value is None else str(_plain(value)).replace("\n", "⏎").replace("\x1e", "␞")
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
