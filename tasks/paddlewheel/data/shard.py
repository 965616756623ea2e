"""Rows to shards of samples, one immutable dataset a day, so that tomorrow moves no row of today."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paddlewheel.data.checks.duplicates import KeyedFile, find_duplicates
from paddlewheel.data.datasets import add_counts, dataset_folder, manifest_key, read_kind, window_facts
from paddlewheel.data.order import MASK
from paddlewheel.data.samples.part import DayMaker
from paddlewheel.errors import DataError
from paddlewheel.manifest import Manifest, Shard, code_digest, derive_key, input_of, publish_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store

log = logging.getLogger(__name__)


def shard(recipe: Recipe, validated_uri: str, *, store: Store) -> str:
    """Make the samples of the window's days that are not there yet; returns the URI of the `shards` manifest.

    Days found are verified by digest. Raises DataError where the training days or the holdout days leave no sample, or
    two rows have the same id, StorageError where a day's samples are not those that its rows became.
    """
    validated = read_kind(store, validated_uri, "validated")
    source_input, code = input_of(store, validated_uri), code_digest("paddlewheel.data.shard")
    maker = DayMaker(recipe, [file for file in validated.files if file.facts["part"] == "rows"], store=store)
    key = derive_key("shards", source_input.digest, maker.section, maker.code, code)
    folder = dataset_folder(recipe, "shards", key)
    window = window_facts(validated.facts)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        made = list(pool.map(maker.make, [*window["train"], *window["holdout"]]))
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
    unlabelled = {day.day: day.manifest.facts["without_label"] for day in made}
    _check_samples(recipe, shards, window, unlabelled, store)
    without_label = sum(unlabelled.values())
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


def _check_samples(
    recipe: Recipe,
    shards: Sequence[Shard],
    window: Mapping[str, Any],
    unlabelled: Mapping[str, int],
    store: Store,
) -> None:
    """Samples in both roles, and each id once over the whole window: counts and the order proof rest on it.

    unlabelled: rows without a label by day.
    """
    rows, column = recipe.data.rows.name, recipe.data.label.column
    for role in ("train", "holdout"):
        if not sum(one.rows or 0 for one in shards if one.facts["role"] == role):
            days = f"the {role} days {window[role][0]}..{window[role][-1]}"
            if not any(unlabelled[day] for day in window[role]):
                raise DataError(
                    f"{rows}: no row is left of {days}: their files are empty or could not be read, or every row was "
                    "refused, as ingest and validate told; deliver them again, or choose another partition"
                )
            raise DataError(
                f"{rows}: no row of {days} has a label: {column} is empty in all of them; wait for the outcomes to "
                "arrive, or choose another partition"
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
