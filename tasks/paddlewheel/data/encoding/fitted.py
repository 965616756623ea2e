"""Fitted features: what a recipe's features became on the training window, and their one application to rows.

Training, evaluation and serving all call `FittedFeatures.apply`: a second implementation for serving would drift.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from paddlewheel.data.encoding.encode import FittedFeature, dense_values, id_values
from paddlewheel.data.types import coerce
from paddlewheel.errors import DataError, StorageError
from paddlewheel.recipe_data import ColumnType

FEATURES_VERSION = 2
READABLE_VERSIONS = (1, 2)  # of version 1 are published models; their ids and numbers are the same today


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
        return tuple(name for feature in self.features if feature.is_id for name in feature.id_names)

    @property
    def id_sizes(self) -> tuple[int, ...]:
        """Each id column holds 0 <= id < size; 0 is unknown or missing. Columns of one feature have one size."""
        return tuple(feature.id_size for feature in self.features if feature.is_id for _ in feature.id_names)

    @property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(name for feature in self.features if not feature.is_id for name in feature.dense_names)

    def apply(self, frame: pl.DataFrame) -> Inputs:
        """Model inputs of the frame's rows, in their order. Further columns are ignored.

        Raises DataError that tells every column that is missing or holds a value that is not of its type.
        """
        typed = select_typed(frame, self.column_types)
        ids_BF = np.zeros((len(frame), len(self.id_names)), np.int32)
        dense_BD = np.zeros((len(frame), len(self.dense_names)), np.float32)
        ids_at, dense_at = 0, 0
        for feature in self.features:
            if feature.is_id:
                width = len(feature.id_names)
                ids_BF[:, ids_at : ids_at + width] = id_values(feature, typed)
                ids_at += width
            else:
                for values_B in dense_values(feature, typed):
                    dense_BD[:, dense_at] = values_B
                    dense_at += 1
        return Inputs(ids_BF=ids_BF, dense_BD=dense_BD)

    def to_json(self) -> bytes:
        """Canonical JSON; equal features have equal bytes. What a feature does not use is left out."""
        tree = {
            "version": FEATURES_VERSION,
            "columns": [{"name": name, "type": kind} for name, kind in self.column_types.items()],
            "features": [_tree_of(feature) for feature in self.features],
        }
        return (json.dumps(tree, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()

    @staticmethod
    def from_json(raw: bytes) -> FittedFeatures:
        """Raises StorageError for anything but features of a version that this program reads."""
        try:
            tree = json.loads(raw)
            if tree["version"] not in READABLE_VERSIONS:
                raise StorageError(f"features of version {tree['version']}, this program reads {FEATURES_VERSION}")
            return FittedFeatures(
                features=tuple(_feature_of(one) for one in tree["features"]),
                column_types={column["name"]: column["type"] for column in tree["columns"]},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"not fitted features: {error!r}") from error


def select_typed(frame: pl.DataFrame, column_types: Mapping[str, ColumnType]) -> pl.DataFrame:
    """The named columns in their declared types, NaN and infinities as null: they are missing, in every feature.

    Raises DataError that tells every column that is missing or cannot be of its type.
    """
    faults, columns = [], []
    for name, kind in column_types.items():
        if name not in frame.columns:
            faults.append(f"column {name!r} ({kind}) is missing")
            continue
        try:
            column = coerce(frame[name], kind)
        except DataError as error:
            faults.append(str(error))
        else:
            columns.append(column.set(~column.is_finite(), None) if kind == "float64" else column)
    if faults:
        raise DataError("the rows do not fit the model's features: " + "; ".join(faults))
    return pl.DataFrame(columns)


def _tree_of(feature: FittedFeature) -> dict[str, Any]:
    values = {field.name: (getattr(feature, field.name), field.default) for field in fields(feature)}
    return {name: value for name, (value, default) in values.items() if default is MISSING or value != default}


def _feature_of(tree: dict[str, Any]) -> FittedFeature:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in tree.items()}
    return FittedFeature(**values)
