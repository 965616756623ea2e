"""Demos into landing folders, local or on S3; and the one that a recipe names (`data.demo`) where its own is empty."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from paddlewheel.data.demos.ctr import write_clicks
from paddlewheel.data.demos.flights import write_flights
from paddlewheel.data.landing.listing import open_landing
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store, uri_to_path

DEMOS: Final[Mapping[str, Callable[..., Any]]] = {"flights": write_flights, "ctr": write_clicks}
FILLING: Final = "demo-is-being-written"  # an object that stands there from the first file to the last


def write_demo(name: str, landing: Store, **sizes: int) -> Any:
    """Write a demo's files, of the sizes that it takes, and return its summary.

    A bucket gets what a temporary folder got first; an object of the same size is taken for the same and left alone.
    """
    if landing.root.startswith("file:"):
        return DEMOS[name](uri_to_path(landing.root), **sizes)
    held = {stat.key: stat.bytes for stat in landing.list("")}
    with tempfile.TemporaryDirectory(prefix="paddlewheel-demo-") as folder:
        summary = DEMOS[name](Path(folder), **sizes)
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            key = path.relative_to(folder).as_posix()
            if held.get(key) != path.stat().st_size:
                landing.publish(key, path)
    return summary


def fill_empty_landing(recipe: Recipe, *, store: Store, say: Callable[[str], None]) -> bool:
    """Whether the recipe's demo was written. A landing folder that holds anything else is left alone.

    A demo that was killed half way is written to its end by the next call.
    """
    if recipe.data.demo is None:
        return False
    landing = open_landing(store, recipe.data.landing)
    held = [stat.key for stat in itertools.islice(landing.list(""), 1)]
    if held and landing.stat(FILLING) is None:
        return False
    say(f"demo {recipe.data.demo}: into the empty landing folder {landing.root}")
    landing.publish(FILLING, b"")
    write_demo(recipe.data.demo, landing)
    landing.remove(FILLING)
    return True
