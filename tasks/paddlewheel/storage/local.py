"""A store in a local folder, or in one that several hosts share.

What is written gets a temporary name in the same folder, is fsynced and linked to its own name: a link, unlike a
rename, refuses a name that is taken. Pointers move under a lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from stat import S_ISREG

import xxhash

from paddlewheel.errors import StorageError
from paddlewheel.storage import (
    READ_CHUNK_BYTES,
    ROOMS,
    ObjectChanged,
    Stat,
    SwapConflict,
    digest_file,
    path_to_uri,
    sync_folder,
    uri_to_path,
)
from paddlewheel.storage.leftovers import PREFIX, held, remove_leftovers
from paddlewheel.storage.staging import staging_folder, writing


class LocalStore:
    """A store in a local folder. Writers on several hosts may share it by a file system with POSIX locks and rename."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.root = path_to_uri(self.folder)

    def uri(self, key: str) -> str:
        return path_to_uri(self._path(key))

    def key(self, uri: str) -> str:
        path = uri_to_path(uri)
        if not path.is_relative_to(self.folder):
            raise StorageError(f"{uri} is not below the root {self.root}; give --root the store that it belongs to")
        return path.relative_to(self.folder).as_posix()

    def read(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {self.uri(key)}: {error.strerror}") from error

    def find(self, key: str) -> bytes | None:
        return None if self.stat(key) is None else self.read(key)

    def stat(self, key: str) -> Stat | None:
        try:
            found = self._path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot look at {self.uri(key)}: {error.strerror}") from error
        return _describe(key, found)

    def list(self, prefix: str) -> Iterator[Stat]:
        """Folders that are symbolic links are not entered; folders that cannot be read are an error."""
        start = self._path(prefix)
        key = start.relative_to(self.folder).as_posix()
        return self._walk(str(start), "" if key == "." else f"{key}/")

    def _walk(self, folder: str, prefix: str) -> Iterator[Stat]:
        """What is below `folder`, sorted as whole keys are: a folder stands where its name with a slash does."""
        try:
            with os.scandir(folder) as entries:
                found = [
                    (f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name, entry)
                    for entry in entries
                    if not entry.name.startswith((PREFIX, ".lock-"))
                ]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise StorageError(f"cannot list {path_to_uri(Path(folder))}: {error.strerror}") from error
        found.sort(key=itemgetter(0))
        for name, entry in found:
            if name[-1] == "/":
                yield from self._walk(entry.path, prefix + name)
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno == errno.ELOOP:  # a link to itself leads nowhere, as one to nothing does
                    continue
                raise StorageError(f"cannot look at {path_to_uri(Path(entry.path))}: {error.strerror}") from error
            if S_ISREG(status.st_mode):
                yield _describe(prefix + name, status)

    def children(self, prefix: str) -> Sequence[str]:
        try:
            found = list(os.scandir(self._path(prefix)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(entry.name for entry in found if entry.is_dir() and not entry.name.startswith(PREFIX))

    def publish(self, key: str, content: bytes | Path) -> Stat:
        target = self._path(key)
        with self._writing(key):
            if target.exists():
                return self._same_or_refuse(key, content)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._write_temporary(target.parent, content)
            try:
                os.link(temporary, target)  # unlike rename, refuses an existing target
            except FileExistsError:
                return self._same_or_refuse(key, content if isinstance(content, bytes) else temporary)
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(target.parent)
        stat = self.stat(key)
        if stat is None:
            raise StorageError(f"{self.uri(key)} vanished right after it was published")
        return stat

    def swap(self, key: str, content: bytes, *, expected: str | None) -> Stat:
        target = self._path(key)
        with self._writing(key):
            target.parent.mkdir(parents=True, exist_ok=True)
            with (target.parent / f".lock-{target.name}").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = self.stat(key)
                if (found.version if found else None) != expected:
                    raise SwapConflict(f"{self.uri(key)} was moved by somebody else meanwhile; read it again and retry")
                os.replace(self._write_temporary(target.parent, content), target)
                sync_folder(target.parent)
                stat = self.stat(key)
        if stat is None:
            raise StorageError(f"{self.uri(key)} vanished right after it was swapped")
        return stat

    def remove(self, key: str) -> None:
        path = self._path(key)
        with self._writing(key):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others' files are still in it, or it is gone
                path.parent.rmdir()

    def local_path(self, key: str, *, version: str | None = None) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise StorageError(f"cannot read {self.uri(key)}: no such file")
        if version is not None and ((found := self.stat(key)) is None or found.version != version):
            raise ObjectChanged(f"{self.uri(key)} was replaced since it was listed")
        return path

    def digest(self, key: str) -> str:
        return digest_file(self.local_path(key))

    def audit(self, key: str) -> str:
        return self.digest(key)

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        return staging_folder(self.folder, self.root)

    def sweep(self, older_than_seconds: float) -> Sequence[str]:
        """What a living writer on this host holds stays, whatever its age (`held`)."""
        return [path_to_uri(path) for path in remove_leftovers(self.folder, older_than_seconds, rooms=ROOMS)]

    def _path(self, key: str) -> Path:
        path = Path(os.path.normpath(self.folder / key))
        if not path.is_relative_to(self.folder):
            raise StorageError(f"the key {key!r} leads out of the root {self.root}")
        return path

    def _same_or_refuse(self, key: str, content: bytes | Path) -> Stat:
        target, stat = self._path(key), self.stat(key)
        wanted = xxhash.xxh3_128_hexdigest(content) if isinstance(content, bytes) else digest_file(content)
        if stat is None or digest_file(target) != wanted:
            raise StorageError(f"{self.uri(key)} already exists with other content; nothing is overwritten in place")
        return stat

    def _write_temporary(self, folder: Path, content: bytes | Path) -> Path:
        """Content under a temporary name in `folder`, on the disk for good; a staged file is linked, not copied."""
        if isinstance(content, Path) and content.is_relative_to(self.folder):
            temporary = folder / f"{PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
            os.link(content, temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            return temporary
        descriptor, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file, held(temporary):
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, file, READ_CHUNK_BYTES)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _writing(self, key: str) -> contextlib.AbstractContextManager[None]:
        return writing(f"{self.root}/{key}")


def _describe(key: str, status: os.stat_result) -> Stat:
    version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    return Stat(key=key, bytes=status.st_size, version=version, modified_seconds=status.st_mtime)
