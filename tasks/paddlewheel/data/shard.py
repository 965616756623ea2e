"""Rows to shards of samples, one immutable dataset a day, so that tomorrow moves no row of today.

A day's dataset is named by the bytes of the tables it is made of, not by their keys or places. Rows that were delivered
in other files, or lay in a database, make another name and, where the sharding allows it, the same files; all that
follows is named by those. Rejected: a name made of the multiset of rows, whose hash costs a pass over every column of
every row, to save one night's sharding when somebody cuts old files anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from paddlewheel.data.datasets import add_counts, dataset_folder, find_part, manifest_key, read_kind, window_facts
from paddlewheel.data.duplicates import KeyedFile, find_duplicates
from paddlewheel.data.order import MASK
from paddlewheel.data.plan import earlier_days
from paddlewheel.data.samples import Table, make_day
from paddlewheel.data.sharding import needs_files
from paddlewheel.errors import DataError, StorageError
from paddlewheel.manifest import (
    Manifest,
    Shard,
    code_digest,
    derive_key,
    input_of,
    publish_file,
    publish_manifest,
    read_manifest,
)
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_data import SHARDINGS
from paddlewheel.storage import Store

CODE: Final = tuple(
    f"paddlewheel.data.{name}"
    for name in ("shard", "samples", "sharding", "buckets", "shard_file", "join", "order", "text", "types", "xxh3")
)
MANY_ROWS: Final = 20_000_000
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _DayTables:
    """A day's row files by source, in the order of the paths of what they hold; `files`: those of the day's own rows.

    files: by table, path and rows of each landing file; empty where no sample's shard depends on them.
    """

    day: str
    tables: Mapping[str, Sequence[Shard]]
    files: Sequence[Sequence[tuple[str, int]]]


@dataclass(frozen=True, kw_only=True)
class _Day:
    """A day's dataset, and whether it was made now."""

    manifest: Manifest
    day: str
    new: bool


def shard(recipe: Recipe, validated_uri: str, *, store: Store) -> str:
    """Make the samples of the window's days that are not there yet; returns the URI of the `shards` manifest.

    Days found are verified by digest. Raises DataError where the training days or the holdout days leave no sample, or
    two rows have the same id, StorageError where a day's samples are not those that its rows became.
    """
    validated = read_kind(store, validated_uri, "validated")
    source_input, section, code = input_of(store, validated_uri), _section(recipe), code_digest(*CODE)
    folder = dataset_folder(recipe, "shards", derive_key("shards", source_input.digest, section, code))
    window = window_facts(validated.facts)
    days = [*window["train"], *window["holdout"]]
    files = [file for file in validated.files if file.facts["part"] == "rows"]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        asked = pool.map(lambda day: _make_day(recipe, day, files, section, code, store=store), days)
        made = list(asked)
    num_new = sum(day.new for day in made)
    if not num_new and store.stat(manifest_key(folder)) is not None:
        num_files = sum(len(day.manifest.files) for day in made)
        log.info("shards: already done, %d files verified, skipped (%s)", num_files, manifest_key(folder))
        return store.uri(manifest_key(folder))
    roles = dict.fromkeys(window["train"], "train") | dict.fromkeys(window["holdout"], "holdout")
    shards = tuple(
        Shard(
            key=one.key, bytes=one.bytes, digest=one.digest, rows=one.rows, facts={**one.facts, "role": roles[day.day]}
        )
        for day in made
        for one in day.manifest.files
    )
    _check_samples(recipe, shards, window, store)
    without_label = sum(day.manifest.facts["without_label"] for day in made)
    facts = {
        "without_label": without_label,
        "join_misses": add_counts(day.manifest.facts["join_misses"] for day in made),
        "columns": made[0].manifest.facts["columns"],
        "sample_hash": str(sum(int(day.manifest.facts["sample_hash"]) for day in made) & MASK),
    }
    log.info(
        "shard: %d days made, %d found with digests right; %d samples, %d rows without a label",
        num_new, len(made) - num_new, sum(one.rows or 0 for one in shards), without_label,
    )  # fmt: skip
    manifest = Manifest(
        kind="shards",
        name=recipe.name,
        key=folder,
        files=shards,
        inputs=(source_input,),
        code=code,
        facts=facts | window,
    )
    return publish_manifest(store, manifest)


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


