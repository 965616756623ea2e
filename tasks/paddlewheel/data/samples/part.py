"""A day's `samples` dataset: found again by the bytes of the tables it is made of, or made.

Not by the keys or places of those tables. Rows that were delivered in other files, or lay in a database, make another
name and, where the sharding allows it, the same files; all that follows is named by those. Rejected: a name made of the
multiset of rows, whose hash costs a pass over every column of every row, to save one night's sharding when somebody
cuts old files anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from paddlewheel.data.datasets import dataset_folder, find_part, manifest_key
from paddlewheel.data.order import MASK
from paddlewheel.data.plan import earlier_days
from paddlewheel.data.samples.day import DaySamples, Table, make_day, read_right
from paddlewheel.data.samples.sharding import needs_files
from paddlewheel.errors import StorageError
from paddlewheel.manifest import Manifest, Shard, code_digest, derive_key, publish_file, publish_manifest, read_manifest
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_data import SHARDINGS, Join
from paddlewheel.storage import Store

CODE: Final = tuple(f"paddlewheel.data.{name}" for name in ("samples", "order", "text", "types", "xxh3"))
MANY_ROWS: Final = 20_000_000
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Day:
    """A day's `samples` manifest, and whether it was made now."""

    day: str
    manifest: Manifest
    new: bool


@dataclass(frozen=True, kw_only=True)
class _DayTables:
    """A day's row files by source, in the order of the paths of what they hold.

    files: of each table of the day's rows, path and rows of its landing files; none where no shard depends on them.
    """

    tables: Mapping[str, Sequence[Shard]]
    files: Sequence[Sequence[tuple[str, int]]]


class DayMaker:
    """Finds or makes the samples of days out of a window's row files; its methods may be called by several threads."""

    def __init__(self, recipe: Recipe, files: Sequence[Shard], *, store: Store) -> None:
        self._recipe, self._files, self._store = recipe, files, store
        self.section, self.code = _section(recipe), code_digest(*CODE)
        self._lock = threading.Lock()
        self._held: dict[str, pl.DataFrame] = {}

    def make(self, day: str) -> Day:
        """The day's samples, verified by digest where they are there. Raises DataError for rows that cannot be told
        apart, StorageError where the samples found are not those that the rows became.
        """
        recipe, store = self._recipe, self._store
        needed = self._tables_of(day)
        digests = {name: [file.digest for file in found] for name, found in needed.tables.items()}
        key = derive_key("samples", day, digests, _placed_by(recipe, needed), self.section, self.code)
        folder = dataset_folder(recipe, "samples", key)
        if found := find_part(store, folder):
            _check_hash(found, store)
            return Day(day=day, manifest=found, new=False)
        rows = [
            Table(path=store.local_path(file.key), rows=file.rows or 0, files=tuple(names))
            for file, names in zip(needed.tables[recipe.data.rows.name], needed.files, strict=True)
        ]
        rights = [self._right_of(join, needed.tables[join.source.name]) for join in recipe.data.joins]
        with store.staging() as staging:
            samples = make_day(recipe, day, rows, rights, staging)
            shards = [
                publish_file(
                    store,
                    f"{folder}/{one.path.name}",
                    one.path,
                    rows=one.rows,
                    facts={"day": day, "shard": number, "sample_hash": str(one.sample_hash)},
                )
                for number, one in enumerate(samples.shards)
            ]
        _warn_of_sizes(recipe, day, samples)
        facts = {
            "day": day,
            "columns": samples.columns,
            "without_label": samples.without_label,
            "join_misses": samples.join_misses,
            "sample_hash": str(samples.sample_hash),
            "tables": digests,
        }
        manifest = Manifest(
            kind="samples", name=recipe.name, key=folder, files=tuple(shards), code=self.code, facts=facts
        )
        publish_manifest(store, manifest)
        return Day(day=day, manifest=manifest, new=True)

    def _tables_of(self, day: str) -> _DayTables:
        """What a day needs: its own rows, those of the days before for an as-of join, and sources without days."""
        wanted: dict[str, list[str | None]] = {self._recipe.data.rows.name: [day]}
        for join in self._recipe.data.joins:
            wanted[join.source.name] = [None, *earlier_days(join, day), day]
        tables = {name: [file for one in days for file in self._by_path(name, one)] for name, days in wanted.items()}
        by_file = needs_files(self._recipe.data.sharding)
        main = tables[self._recipe.data.rows.name]
        return _DayTables(tables=tables, files=[self._landing_files(file) if by_file else [] for file in main])

    def _by_path(self, source: str, day: str | None) -> list[Shard]:
        """Row files of a source and day in the order of the paths of the landing files that they hold."""
        found = [file for file in self._files if (file.facts["source"], file.facts["partition"]) == (source, day)]
        return sorted(found, key=self._landing_files) if len(found) > 1 else found

    def _landing_files(self, file: Shard) -> list[tuple[str, int]]:
        """Path and accepted rows of each landing file in a table's row file, in its order."""
        table = read_manifest(self._store, manifest_key(file.key.rpartition("/")[0]))
        return [(one["path"], one["rows"]) for one in table.facts["files"]]

    def _right_of(self, join: Join, files: Sequence[Shard]) -> pl.DataFrame:
        """What samples are joined to; of a source without days made once and held for all days."""
        tables = [Table(path=self._store.local_path(file.key), rows=file.rows or 0) for file in files]
        if any(file.facts["partition"] is not None for file in files):
            return read_right(tables, join)
        with self._lock:
            if join.source.name not in self._held:
                self._held[join.source.name] = read_right(tables, join)
            return self._held[join.source.name]


def _section(recipe: Recipe) -> dict[str, Any]:
    """What of the recipe decides over a day's samples."""
    data = recipe.data
    return {
        "label": dump(data.label),
        "key": data.rows.key,
        "known": {column.name: column.known for column in data.rows.columns},
        "joins": [
            {name: value for name, value in dump(join).items() if name != "source"}
            | {"source": join.source.name, "known": {column.name: column.known for column in join.source.columns}}
            for join in data.joins
        ],
        "sharding": dump(data.sharding),
        "own": None if data.sharding.by in SHARDINGS else code_digest(data.sharding.by.partition(":")[0]),
    }


def _placed_by(recipe: Recipe, needed: _DayTables) -> list[Any]:
    """What a sample's shard depends on beside the rows: how many came from which file; for a user's own, its path."""
    by_name = recipe.data.sharding.by not in SHARDINGS
    return [[[path, rows] if by_name else rows for path, rows in names] for names in needed.files if names]


def _check_hash(samples: Manifest, store: Store) -> None:
    total = sum(int(file.facts["sample_hash"]) for file in samples.files) & MASK
    if str(total) != samples.facts["sample_hash"]:
        raise StorageError(
            f"the shards of {samples.facts['day']} have the sample hash {total}, their rows had "
            f"{samples.facts['sample_hash']}; remove {store.uri(samples.key)} so that they are made again"
        )


def _warn_of_sizes(recipe: Recipe, day: str, samples: DaySamples) -> None:
    rows = [one.rows for one in samples.shards]
    if max(rows) > MANY_ROWS:
        log.warning(
            "shard: a shard of %s holds %d samples, and later steps may take a shard into memory; raise "
            "data.sharding.shards_per_day (%d now)", day, max(rows), len(rows),
        )  # fmt: skip
    if max(rows) and not min(rows) and recipe.data.sharding.by in ("path", "size"):
        log.warning(
            "shard: %d of %d shards of %s are empty: it has fewer files; shard by content, or lower "
            "data.sharding.shards_per_day", rows.count(0), len(rows), day,
        )  # fmt: skip
