"""Samples to fixed-width rows: the fitted features applied once, in batches that workers can share out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import polars as pl

from paddlewheel.data.datasets import dataset_folder, manifest_key, read_kind, window_facts
from paddlewheel.data.features import load_features
from paddlewheel.data.packed import write_packed
from paddlewheel.errors import RecipeError
from paddlewheel.manifest import (
    Manifest,
    Shard,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_file,
    publish_manifest,
)
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store

CODE = tuple(f"paddlewheel.data.{name}" for name in ("preprocess", "packed", "features", "encode", "text", "types"))
log = logging.getLogger(__name__)


def plan_batches(recipe: Recipe, shards_uri: str, *, store: Store) -> list[int]:
    """Numbers of the batches into which `preprocess` cuts the shards: at most data.max_batches."""
    shards = read_kind(store, shards_uri, "shards")
    return list(range(len(_cut(shards.files, recipe.data.max_batches))))


def preprocess(recipe: Recipe, shards_uri: str, features_uri: str, batch: int, *, store: Store) -> str:
    """Pack one batch of shards; returns the URI of its `packed` manifest. Raises RecipeError for no such batch."""
    shards = read_kind(store, shards_uri, "shards")
    batches = _cut(shards.files, recipe.data.max_batches)
    if not 0 <= batch < len(batches):
        raise RecipeError(f"there is no batch {batch}: these shards have the batches 0 to {len(batches) - 1}")
    inputs, code = (input_of(store, shards_uri), input_of(store, features_uri)), code_digest(*CODE)
    key = derive_key("packed", [one.digest for one in inputs], [shard.digest for shard in batches[batch]], code)
    folder = dataset_folder(recipe, "packed", key)
    if find_done(store, manifest_key(folder)):
        return store.uri(manifest_key(folder))
    features = load_features(store, features_uri)
    files = []
    with store.staging() as staging:
        for number, shard in enumerate(batches[batch]):
            frame = pl.read_parquet(store.local_path(shard.key))
            path = staging / f"part-{number:05d}.parquet"
            layout = write_packed(path, frame["sample_id"].to_numpy(), frame["label"].to_numpy(), features.apply(frame))
            facts = {**shard.facts, "shard_key": shard.key, "layout": layout.to_facts()}
            files.append(publish_file(store, f"{folder}/{path.name}", path, rows=frame.height, facts=facts))
    log.info("preprocess: batch %d of %d: %d rows", batch + 1, len(batches), sum(file.rows or 0 for file in files))
    manifest = Manifest(
        kind="packed",
        name=recipe.name,
        key=folder,
        files=tuple(files),
        inputs=inputs,
        code=code,
        facts={"batch": batch, "batches": len(batches)} | window_facts(shards.facts),
    )
    return publish_manifest(store, manifest)


def _cut(shards: Sequence[Shard], most: int) -> list[list[Shard]]:
    """Contiguous runs of shards of about equal rows, none empty: the order of the shards is the order of the rows."""
    total = sum(shard.rows or 0 for shard in shards)
    count = max(1, min(most, len(shards)))
    batches: list[list[Shard]] = [[] for _ in range(count)]
    seen, at = 0, 0
    for index, shard in enumerate(shards):
        left = len(shards) - index
        full = bool(batches[at]) and seen * count >= total * (at + 1)
        if at < count - 1 and batches[at] and (full or left == count - 1 - at):
            at += 1
        batches[at].append(shard)
        seen += shard.rows or 0
    return batches