def _make_day(
    recipe: Recipe, day: str, files: Sequence[Shard], section: Mapping[str, Any], code: str, *, store: Store
) -> _Day:
    needed = _tables_of(recipe, day, files, store)
    digests = {name: [file.digest for file in found] for name, found in needed.tables.items()}
    folder = dataset_folder(
        recipe, "samples", derive_key("samples", day, digests, _placed_by(recipe, needed), section, code)
    )
    if found := find_part(store, folder):
        _check_hash(found, store)
        return _Day(manifest=found, day=day, new=False)
    main = recipe.data.rows.name
    tables = {
        name: [Table(path=store.local_path(file.key), rows=file.rows or 0) for file in found]
        for name, found in needed.tables.items()
    }
    if needed.files:
        tables[main] = [
            Table(path=table.path, rows=table.rows, files=tuple(names))
            for table, names in zip(tables[main], needed.files, strict=True)
        ]
    with store.staging() as staging:
        samples = make_day(recipe, day, tables, staging)
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
    largest = max(one.rows for one in samples.shards)
    if largest > MANY_ROWS:
        log.warning(
            "shard: a shard of %s holds %d samples, and later steps take a shard into memory; raise "
            "data.sharding.shards_per_day (%d now)", day, largest, len(shards),
        )  # fmt: skip
    facts = {
        "day": day,
        "columns": samples.columns,
        "without_label": samples.without_label,
        "join_misses": samples.join_misses,
        "sample_hash": str(samples.sample_hash),
        "tables": digests,
    }
    manifest = Manifest(kind="samples", name=recipe.name, key=folder, files=tuple(shards), code=code, facts=facts)
    publish_manifest(store, manifest)
    return _Day(manifest=manifest, day=day, new=True)


def _tables_of(recipe: Recipe, day: str, files: Sequence[Shard], store: Store) -> _DayTables:
    """The row files that a day needs, by source: its own, those of the days before for an as-of join, and constants."""
    wanted: dict[str, list[str | None]] = {recipe.data.rows.name: [day]}
    for join in recipe.data.joins:
        wanted[join.source.name] = [None, *earlier_days(join, day), day]
    by_source: dict[str, list[Shard]] = {}
    for name, days in wanted.items():
        found = [file for file in files if file.facts["source"] == name]
        by_source[name] = [
            file for one in days for file in _by_path([file for file in found if file.facts["partition"] == one], store)
        ]
    main = by_source[recipe.data.rows.name]
    names = [_landing_files(file, store) for file in main] if needs_files(recipe.data.sharding) else []
    return _DayTables(day=day, tables=by_source, files=names)


def _by_path(files: list[Shard], store: Store) -> list[Shard]:
    """Row files of one source and day in the order of the paths of the landing files that they hold."""
    return sorted(files, key=lambda file: _landing_files(file, store)) if len(files) > 1 else files


def _landing_files(file: Shard, store: Store) -> list[tuple[str, int]]:
    """Path and accepted rows of each landing file in a table's row file, in its order."""
    table = read_manifest(store, manifest_key(file.key.rpartition("/")[0]))
    return [(one["path"], one["rows"]) for one in table.facts["files"]]


def _placed_by(recipe: Recipe, needed: _DayTables) -> list[Any]:
    """What a sample's shard depends on beside the rows: how many came from which file; for a user's own, its path."""
    by_name = recipe.data.sharding.by not in SHARDINGS
    return [[[path, rows] if by_name else rows for path, rows in names] for names in needed.files]


def _check_hash(samples: Manifest, store: Store) -> None:
    total = sum(int(file.facts["sample_hash"]) for file in samples.files) & MASK
    if str(total) != samples.facts["sample_hash"]:
        raise StorageError(
            f"the shards of {samples.facts['day']} have the sample hash {total}, their rows had "
            f"{samples.facts['sample_hash']}; remove {store.uri(samples.key)} so that they are made again"
        )


def _check_samples(recipe: Recipe, shards: Sequence[Shard], window: Mapping[str, Any], store: Store) -> None:
    """Samples in both roles, and each id once over the whole window: counts and the order proof rest on it."""
    rows, column = recipe.data.rows.name, recipe.data.label.column
    for role in ("train", "holdout"):
        if not sum(one.rows or 0 for one in shards if one.facts["role"] == role):
            raise DataError(
                f"{rows}: no row of the {role} days {window[role][0]}..{window[role][-1]} has a label: {column} is "
                "empty in all of them; wait for the outcomes to arrive, or choose another partition"
            )
    empty = sorted({one.facts["day"] for one in shards} - {one.facts["day"] for one in shards if one.rows})
    if empty:
        log.warning("shard: no row of %s has a label on %s", rows, ", ".join(empty))
    files = [
        KeyedFile(path=store.local_path(one.key), places=((one.facts["day"], one.rows or 0),))
        for one in shards
        if one.rows
    ]
    with store.staging() as scratch:
        twice = find_duplicates(files, ["sample_id"], scratch=scratch, most=1)
    if twice.num_keys:
        first = twice.examples[0]
        raise DataError(
            f"{twice.num_keys} sample ids stand for more than one row of the window, {first.key[0]:#x} of "
            f"{' and '.join(first.places)} first; data.rows.key must tell rows apart: add a column to it"
        )
