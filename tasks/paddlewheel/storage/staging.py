"""Local folders for what is being made, and the words for a disk that is full or not writable."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from paddlewheel.errors import PaddlewheelError, StorageError
from paddlewheel.storage.leftovers import PREFIX, held

PROBE_BYTES = 1 << 18
OTHER_ROOT = "name another store with --root"
WAYS_OUT = {
    errno.ENOSPC: "free some space, or {elsewhere}; then run the same command again: nothing half-written was left",
    errno.EDQUOT: "the quota is used up; raise it, then run the same command again",
    errno.EACCES: "give this user the right to write there, or {elsewhere}",
    errno.EPERM: "give this user the right to write there, or {elsewhere}",
    errno.EROFS: "the file system is read-only; {elsewhere}",
}


@contextlib.contextmanager
def staging_folder(parent: Path, where: str, *, elsewhere: str = OTHER_ROOT) -> Iterator[Path]:
    """A new folder below `parent`, gone at the end with whatever is left in it; a full disk is told with `where`."""
    with writing(f"{where}/{PREFIX}", elsewhere=elsewhere):
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with writing(f"{where}/{folder.name}", elsewhere=elsewhere), held(folder):
            try:
                yield folder
            except Exception as error:
                # polars tells a footer that found no room as "Invalid thrift: transport error" and no more.
                if not isinstance(error, OSError | PaddlewheelError) and (full := _fault_of_more(folder)):
                    raise OSError(full, os.strerror(full)) from error
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def writing(where: str, *, elsewhere: str = OTHER_ROOT) -> Iterator[None]:
    """Raises StorageError that names `where` and the way out, for what a disk refused in this block.

    `elsewhere` says how another place is named.
    """
    try:
        yield
    except PaddlewheelError:
        raise  # told already; a disk that is full may be a server's
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else _disk_fault(str(error))
        if number is None:
            raise
        way_out = WAYS_OUT.get(number, "nothing half-written was left").format(elsewhere=elsewhere)
        raise StorageError(f"cannot write {where}: {os.strerror(number)}; {way_out}") from error


def _fault_of_more(folder: Path) -> int | None:
    """The errno that a further write in `folder` meets where the disk is full; None where there is room."""
    try:
        (folder / f"{PREFIX}probe").write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        return error.errno if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return None


def _disk_fault(text: str) -> int | None:
    """The errno of a full disk that a library told in its own words (polars and safetensors raise no OSError)."""
    return next((number for number in (errno.ENOSPC, errno.EDQUOT) if os.strerror(number) in text), None)
