"""Temporary files and folders (`.tmp-*`) of writers that died, told from those of writers that live.

A writer holds a lock on what it writes (`held`), which ends with its process however that ends; what nobody holds and
is old is a leftover. Age alone would take a slow writer's files from under it, and where the file system has no locks,
or the writer is on another host, age is all there is: so the age is the caller's to choose, and a day is a good one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PREFIX = ".tmp-"


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Mark a temporary file or folder as in use by this process, for as long as the block lasts."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # no locks on this file system
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, older_than_seconds: float, *, rooms: Sequence[str]) -> list[Path]:
    """Remove what is named `.tmp-*` in `folder` or anywhere below its `rooms`, is older and held by nobody.

    Returns what was removed, sorted.
    """
    newest, removed = time.time() - older_than_seconds, []
    for parent, folders, names in os.walk(folder):
        if Path(parent) == folder:
            folders[:] = [name for name in folders if name in rooms or name.startswith(PREFIX)]
        for name in sorted([*folders, *names]):
            path = Path(parent) / name
            if name.startswith(PREFIX) and _newest_change(path) <= newest and _is_free(path):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
                removed.append(path)
        folders[:] = [name for name in folders if not name.startswith(PREFIX)]
    return sorted(removed)


def _newest_change(path: Path) -> float:
    """When anything at or below the path changed, in seconds since 1970; infinitely late where it is gone."""
    found = []
    for one in (path, *(Path(parent) / name for parent, _, names in os.walk(path) for name in names)):
        with contextlib.suppress(FileNotFoundError):
            found.append(one.lstat().st_mtime)
    return max(found, default=float("inf"))


def _is_free(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system
    finally:
        os.close(descriptor)
    return True
