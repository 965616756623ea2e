"""What a recipe's limits say of the tables of a window: refused rows, files that cannot be read, days without rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from paddlewheel.data.checks.duplicates import KeyedFile, find_duplicates
from paddlewheel.data.statistics.window_statistics import SourceStatistics
from paddlewheel.data.tables.schema import WHOLE_ROW
from paddlewheel.manifest import Manifest, Shard
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_data import Source
from paddlewheel.storage import Store

MAX_TOLD: Final = 5
MAX_VALUE: Final = 80  # characters of a refused value


def refused_beyond(source: Source, files: Sequence[Shard], partition: str, store: Store) -> Iterator[str]:
    """A sentence for the window, or else for the partition's own rows, where more was refused than is borne."""
    own = [file for file in files if file.facts["partition"] == partition]
    for where, some in ((f"{source.name} in the window", files), (f"{source.name} of {partition}", own)):
        rows = sum(file.rows or 0 for file in some if file.facts["part"] == "rows")
        refused = sum(file.facts["refused"] for file in some if file.facts["part"] == "rows")
        if refused > source.max_refused_fraction * (rows + refused):
            share = refused / (rows + refused)
            lists = [store.uri(file.key) for file in some if file.facts["part"] == "refused"]
            more = f" and {len(lists) - 1} more such files" if len(lists) > 1 else ""
            told = "".join(f"\n  {line}" for line in refusal_examples(some, store))
            yield (
                f"{where}: {refused} of {rows + refused} rows were refused ({share:.2%}); the recipe bears "
                f"max_refused_fraction {source.max_refused_fraction:.2%}. Mend the files, or raise the limit if this "
                f"is as it should be. All stand in {lists[0]}{more}; the first:{told}"
            )
            return


def refusal_examples(files: Sequence[Shard], store: Store, *, most: int = MAX_TOLD) -> list[str]:
    """The first refusals, each with file, place, column, value and reason."""
    told: list[str] = []
    for file in files:
        if file.facts["part"] != "refused":
            continue
        with store.local_path(file.key).open("rb") as lines:
            for raw in lines:
                entry = json.loads(raw)
                unit = "line" if "line" in entry else "row"
                for reason in entry["reasons"]:
                    column = "" if reason["column"] == WHOLE_ROW else f", column {reason['column']}"
                    told.append(f"{entry['file']} {unit} {entry[unit]}{column}: {told_reason(reason)}")
                if len(told) >= most:
                    return told[:most]
    return told


def told_reason(reason: Mapping[str, Any]) -> str:
    """The value that is refused, shortened (it may be megabytes), and why."""
    value = reason["value"]
    if value is None:
        return str(reason["reason"])
    shown = value if len(value) <= MAX_VALUE else f"{value[: MAX_VALUE - 1]}…"
    return f"{shown!r}: {reason['reason']}"


def unreadable_files(tables: Sequence[Manifest]) -> list[dict[str, Any]]:
    """The quarantine: source, day, path, digest, reason of every file that no reader could take apart."""
    return [
        {"source": table.facts["source"], "partition": table.facts["partition"], **file}
        for table in tables
        for file in table.facts["unreadable"]
    ]


def unreadable_beyond(source: Source, tables: Sequence[Manifest], partition: str) -> Iterator[str]:
    """A sentence for the window, or else for the partition's own files, where more are unreadable than is borne."""
    own = [table for table in tables if table.facts["partition"] == partition]
    for where, some in ((f"{source.name} in the window", tables), (f"{source.name} of {partition}", own)):
        bad = unreadable_files(some)
        total = len(bad) + sum(len(table.facts["files"]) for table in some)
        if len(bad) > source.max_unreadable_fraction * total:
            told = "".join(f"\n  {file['path']}: {file['reason']}" for file in bad[:MAX_TOLD])
            more = f"\n  … and {len(bad) - MAX_TOLD} more" if len(bad) > MAX_TOLD else ""
            yield (
                f"{where}: {len(bad)} of {total} files cannot be read ({len(bad) / total:.2%}); the recipe bears "
                f"max_unreadable_fraction {source.max_unreadable_fraction:.2%}. Deliver them again, or raise the limit "
                f"to go on without their rows:{told}{more}"
            )
            return


def rows_twice(
    source: Source, files: Sequence[Shard], tables: Mapping[str, Manifest], store: Store, scratch: Path
) -> Iterator[str]:
    """Sentences for keys that stand in more than one table (within one the later row was refused)."""
    row_files = [file for file in files if file.facts["part"] == "rows" and file.rows]
    if not source.key or len(row_files) < 2:
        return
    keyed = [
        KeyedFile(
            path=store.local_path(file.key),
            places=tuple((one["path"], one["rows"]) for one in tables[_folder(file)].facts["files"]),
        )
        for file in row_files
    ]
    found = find_duplicates(keyed, source.key, scratch=scratch, most=MAX_TOLD)
    for one in found.examples:
        named = ", ".join(f"{name} {value}" for name, value in zip(source.key, one.key, strict=True))
        where = " and in ".join(one.places)
        yield f"{source.name}: {named} stands in {where}; one row a key: take it out of one"
    if found.num_keys > len(found.examples):
        yield f"{source.name}: … and {found.num_keys - len(found.examples)} more rows that stand in two files"


def empty_partition(recipe: Recipe, files: Sequence[Shard], partition: str) -> Iterator[str]:
    """A sentence where the partition's own day has no row."""
    name = recipe.data.rows.name
    own = [
        file
        for file in files
        if (file.facts["source"], file.facts["partition"], file.facts["part"]) == (name, partition, "rows")
    ]
    if own and not sum(file.rows or 0 for file in own):
        refused, unreadable = (sum(file.facts[fact] for file in own) for fact in ("refused", "unreadable"))
        causes = [f"{refused} were refused"] if refused else []
        causes += [f"{unreadable} of its files cannot be read"] if unreadable else []
        why = " and ".join(causes) or "its files have no more than a header"
        yield (
            f"{name} of {partition}: no row is left ({why}), "
            "so the day can neither be judged nor learnt from. Deliver it again, or ask for another partition"
        )


def notes_on_days(recipe: Recipe, found: Sequence[SourceStatistics], window: Mapping[str, Any]) -> list[str]:
    """Sentences on days of the window without rows or without any label: nothing fails, but the holdout is smaller."""
    notes = []
    days = [*window["train"], *window["holdout"]]
    for one in found:
        if not one.days:
            continue
        empty = [day for day in days if day not in one.days or not one.days[day].rows]
        if empty:
            notes.append(f"{one.source.name}: no rows on {_days(empty)}")
        if one.source.name == recipe.data.rows.name:
            label = recipe.data.label.column
            bare = [day for day in days if day in one.days and one.days[day].rows and not one.days[day][label].present]
            if bare:
                notes.append(f"{one.source.name}: no row has the label {label} on {_days(bare)}")
    return notes


def _days(days: Sequence[str]) -> str:
    told = ", ".join(days[-3:])
    return told if len(days) <= 3 else f"{len(days)} days, the last {told}"


def _folder(file: Shard) -> str:
    return file.key.rpartition("/")[0]
