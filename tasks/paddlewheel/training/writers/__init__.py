"""Optional writers of a training's figures into other tools' stores: rank 0 alone, one run for all attempts."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence

from paddlewheel.connections import variable_of
from paddlewheel.errors import RecipeError
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store
from paddlewheel.training.writers.held import Held

SERVER_CONNECTION = "mlflow"
# Name in a recipe -> (package that must be there, its part that takes long to import, what to install, module here).
WRITERS: dict[str, tuple[str, str, str, str]] = {
    "mlflow": (
        "mlflow",
        "mlflow.tracking",
        "mlflow-skinny sqlalchemy alembic",
        "paddlewheel.training.writers.mlflow_runs",
    ),
    "visualdl": ("visualdl", "visualdl", "visualdl", "paddlewheel.training.writers.visualdl_files"),
}


def check_writers(names: Sequence[str], store: Store) -> None:
    """Raises RecipeError where a writer's package is not installed, or its files would have no place.

    Every rank of every node must find the same, so that a training does not begin on some of them.
    """
    for index, name in enumerate(names):
        package, _, install, _ = WRITERS[name]
        if importlib.util.find_spec(package) is None:
            raise RecipeError(
                f"training.writers.{index}: {name!r} needs the package {package}, which is not installed on this node; "
                f"pip install {install}, or leave the writer out"
            )
        if not store.root.startswith("file:") and not (name == "mlflow" and has_server()):
            raise RecipeError(
                f"training.writers.{index}: {name!r} writes below the root, and {store.root} is no folder; use a root "
                "on a file system, or leave the writer out"
            )


def has_server() -> bool:
    """Whether a connection names an MLflow server."""
    return variable_of(SERVER_CONNECTION) in os.environ


def writer_connections(names: Sequence[str]) -> list[str]:
    """Ids of the connections that ranks need for these writers."""
    return [SERVER_CONNECTION] if "mlflow" in names and has_server() else []


def open_writers(recipe: Recipe, store: Store, run: Manifest, *, step: int) -> list[Held]:
    """Rank 0's handlers, which go on in the run's own place after `step` steps of earlier attempts."""
    found = []
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a training tells nobody of itself
    for name in recipe.training.writers:
        _, slow, _, place = WRITERS[name]
        importlib.import_module(slow)  # now, and not in a thread beside the first steps, which it would slow down
        module = importlib.import_module(place)
        opening = functools.partial(module.open_sink, recipe, store, run)
        found.append(Held(name, opening, store, run.key, step=step))
    return found
