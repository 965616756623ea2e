"""A bounded cache of remote objects in a local folder, for several processes at once.

`objects/HH/HASH/DIGEST/NAME`: HASH names an object's version, DIGEST is what its bytes had when they came. A copy is
checked against it when it is used, so that a bit that flipped on this disk is healed by a new download. Where more than
the bound is there, what was not used for the longest time goes; what was used within the last hour never does, even
beyond the bound. Whoever fetches an entry holds one of 4,096 locks meanwhile: of many that want an object one downloads
it. kill -9 leaves a `.tmp-*` folder and no lock. Rejected: the digests' names alone as keys (a version's digest is not
known before its bytes are here).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from paddlewheel.errors import StorageError
from paddlewheel.storage import digest_file
from paddlewheel.storage.leftovers import PREFIX, held
from paddlewheel.storage.staging import writing

KEPT_SECONDS = 3600.0
BOUND_SHARE = 0.25  # of the whole file system
NAME_BYTES = 255
OTHER_FOLDER = "name another cache folder with $XDG_CACHE_HOME"
OBJECTS, LOCKS, STAGING = CACHE_ROOMS = ("objects", "locks", "staging")
log = logging.getLogger(__name__)


def default_folder() -> Path:
    """`paddlewheel` below the user's cache folder ($XDG_CACHE_HOME, else ~/.cache)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "paddlewheel"


@dataclass(kw_only=True)
class ObjectCache:
    """The cache at `folder`. `bound_bytes` None: a quarter of the file system that it lies on."""

    folder: Path
    bound_bytes: int | None = None
    _new_bytes: int | None = field(default=None, init=False)
    _checked: dict[Path, tuple[int, ...]] = field(default_factory=dict, init=False)

    def fetch(
        self, identity: str, name: str, download: Callable[[Path], str], *, again: bool = False
    ) -> tuple[Path, str]:
        """(local file, digest) of the object's version that `identity` names; `download` writes it, returns its digest.

        The copy's bytes are compared with their digest once in a process and as long as the file looks unchanged; with
        `again` in any case. The file's own name is `name`.
        """
        try:
            return self._fetch(identity, name, download, again)
        except (FileNotFoundError, StorageError) as error:
            if not isinstance(error.__cause__ or error, FileNotFoundError):
                raise
            return self._fetch(identity, name, download, again)  # somebody removed the cache from under it

    def _fetch(self, identity: str, name: str, download: Callable[[Path], str], again: bool) -> tuple[Path, str]:
        entry = self._entry(identity)
        with self._locked(entry):
            found = _find(entry)
            if found is not None:
                path, digest = found
                if self._is_whole(path, digest, again=again):
                    os.utime(entry)
                    return path, digest
                log.warning("the cached copy %s is damaged (its digest is not %s); it is fetched again", path, digest)
                self._remove(entry)
            with writing(str(self.folder), elsewhere=OTHER_FOLDER), self._temporary() as folder:
                digest = download(folder / "new")
                path = self._place(folder, entry, name, digest)
        self._make_room(path.stat().st_size)
        return path, digest

    def find(self, identity: str) -> Path | None:
        """The whole copy of the version, if it is here."""
        entry = self._entry(identity)
        if not entry.is_dir():
            return None
        with self._locked(entry):
            found = _find(entry)
            if found is None or not self._is_whole(*found, again=False):
                return None
            os.utime(entry)
            return found[0]

    def adopt(self, identity: str, name: str, path: Path, digest: str) -> None:
        """Keep a local file with the object's bytes as the cached copy, by a link; nothing where that cannot be."""
        entry = self._entry(identity)
        with contextlib.suppress(OSError, StorageError), self._locked(entry), self._temporary() as folder:
            if _find(entry) is None:
                os.link(path, folder / "new")
                kept = self._place(folder, entry, name, digest)
                self._make_room(kept.stat().st_size)

    def _entry(self, identity: str) -> Path:
        named = xxhash.xxh3_128_hexdigest(identity.encode())
        return self.folder / OBJECTS / named[:2] / named

    def _is_whole(self, path: Path, digest: str, *, again: bool) -> bool:
        status = path.stat()
        looks = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if again or self._checked.get(path) != looks:
            if digest_file(path) != digest:
                return False
            self._checked[path] = looks
        return True

    def _place(self, folder: Path, entry: Path, name: str, digest: str) -> Path:
        """Give the finished download its name."""
        (folder / digest).mkdir()
        kept = name.encode()[-NAME_BYTES:].decode(errors="ignore")
        os.chmod(folder / "new", 0o444)
        os.rename(folder / "new", folder / digest / kept)
        entry.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, entry)
        return entry / digest / kept

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        objects = self.folder / OBJECTS
        objects.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=objects))
        try:
            with held(folder):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, entry: Path, *, wait: bool = True) -> Iterator[None]:
        """Raises BlockingIOError where the entry is in use and is not waited for."""
        locks = self.folder / LOCKS
        with writing(str(self.folder), elsewhere=OTHER_FOLDER):
            locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (locks / entry.name[:3]).open("a")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield

    def _remove(self, entry: Path) -> None:
        """Out of the way at once, whole; readers that have it open keep it."""
        with contextlib.suppress(FileNotFoundError):
            doomed = entry.parents[1] / f"{PREFIX}{entry.name}-{os.urandom(4).hex()}"
            os.rename(entry, doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _make_room(self, more_bytes: int) -> None:
        """Look over the cache at the first download of a process, and whenever it grew by a sixteenth of the bound."""
        bound = self.bound_bytes
        if bound is None:
            bound = int(shutil.disk_usage(self.folder).total * BOUND_SHARE)
        if self._new_bytes is not None and self._new_bytes + more_bytes < bound / 16:
            self._new_bytes += more_bytes
            return
        self._new_bytes = 0
        entries = []
        for entry in (self.folder / OBJECTS).glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(OSError):
                size = sum(path.stat().st_size for path in entry.glob("*/*"))
                entries.append((entry.stat().st_mtime, size, entry))
        total = sum(size for _, size, _ in entries)
        for used, size, entry in sorted(entries, key=lambda one: one[0]):
            if total <= bound or used > time.time() - KEPT_SECONDS:
                break
            with contextlib.suppress(OSError), self._locked(entry, wait=False):
                if entry.stat().st_mtime == used:
                    self._remove(entry)
                    total -= size


def _find(entry: Path) -> tuple[Path, str] | None:
    found = next(iter(entry.glob("*/*")), None)
    return None if found is None else (found, found.parent.name)
