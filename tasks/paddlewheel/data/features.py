"""Features fitted on the training window: each shard is read batch by batch, and what is learnt is exact.

What is learnt is a part of its own, named by the training shards' files and the recipe's features, so that another
model on the same rows, or the same rows by another way, finds it again.
"""

from __future__ import annotations

import logging
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from paddlewheel.data.datasets import dataset_folder, find_part, manifest_key, read_kind, window_facts
from paddlewheel.data.encoding.encode import FittedFeature
from paddlewheel.data.encoding.fitted import FittedFeatures, select_typed
from paddlewheel.data.encoding.fitting import Fitter, build_fitter
from paddlewheel.data.row_batches import read_batches
from paddlewheel.data.types import column_type
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.manifest import (
    Manifest,
    Shard,
    code_digest,
    derive_key,
    input_of,
    publish_file,
    publish_manifest,
)
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_data import ColumnType, Feature
from paddlewheel.storage import Store

FEATURES_NAME = "features.json"
APPLY_CODE = ("paddlewheel.data.encoding", "paddlewheel.data.text", "paddlewheel.data.types", "paddlewheel.data.xxh3")
FIT_CODE = (*APPLY_CODE, "paddlewheel.data.features")
VALUES_A_PASS = 1 << 24  # rows times features of one pass: many rows are passed once a feature, for memory's sake
FACTS = ("rows", "id_names", "id_sizes", "dense_names", "columns")
MOST_IDS = 2**31 - 1
log = logging.getLogger(__name__)

Read = Callable[[Sequence[str]], Iterator[pl.DataFrame]]


def fit_features(recipe: Recipe, shards_uri: str, *, store: Store) -> str:
    """Fit the recipe's features on the training shards; returns the URI of the `features` manifest.

    Raises DataError where there are no training rows, RecipeError where they have more ids than a network takes.
    """
    shards, source = read_kind(store, shards_uri, "shards"), input_of(store, shards_uri)
    section, code = dump_features(recipe), code_digest(*FIT_CODE)
    folder = dataset_folder(recipe, "features", derive_key("features", source.key, source.digest, section, code))
    train = [shard for shard in shards.files if shard.facts["role"] == "train"]
    part, new = _fit_part(recipe, train, section, code, store=store)
    if not new and store.stat(manifest_key(folder)) is not None:
        log.info("features: already done, %d files verified, skipped (%s)", len(part.files), manifest_key(folder))
        return store.uri(manifest_key(folder))
    if not new:
        log.info("fit_features: found fitted on the same rows (%s)", part.key)
    manifest = Manifest(
        kind="features",
        name=recipe.name,
        key=folder,
        files=part.files,
        inputs=(source,),
        code=code,
        facts={**{name: part.facts[name] for name in FACTS}, **window_facts(shards.facts)},
    )
    return publish_manifest(store, manifest)


def load_features(store: Store, features_uri: str) -> FittedFeatures:
    """The fitted features of a `features` manifest."""
    manifest = read_kind(store, features_uri, "features")
    return FittedFeatures.from_json(store.read(manifest.files[0].key))


def dump_features(recipe: Recipe) -> list[Any]:
    """The features section as plain JSON."""
    return [dump(feature) for feature in recipe.features]


def fit(frame: pl.DataFrame, features: Sequence[Feature]) -> FittedFeatures:
    """What the features become on these training rows, whatever their order.

    Raises DataError for a column that the rows do not have, RecipeError for an unknown time zone.
    """
    return _fit(lambda columns: iter([frame.select(columns)]), dict(frame.schema), len(frame), features)


