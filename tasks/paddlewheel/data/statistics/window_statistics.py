"""The statistics of a window: those of its tables, merged by day and by what the days are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paddlewheel.data.checks.drift import comparable
from paddlewheel.data.statistics.table_statistics import TableStatistics, Value, merge
from paddlewheel.manifest import Manifest, Shard, publish_file
from paddlewheel.recipe_data import ColumnType, Source
from paddlewheel.storage import Store

PART: Final = "window"  # of a merged statistics file in the `validated` manifest
ALL_DAYS: Final = "all"  # of a source without days
QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_VALUES: Final = 5
MOST_HELD: Final = 64
MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class SourceStatistics:
    """A source's statistics by what they are of: `train`, `holdout`, `partition`; `all` alone without days.

    days: what each day is compared by (`drift.comparable`), in order; empty without days.
    """

    source: Source
    merged: Mapping[str, TableStatistics]
    days: Mapping[str, TableStatistics]


def gather(source: Source, files: Sequence[Shard], window: Mapping[str, Any], store: Store) -> SourceStatistics:
    """Read and merge the statistics of a source's tables, some at a time. Days beyond the window are left out."""
    found = [file for file in files if file.facts["source"] == source.name and file.facts["part"] == "statistics"]
    wholes: dict[str, list[TableStatistics]] = {}
    days: dict[str, list[TableStatistics]] = {}
    wanted = {day: "train" for day in window["train"]} | {day: "holdout" for day in window["holdout"]}
    for file in sorted(found, key=lambda file: (file.facts["partition"] or "", file.key)):
        day = file.facts["partition"]
        if day is not None and day not in wanted:
            continue
        statistics = TableStatistics.from_json(store.read(file.key), store.uri(file.key))
        over = [ALL_DAYS] if day is None else [wanted[day], *(["partition"] if day == window["partition"] else [])]
        for name in over:
            _add(wholes.setdefault(name, []), statistics)
        if day is not None:
            _add(days.setdefault(day, []), comparable(statistics, day))
    return SourceStatistics(
        source=source,
        merged={name: merge(parts) for name, parts in wholes.items()},
        days={day: merge(parts) for day, parts in days.items()},
    )


def _add(parts: list[TableStatistics], one: TableStatistics) -> None:
    """Hold a few and merge them at once: merging each into the sum would cost the sum's size every time."""
    parts.append(one)
    if len(parts) > MOST_HELD:
        parts[:] = [merge(parts)]


def publish_merged(found: Sequence[SourceStatistics], folder: str, store: Store) -> list[Shard]:
    """The merged statistics as files of the step, for the card and for the next champion's comparison."""
    shards = []
    with store.staging() as staging:
        for one in found:
            for over, statistics in one.merged.items():
                name = f"statistics-{one.source.name}-{over}.json"
                Path(staging / name).write_bytes(statistics.to_json())
                facts = {"part": PART, "source": one.source.name, "over": over, "partition": None}
                shards.append(publish_file(store, f"{folder}/{name}", staging / name, facts=facts))
    return shards


def read_merged(store: Store, validated: Manifest) -> dict[str, dict[str, TableStatistics]]:
    """By source and `over`, what `publish_merged` wrote; empty for a manifest from before there were any."""
    found: dict[str, dict[str, TableStatistics]] = {}
    for file in validated.files:
        if file.facts["part"] == PART:
            statistics = TableStatistics.from_json(store.read(file.key), store.uri(file.key))
            found.setdefault(file.facts["source"], {})[file.facts["over"]] = statistics
    return found


def summary(statistics: TableStatistics) -> dict[str, Any]:
    """By column a few numbers for a manifest: rows, missing, distinct, range and quantiles, or the most frequent."""
    facts: dict[str, Any] = {}
    for column in statistics.columns:
        one: dict[str, Any] = {"missing": column.missing, "distinct": column.distinct}
        if column.type in ("string", "bool"):
            one["top"] = [list(entry) for entry in column.top(MOST_VALUES)]
        else:
            one |= {"minimum": shown(column.type, column.minimum), "maximum": shown(column.type, column.maximum)}
            if column.type in ("int64", "float64", "binary"):
                one["quantiles"] = [column.quantile(share) for share in QUANTILES]
        facts[column.name] = one
    return {"rows": statistics.rows, "columns": facts}


def shown(kind: ColumnType, value: Value | None) -> Value | None:
    """A minimum, maximum or value as people write it: days and times in ISO's form."""
    import datetime

    if value is None or not isinstance(value, int) or kind not in ("date", "timestamp"):
        return value
    try:
        if kind == "date":
            return (datetime.date(1970, 1, 1) + datetime.timedelta(days=value)).isoformat()
        moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=value)
    except OverflowError:
        return value
    return moment.isoformat()
