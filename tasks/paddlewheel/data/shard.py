"""Rows to samples: label, joins, sample id, shard. One immutable dataset a day, so that tomorrow moves no row of today.

A sample's id is the xxh3 of its key's canonical text (without a key: of its day and row number), and its shard follows
from the id alone. Columns that are known only after the prediction never leave this step, but for the label of one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from paddlewheel.data.datasets import add_counts, dataset_folder, find_part, manifest_key, read_kind, window_facts
from paddlewheel.data.join import join_source
from paddlewheel.data.plan import earlier_days
from paddlewheel.data.text import NULL_TEXT, hash_each, joined_text
from paddlewheel.errors import DataError
from paddlewheel.manifest import (
    Input,
    Manifest,
    Shard,
    code_digest,
    derive_key,
    input_of,
    publish_file,
    publish_manifest,
)
from paddlewheel.recipe import Recipe, dump
from paddlewheel.storage import Store

ROW = "(row)"
CODE = tuple(f"paddlewheel.data.{name}" for name in ("shard", "join", "text"))
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Day:
    """A day's dataset, and whether it was made now."""

    manifest: Manifest
    day: str
    new: bool


def shard(recipe: Recipe, validated_uri: str, *, store: Store) -> str:
    """Make the samples of the window's days that are not there yet; returns the URI of the `shards` manifest.

    Days found are verified by digest. Raises DataError where the training days or the holdout days leave no sample, or
    two rows have the same id.
    """
    validated = read_kind(store, validated_uri, "validated")
    source_input, code = input_of(store, validated_uri), code_digest(*CODE)
    section = _section(recipe)
    key = derive_key("shards", source_input.digest, section, code)
    folder = dataset_folder(recipe, "shards", key)
    files = [file for file in validated.files if file.facts["part"] == "rows"]
    window = window_facts(validated.facts)
    days = [*window["train"], *window["holdout"]]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        made = list(pool.map(lambda day: _make_day(recipe, day, files, section, code, store=store), days))
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
        "shards_per_day": data.sharding.shards_per_day,
    }


def _make_day(
    recipe: Recipe, day: str, files: Sequence[Shard], section: Mapping[str, Any], code: str, *, store: Store
) -> _Day:
    tables = _tables_of(recipe, day, files)
    digests = {name: [[file.key, file.digest] for file in found] for name, found in tables.items()}
    folder = dataset_folder(recipe, "samples", derive_key("samples", day, digests, section, code))
    if found := find_part(store, folder):
        return _Day(manifest=found, day=day, new=False)
    frames = {name: _read(found, store) for name, found in tables.items()}
    samples, counts = make_samples(recipe, day, frames)
    numbers = samples["sample_id"].to_numpy() % np.uint64(recipe.data.sharding.shards_per_day)
    shards = []
    with store.staging() as staging:
        for number in range(recipe.data.sharding.shards_per_day):
            part = samples.filter(pl.Series(numbers == number))
            path = staging / f"shard-{number:03d}.parquet"
            part.write_parquet(path, compression="zstd", statistics=False)
            facts = {"day": day, "shard": number}
            shards.append(publish_file(store, f"{folder}/{path.name}", path, rows=part.height, facts=facts))
    manifest = Manifest(
        kind="samples",
        name=recipe.name,
        key=folder,
        files=tuple(shards),
        inputs=tuple(Input(key=file.key, digest=file.digest) for found in tables.values() for file in found),
        code=code,
        facts={"day": day, "columns": samples.columns, **counts},
    )
    publish_manifest(store, manifest)
    return _Day(manifest=manifest, day=day, new=True)


def make_samples(recipe: Recipe, day: str, frames: Mapping[str, pl.DataFrame]) -> tuple[pl.DataFrame, dict[str, Any]]:
    """(samples sorted by id, {without_label, join_misses}) of one day's rows and the tables they are joined with."""
    data = recipe.data
    rows = frames[data.rows.name]
    labelled = rows.with_row_index(ROW).filter(pl.col(data.label.column).is_not_null())
    label = (labelled[data.label.column] > data.label.above).cast(pl.Float32).alias("label")
    key = [labelled[name] for name in data.rows.key] or [pl.repeat(day, len(labelled), eager=True), labelled[ROW]]
    ids = pl.Series("sample_id", hash_each(joined_text(key, null=NULL_TEXT)))
    known = [column.name for column in data.rows.columns if column.known == "before"]
    samples = labelled.select(ids, label, *known)
    misses = {}
    for join in data.joins:
        samples, misses[join.source.name] = join_source(samples, frames[join.source.name], join)
    counts = {"without_label": rows.height - labelled.height, "join_misses": misses}
    return samples.sort("sample_id"), counts


def _tables_of(recipe: Recipe, day: str, files: Sequence[Shard]) -> dict[str, list[Shard]]:
    """The row files that a day needs, by source: its own, those of the days before for an as-of join, and constants."""
    wanted: dict[str, set[str | None]] = {recipe.data.rows.name: {day}}
    for join in recipe.data.joins:
        wanted[join.source.name] = {None, day, *earlier_days(join, day)}
    return {
        name: [file for file in files if file.facts["source"] == name and file.facts["partition"] in days]
        for name, days in wanted.items()
    }


def _read(files: Sequence[Shard], store: Store) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(store.local_path(file.key)) for file in files])


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
    paths = [store.local_path(one.key) for one in shards]
    ids = pl.scan_parquet(paths).select("sample_id").collect().to_series()
    twice = ids.filter(ids.is_duplicated())
    if twice.len():
        raise DataError(
            f"{twice.n_unique()} sample ids stand for more than one row of the window, {twice[0]:#x} first; "
            "data.rows.key must tell rows apart: add a column to it"
        )