def fit_files(paths: Sequence[Path], features: Sequence[Feature], *, rows: int) -> FittedFeatures:
    """The same on the rows of Parquet files, whatever their order, read in bounded memory."""

    def read(columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        for path in paths:
            yield from read_batches(path, columns)

    return _fit(read, dict(pl.read_parquet_schema(paths[0])) if paths else {}, rows, features)


def _fit_part(
    recipe: Recipe, train: Sequence[Shard], section: Sequence[Any], code: str, *, store: Store
) -> tuple[Manifest, bool]:
    """The part with features.json, and whether it was made now."""
    digests = sorted(shard.digest for shard in train)
    folder = dataset_folder(recipe, "fitted", derive_key("fitted", digests, section, code))
    if found := find_part(store, folder):
        return found, False
    rows = sum(shard.rows or 0 for shard in train)
    paths = [store.local_path(shard.key) for shard in train if shard.rows]
    fitted = fit_files(paths, recipe.features, rows=rows)
    _check_ids(fitted)
    with store.staging() as staging:
        path = staging / FEATURES_NAME
        path.write_bytes(fitted.to_json())
        file = publish_file(store, f"{folder}/{FEATURES_NAME}", path)
    facts = {
        "rows": rows,
        "shard_digests": digests,
        "id_names": fitted.id_names,
        "id_sizes": fitted.id_sizes,
        "dense_names": fitted.dense_names,
        "columns": fitted.columns,
    }
    log.info("fit_features: %d id columns, %d numbers", len(fitted.id_names), len(fitted.dense_names))
    manifest = Manifest(kind="fitted", name=recipe.name, key=folder, files=(file,), code=code, facts=facts)
    publish_manifest(store, manifest)
    return manifest, True


def _fit(read: Read, schema: Mapping[str, Any], rows: int, features: Sequence[Feature]) -> FittedFeatures:
    names = list(dict.fromkeys(name for feature in features for name in feature.columns))
    if not rows:
        raise DataError("there are no training rows to fit features on; widen data.window.train_days")
    missing = [name for name in names if name not in schema]
    if missing:
        raise DataError(f"the training rows have no column {', '.join(missing)}; they have {', '.join(schema)}")
    _check_time_zones(features)
    types = {name: column_type(schema[name], name) for name in names}
    built = {feature.name: build_fitter(feature) for feature in features}
    learning = {name: one for name, one in built.items() if not isinstance(one, FittedFeature)}
    a_pass = max(1, VALUES_A_PASS // rows)
    order = list(learning)
    for start in range(0, len(order), a_pass):
        group = [feature for feature in features if feature.name in order[start : start + a_pass]]
        _learn(read, types, group, learning)
    fitted = [one if isinstance(one, FittedFeature) else one.fitted() for one in built.values()]
    return FittedFeatures(features=tuple(fitted), column_types=types)


def _learn(
    read: Read, types: Mapping[str, ColumnType], features: Sequence[Feature], learning: Mapping[str, Fitter]
) -> None:
    """Pass the rows by the features' fitters, for as long as one of them needs them again."""
    while features:
        columns = list(dict.fromkeys(name for feature in features for name in feature.columns))
        for frame in read(columns):
            typed = select_typed(frame, {name: types[name] for name in columns})
            for feature in features:
                learning[feature.name].add(typed)
        features = [feature for feature in features if learning[feature.name].end_pass()]


def _check_time_zones(features: Sequence[Feature]) -> None:
    zones = {feature.timezone: feature.name for feature in features if feature.timezone}
    known = zoneinfo.available_timezones() if zones else set()
    for zone, name in zones.items():
        if zone not in known:
            raise RecipeError(f"feature {name!r}: there is no time zone {zone!r}")


def _check_ids(fitted: FittedFeatures) -> None:
    if sum(fitted.id_sizes) > MOST_IDS:
        sizes = {feature.name: feature.id_size * len(feature.id_names) for feature in fitted.features if feature.is_id}
        largest = max(sizes, key=lambda name: sizes[name])
        raise RecipeError(
            f"features: {sum(fitted.id_sizes):,} ids together, and a network's table takes {MOST_IDS:,}; "
            f"{largest!r} has {sizes[largest]:,} of them: give it fewer buckets, a max_size or a shorter length"
        )
