"""Samples to fixed-width rows: the fitted features applied once, in batches that workers can share out.

Each shard's rows are a part of their own, named by the shard's and the features' bytes: the next night packs only the
day that is new to it, where its features are the same, and another model packs nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from paddlewheel.data.datasets import NUM_LOOKERS, dataset_folder, find_part, manifest_key, read_kind, window_facts
from paddlewheel.data.encoding.fitted import FittedFeatures
from paddlewheel.data.features import APPLY_CODE, load_features
from paddlewheel.data.packed import Layout, PackedWriter
from paddlewheel.data.row_batches import read_batches
from paddlewheel.errors import RecipeError
from paddlewheel.manifest import (
    Manifest,
    Shard,
    code_digest,
    derive_key,
    input_of,
    publish_file,
    publish_manifest,
)
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store

CODE = (*APPLY_CODE, "paddlewheel.data.preprocess", "paddlewheel.data.packed")
PIECE_BYTES = 64 << 20  # of packed rows that are made at a time
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
    compression = recipe.data.compression
    mine = [[shard.key, shard.digest] for shard in batches[batch]]
    key = derive_key("packed", [one.digest for one in inputs], mine, batch, len(batches), compression, code)
    folder = dataset_folder(recipe, "packed", key)
    features_file = read_kind(store, features_uri, "features").files[0]
    features = load_features(store, features_uri)
    files, num_new = [], 0
    folders = [_part_folder(recipe, shard, features_file, code) for shard in batches[batch]]
    with ThreadPoolExecutor(NUM_LOOKERS) as pool:
        found = list(pool.map(functools.partial(find_part, store), folders))
    for shard, there in zip(batches[batch], found, strict=True):
        part = there or _pack_part(recipe, shard, features_file, features, code, store=store)
        num_new += there is None
        rows = part.files[0]
        facts = {**shard.facts, "shard_key": shard.key, "layout": part.facts["layout"]}
        files.append(Shard(key=rows.key, bytes=rows.bytes, digest=rows.digest, rows=rows.rows, facts=facts))
    if not num_new and store.stat(manifest_key(folder)) is not None:
        log.info("packed: already done, %d files verified, skipped (%s)", len(files), manifest_key(folder))
        return store.uri(manifest_key(folder))
    log.info(
        "preprocess: batch %d of %d: %d rows; %d shards packed, %d found with digests right",
        batch + 1, len(batches), sum(file.rows or 0 for file in files), num_new, len(files) - num_new,
    )  # fmt: skip
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


def _pack_part(
    recipe: Recipe, shard: Shard, features_file: Shard, features: FittedFeatures, code: str, *, store: Store
) -> Manifest:
    """Make the part with one shard's packed rows."""
    compression, folder = recipe.data.compression, _part_folder(recipe, shard, features_file, code)
    layout = Layout(num_ids=len(features.id_names), num_dense=len(features.dense_names))
    columns = ["sample_id", "label", *features.columns]
    with store.staging() as staging:
        path = staging / "rows.parquet"
        with PackedWriter(path, layout, compression=compression) as writer:
            for frame in read_batches(store.local_path(shard.key), columns):
                for piece in frame.iter_slices(max(1, PIECE_BYTES // layout.row_bytes)):
                    writer.add(piece["sample_id"].to_numpy(), piece["label"].to_numpy(), features.apply(piece))
        file = publish_file(store, f"{folder}/{path.name}", path, rows=writer.rows)
    manifest = Manifest(
        kind="rows",
        name=recipe.name,
        key=folder,
        files=(file,),
        code=code,
        facts={
            "shard_digest": shard.digest,
            "features_digest": features_file.digest,
            "compression": compression,
            "layout": layout.to_facts(),
        },
    )
    publish_manifest(store, manifest)
    return manifest


def _part_folder(recipe: Recipe, shard: Shard, features_file: Shard, code: str) -> str:
    key = derive_key("rows", shard.digest, features_file.digest, recipe.data.compression, code)
    return dataset_folder(recipe, "rows", key)


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
