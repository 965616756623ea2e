"""The demo that a recipe names (`data.demo`), put into its landing folder where that is empty."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from paddlewheel.data.demo import write_flights
from paddlewheel.data.demo_ctr import write_clicks
from paddlewheel.data.listing import open_landing
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store, uri_to_path

DEMOS: Final[Mapping[str, Callable[[Path], Any]]] = {"flights": write_flights, "ctr": write_clicks}
FILLING: Final = "demo-is-being-written"  # an object that stands there from the first file to the last


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
    write = DEMOS[recipe.data.demo]
    if landing.root.startswith("file:"):
        write(uri_to_path(landing.root))
    else:
        with tempfile.TemporaryDirectory(prefix="paddlewheel-demo-") as name:
            folder = Path(name)
            write(folder)
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                landing.publish(path.relative_to(folder).as_posix(), path)
    landing.remove(FILLING)
    return True
