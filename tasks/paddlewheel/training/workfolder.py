"""The private folder of an attempt on this host, and the removal of those whose agents were killed."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "paddlewheel-"
LOCK_NAME = "agent.lock"
UNLOCKED_SECONDS = 60.0


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A new folder below the temporary one, readable by this user alone, removed at the end; leftovers go first.

    Its lock is held as long as this process lives, in whatever container: a folder without a holder is a leftover.
    """
    remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, (Path(name) / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def remove_leftovers(parent: Path) -> list[Path]:
    """Remove the work folders in `parent` that nobody holds, and tell them. Those of other users stay."""
    removed = []
    for folder in parent.glob(f"{PREFIX}*"):
        path = folder / LOCK_NAME
        try:
            if time.time() - path.stat().st_mtime < UNLOCKED_SECONDS:
                continue  # its agent may be between making the lock and taking it
            with path.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
        except OSError:  # held, another user's, no work folder, or gone meanwhile
            continue
    return removed
