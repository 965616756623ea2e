"""A training as one VisualDL log below the root; `visualdl --logdir ROOT/tracking/visualdl` shows it.

VisualDL shows one file of a folder, so that every attempt appends to the same. `written.json` beside it says how far it
is good: what a process that died wrote beyond that is cut off, be it half a record or points that will come again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store
from paddlewheel.training.writers.held import Point

LOG_NAME = "vdlrecords.training.log"  # VisualDL takes files whose names have `vdlrecords` in them
WRITTEN_NAME = "written.json"


class VisualdlLog:
    """The log of one training."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.written = folder, folder / LOG_NAME, folder / WRITTEN_NAME
        folder.mkdir(parents=True, exist_ok=True)

    def last_step(self) -> int:
        return self._read()[0]

    def write(self, points: Sequence[Point]) -> None:
        from visualdl import LogWriter

        if self.log.exists():
            os.truncate(self.log, self._read()[1])
        with LogWriter(logdir=str(self.folder), file_name=LOG_NAME) as writer:
            for point in points:
                writer.add_scalar(tag=point.name, value=point.value, step=point.step, walltime=round(1000 * point.at))
        temporary = self.written.with_name(f".tmp-{WRITTEN_NAME}")
        temporary.write_text(json.dumps({"step": points[-1].step, "bytes": self.log.stat().st_size}))
        os.replace(temporary, self.written)

    def close(self, *, done: bool) -> None:
        """Nothing stays open between two writes."""

    def _read(self) -> tuple[int, int]:
        """(step, bytes) up to which the log is good."""
        if not self.written.exists():
            return 0, 0
        tree = json.loads(self.written.read_text())
        return int(tree["step"]), int(tree["bytes"])


def open_sink(recipe: Recipe, store: Store, run: Manifest) -> VisualdlLog:
    """The log of this training."""
    root = Path(unquote(urlsplit(store.root).path))
    return VisualdlLog(root / "tracking" / "visualdl" / recipe.name / run.key.removeprefix("runs/"))
