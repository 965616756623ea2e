"""Fitted features: what a recipe's features became on the training window, and their one application to rows.

Training, evaluation and serving all call `FittedFeatures.apply`: a second implementation for serving would drift.
"""

from __future__ import annotations

import json
import logging
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from paddlewheel.data.datasets import dataset_folder, manifest_key, read_kind, window_facts
from paddlewheel.data.encode import CIRCLE_KINDS, FittedFeature, dense_values, id_values, raw_value
from paddlewheel.data.text import joined_text
from paddlewheel.data.types import coerce, column_type
from paddlewheel.errors import DataError, RecipeError, StorageError
from paddlewheel.manifest import Manifest, code_digest, derive_key, find_done, input_of, publish_file, publish_manifest
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_data import ColumnType, Feature
from paddlewheel.storage import Store

FEATURES_VERSION = 1
FEATURES_NAME = "features.json"
CODE = tuple(f"paddlewheel.data.{name}" for name in ("features", "encode", "text", "types"))
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Model inputs of B rows: ids_BF int32 (F id columns), dense_BD float32 (D numbers)."""

    ids_BF: np.ndarray
    dense_BD: np.ndarray


@dataclass(frozen=True, kw_only=True)
class FittedFeatures:
    """All features of a model in the recipe's order. `column_types`: the raw columns that `apply` reads, with types."""

    features: tuple[FittedFeature, ...]
    column_types: Mapping[str, ColumnType]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.column_types)

    @property
    def id_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.features if feature.is_id)

    @property
    def id_sizes(self) -> tuple[int, ...]:
        """Each id column holds 0 <= id < size; 0 is unknown or missing."""
        return tuple(feature.id_size for feature in self.features if feature.is_id)

    @property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(name for feature in self.features if not feature.is_id for name in feature.dense_names)

    def apply(self, frame: pl.DataFrame) -> Inputs:
        """Model inputs of the frame's rows, in their order. Further columns are ignored.

        Raises DataError that tells every column that is missing or holds a value that is not of its type.
        """
        typed = select_typed(frame, self.column_types)
        ids = [id_values(feature, typed) for feature in self.features if feature.is_id]
        dense = [column for feature in self.features if not feature.is_id for column in dense_values(feature)]
        ids_BF = np.zeros((len(frame), len(ids)), np.int32)
        for index, column in enumerate(ids):
            ids_BF[:, index] = column
        dense_BD = np.zeros((len(frame), len(dense)), np.float32)
        for index, series in enumerate(typed.select(dense).get_columns()):
            dense_BD[:, index] = series.to_numpy()
        return Inputs(ids_BF=ids_BF, dense_BD=dense_BD)

    def to_json(self) -> bytes:
        """Canonical JSON; equal features have equal bytes."""
        tree = {
            "version": FEATURES_VERSION,
            "columns": [{"name": name, "type": kind} for name, kind in self.column_types.items()],
            "features": [asdict(feature) for feature in self.features],
        }
        return (json.dumps(tree, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()

    @staticmethod
    def from_json(raw: bytes) -> FittedFeatures:
        """Raises StorageError for anything but features of this version."""
        try:
            tree = json.loads(raw)
            if tree["version"] != FEATURES_VERSION:
                raise StorageError(f"features of version {tree['version']}, this program reads {FEATURES_VERSION}")
            return FittedFeatures(
                features=tuple(_feature_of(one) for one in tree["features"]),
                column_types={column["name"]: column["type"] for column in tree["columns"]},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"not fitted features: {error!r}") from error


def select_typed(frame: pl.DataFrame, column_types: Mapping[str, ColumnType]) -> pl.DataFrame:
    """The named columns in their declared types. Raises DataError that tells every column that cannot be."""
    faults, columns = [], []
    for name, kind in column_types.items():
        if name not in frame.columns:
            faults.append(f"column {name!r} ({kind}) is missing")
            continue
        try:
            columns.append(coerce(frame[name], kind))
        except DataError as error:
            faults.append(str(error))
    if faults:
        raise DataError("the rows do not fit the model's features: " + "; ".join(faults))
    return pl.DataFrame(columns)


def fit(frame: pl.DataFrame | pl.LazyFrame, features: Sequence[Feature]) -> FittedFeatures:
    """What the features become on these training rows; the order of the rows only matters to the last bit of a mean.

    Raises DataError for a column that the rows do not have, RecipeError for an unknown time zone.
    """
    lazy = frame.lazy()
    schema = dict(lazy.collect_schema())
    names = list(dict.fromkeys(name for feature in features for name in feature.columns))
    missing = [name for name in names if name not in schema]
    if missing:
        raise DataError(f"the training rows have no column {', '.join(missing)}; they have {', '.join(schema)}")
    rows = lazy.select(names).collect()
    if not len(rows):
        raise DataError("there are no training rows to fit features on; widen data.window.train_days")
    column_types = {name: column_type(schema[name], name) for name in names}
    return FittedFeatures(features=tuple(_fit_one(feature, rows) for feature in features), column_types=column_types)


def fit_features(recipe: Recipe, shards_uri: str, *, store: Store) -> str:
    """Fit the recipe's features on the training shards; returns the URI of the `features` manifest."""
    shards, source, code = read_kind(store, shards_uri, "shards"), input_of(store, shards_uri), code_digest(*CODE)
    folder = dataset_folder(
        recipe, "features", derive_key("features", source.key, source.digest, dump_features(recipe), code)
    )
    if find_done(store, manifest_key(folder)):
        return store.uri(manifest_key(folder))
    train = [shard for shard in shards.files if shard.facts["role"] == "train"]
    if not train:
        raise DataError(f"{shards_uri} has no training shards")
    fitted = fit(pl.scan_parquet([store.local_path(shard.key) for shard in train]), recipe.features)
    with store.staging() as staging:
        path = staging / FEATURES_NAME
        path.write_bytes(fitted.to_json())
        file = publish_file(store, f"{folder}/{FEATURES_NAME}", path)
    facts = {
        "rows": sum(shard.rows or 0 for shard in train),
        "id_names": fitted.id_names,
        "id_sizes": fitted.id_sizes,
        "dense_names": fitted.dense_names,
        "columns": fitted.columns,
    }
    log.info("fit_features: %d id columns, %d numbers", len(fitted.id_names), len(fitted.dense_names))
    manifest = Manifest(
        kind="features",
        name=recipe.name,
        key=folder,
        files=(file,),
        inputs=(source,),
        code=code,
        facts=facts | window_facts(shards.facts),
    )
    return publish_manifest(store, manifest)


def load_features(store: Store, features_uri: str) -> FittedFeatures:
    """The fitted features of a `features` manifest."""
    manifest = read_kind(store, features_uri, "features")
    return FittedFeatures.from_json(store.read(manifest.files[0].key))


def dump_features(recipe: Recipe) -> list[Any]:
    """The features section as plain JSON."""
    return [dump(feature) for feature in recipe.features]


def _feature_of(tree: dict[str, Any]) -> FittedFeature:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in tree.items()}
    return FittedFeature(**fields)


def _fit_one(feature: Feature, rows: pl.DataFrame) -> FittedFeature:
    fitted = FittedFeature(name=feature.name, kind=feature.kind, columns=feature.columns)
    if feature.kind in ("weekday", "month"):
        if feature.timezone and feature.timezone not in zoneinfo.available_timezones():
            raise RecipeError(f"feature {feature.name!r}: there is no time zone {feature.timezone!r}")
        return replace(fitted, timezone=feature.timezone)
    if feature.kind in ("hash", "cross"):
        return replace(fitted, buckets=feature.buckets or 0)
    if feature.kind == "category":
        texts = joined_text([rows[name] for name in feature.columns], null=None).alias("value")
        counts = texts.drop_nulls().value_counts().filter(pl.col("count") >= (feature.min_count or 1))
        return replace(fitted, vocabulary=tuple(counts.sort("count", "value", descending=[True, False])["value"]))
    values = rows.select(raw_value(fitted)).to_series()
    known = values.drop_nulls().to_numpy()
    if feature.kind == "quantile":
        shares = np.arange(1, feature.bins or 2) / (feature.bins or 2)
        return replace(fitted, edges=tuple(np.unique(np.quantile(known, shares)).tolist()) if len(known) else ())
    fitted = replace(fitted, period=feature.period or 0.0, indicator=bool(values.null_count()))
    if feature.kind in CIRCLE_KINDS or not len(known):
        return fitted
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(known.mean()), float(known.std())
    mean = mean if np.isfinite(mean) else 0.0
    constant = not np.isfinite(deviation) or deviation <= 1e-12 * max(1.0, abs(mean))
    return replace(fitted, mean=mean, deviation=1.0 if constant else deviation)
