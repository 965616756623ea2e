"""The recipe's limits on what was ingested: how much may be refused, no row twice over all files, and a profile."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from paddlewheel.data.datasets import add_counts, dataset_folder, manifest_key, read_kind, window_facts
from paddlewheel.errors import DataError
from paddlewheel.manifest import (
    Manifest,
    Shard,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_manifest,
    read_manifest,
)
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_data import Column, Source
from paddlewheel.storage import Store

MAX_TOLD = 5
MOST_TOP_VALUES = 5
log = logging.getLogger(__name__)


def validate(recipe: Recipe, ingest_uris: Sequence[str], *, store: Store) -> str:
    """Hold the window's tables, of all batches, against the recipe; returns the URI of the `validated` manifest.

    Raises DataError where more rows were refused than a source's max_refused_fraction bears, over the window or in the
    partition's own file, or where two files hold a row of the same key.
    """
    batches = [read_kind(store, uri, "ingest") for uri in ingest_uris]
    tables = [file for batch in batches for file in batch.files]
    tables.sort(key=lambda file: (file.facts["source"], file.facts["partition"] or "", file.key))
    sources = [recipe.data.rows, *(join.source for join in recipe.data.joins)]
    code = code_digest("paddlewheel.data.validate")
    inputs = tuple(input_of(store, uri) for uri in ingest_uris)
    key = derive_key("validated", [one.digest for one in inputs], [dump(source) for source in sources], code)
    folder = dataset_folder(recipe, "validated", key)
    if find_done(store, manifest_key(folder)):
        return store.uri(manifest_key(folder))
    faults = []
    for source in sources:
        files = [file for file in tables if file.facts["source"] == source.name]
        faults += list(_refused_beyond(source, files, batches[0].facts["partition"], store))
        faults += list(_rows_twice(source, _row_files(files), store))
    if faults:
        raise DataError("\n".join(faults))
    main = recipe.data.rows
    counts = {name: add_counts(batch.facts[name] for batch in batches) for name in ("rows", "refused")}
    rows, refused = counts["rows"][main.name], counts["refused"][main.name]
    facts = {
        "rows": rows,
        "refused": refused,
        "refused_by_reason": add_counts(batch.facts["reasons"].get(main.name, {}) for batch in batches),
        "refused_by_source": counts["refused"],
        "days": _days(main, tables),
        "profile": {source.name: _profile(source, tables, store) for source in sources},
    }
    log.info("validate: %d rows of %s, %d refused, within the recipe's limits", rows, main.name, refused)
    manifest = Manifest(
        kind="validated",
        name=recipe.name,
        key=folder,
        files=tuple(tables),
        inputs=inputs,
        code=code,
        facts=facts | window_facts(batches[0].facts),
    )
    return publish_manifest(store, manifest)


def _days(source: Source, files: Sequence[Shard]) -> list[dict[str, Any]]:
    """Rows and refused rows of each day of the main source."""
    found = [file for file in _row_files(files) if file.facts["source"] == source.name]
    return [{"day": file.facts["partition"], "rows": file.rows, "refused": file.facts["refused"]} for file in found]


def _refused_beyond(source: Source, files: Sequence[Shard], partition: str, store: Store) -> Iterator[str]:
    """A sentence for the window, or else for the partition's own file, where more was refused than is borne."""
    own = [file for file in files if file.facts["partition"] == partition]
    for where, some in ((f"{source.name} in the window", files), (f"{source.name} of {partition}", own)):
        rows = sum(file.rows or 0 for file in some)
        refused = sum(file.facts["refused"] for file in _row_files(some))
        if refused > source.max_refused_fraction * (rows + refused):
            share = refused / (rows + refused)
            lists = [store.uri(file.key) for file in some if file.facts["part"] == "refused"]
            more = f" and {len(lists) - 1} more such files" if len(lists) > 1 else ""
            examples = "".join(f"\n  {line}" for line in _examples(some, store))
            yield (
                f"{where}: {refused} of {rows + refused} rows were refused ({share:.2%}); the recipe bears "
                f"max_refused_fraction {source.max_refused_fraction:.2%}. Mend the files, or raise the limit if this "
                f"is as it should be. All stand in {lists[0]}{more}; the first:{examples}"
            )
            return


def _examples(files: Sequence[Shard], store: Store) -> Iterator[str]:
    """The first refusals, each with file, line, column, value and reason."""
    told = 0
    for file in files:
        if file.facts["part"] != "refused":
            continue
        for raw in store.read(file.key).splitlines():
            entry = json.loads(raw)
            for reason in entry["reasons"]:
                place = f"{entry['file']} line {entry['line']}, column {reason['column']}"
                yield f"{place}: {reason['value']!r}: {reason['reason']}"
                told += 1
                if told == MAX_TOLD:
                    return


def _rows_twice(source: Source, files: Sequence[Shard], store: Store) -> Iterator[str]:
    """A sentence where the same key stands in more than one file (within one file the later row was refused)."""
    if not source.key or len(files) < 2:
        return
    keys = pl.concat(
        [
            pl.scan_parquet(store.local_path(file.key)).select(*source.key, _file=pl.lit(_name_of(file, store)))
            for file in files
        ]
    )
    twice = (
        keys.group_by(source.key)
        .agg(files=pl.col("_file").unique().sort())
        .filter(pl.col("files").list.len() > 1)
        .sort(*source.key)
        .collect()
    )
    for row in twice.head(MAX_TOLD).iter_rows(named=True):
        named = ", ".join(f"{name} {row[name]}" for name in source.key)
        yield f"{source.name}: {named} stands in {' and in '.join(row['files'])}; one row a key: take it out of one"
    if len(twice) > MAX_TOLD:
        yield f"{source.name}: … and {len(twice) - MAX_TOLD} more rows that stand in two files"


def _name_of(file: Shard, store: Store) -> str:
    """The landing files of a table's rows."""
    table = read_manifest(store, manifest_key(file.key.rpartition("/")[0]))
    return ", ".join(one["path"] for one in table.facts["files"])


def _profile(source: Source, files: Sequence[Shard], store: Store) -> dict[str, Any]:
    """By column over the window: rows, nulls, distinct values, and range and mean, or the most frequent."""
    paths = [store.local_path(file.key) for file in _row_files(files) if file.facts["source"] == source.name]
    frame = pl.read_parquet(paths)
    return {column.name: _statistics(frame[column.name], column) for column in source.columns}


def _statistics(values: pl.Series, column: Column) -> dict[str, Any]:
    """Plain JSON. Nothing here may depend on threads or hash seeds: equal rows must give an equal manifest."""
    facts: dict[str, Any] = {"rows": len(values), "nulls": values.null_count(), "distinct": values.n_unique()}
    if column.type in ("string", "bool"):
        counts = (
            values.alias("value").value_counts().drop_nulls("value").sort("count", "value", descending=[True, False])
        )
        return facts | {"top": [list(row) for row in counts.head(MOST_TOP_VALUES).iter_rows()]}
    lowest, highest = values.min(), values.max()
    if column.type in ("int64", "float64"):
        return facts | {"minimum": lowest, "maximum": highest, "mean": values.mean()}
    return facts | {name: value and value.isoformat() for name, value in (("minimum", lowest), ("maximum", highest))}


def _row_files(files: Sequence[Shard]) -> list[Shard]:
    return [file for file in files if file.facts["part"] == "rows"]
