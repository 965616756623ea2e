"""What a bundle says of itself: the raw columns that it reads, where they come from, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paddlewheel.data.encoding.fitted import FittedFeatures
    from paddlewheel.recipe import Recipe

SIGNATURE_VERSION = 1


def describe_signature(recipe: Recipe, features: FittedFeatures) -> dict[str, Any]:
    """What the bundle reads and gives: raw columns with their types, the label's question, the network's inputs."""
    label = recipe.data.label
    return {
        "version": SIGNATURE_VERSION,
        "name": recipe.name,
        "columns": [{"name": name, "type": kind} for name, kind in features.column_types.items()],
        "joins": describe_joins(recipe, features.columns),
        "label": {"column": label.column, "above": label.above},
        "output": {
            "name": "probability",
            "type": "float64",
            "meaning": f"probability that {label.column} is above {label.above:g}",
        },
        "network": {
            "ids": {"type": "int32", "names": features.id_names, "sizes": features.id_sizes},
            "dense": {"type": "float32", "names": features.dense_names},
        },
    }


def describe_joins(recipe: Recipe, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Which of the raw columns are joined to the rows, from which source and how, for who serves the bundle."""
    described = []
    for join in recipe.data.joins:
        names = {f"{join.source.name}_{column.name}": column.name for column in join.source.columns}
        read = {name: names[name] for name in columns if name in names}
        if read:
            described.append({"source": join.source.name, "kind": join.kind, "keys": join.keys, "columns": read})
    return described


def describe_missing_joins(signature: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Which joined columns the rows lack and where they come from; empty where they lack none."""
    told = []
    for join in signature.get("joins", ()):
        missing = [f"{name} ({column})" for name, column in join["columns"].items() if name not in columns]
        if missing:
            how = "the last row up to the moment" if join["kind"] == "asof" else "the row"
            keys = ", ".join(f"{left} = {right}" for left, right in join["keys"].items())
            told.append(f"{', '.join(missing)} of the source {join['source']!r}, {how} of {keys}")
    return f"Join to the rows first, as the shards have it: {'; '.join(told)}" if told else ""
