"""Stores: atomic publish, create-only objects and compare-and-swap over a folder (and, later, an S3 prefix).

A key is a path relative to the store's root (`datasets/flights/ab12/manifest.json`); a URI is absolute. Objects are
immutable: `publish` creates an object whole or not at all and refuses to replace a different one. The only object that
ever changes is a pointer, moved by `swap`. Rejected: fsspec, whose rename, create-only and conditional writes differ by
backend and are silent about it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit

import xxhash

from paddlewheel.errors import PaddlewheelError, RecipeError, StorageError

READ_CHUNK_BYTES = 1 << 20
PROBE_BYTES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Stat:
    """What a store knows of one object: its key, its size and the version that `swap` compares."""

    key: str
    bytes: int
    version: str


class Store(Protocol):
    """A root that holds data sets, runs and models."""

    root: str

    def uri(self, key: str) -> str:
        """The absolute URI of `key`."""

    def key(self, uri: str) -> str:
        """The key of an absolute URI below this root. Raises StorageError for one outside it."""

    def read(self, key: str) -> bytes:
        """The object's bytes. Raises StorageError naming the URI where there is none."""

    def stat(self, key: str) -> Stat | None:
        """Size and version, or None where there is no such object."""

    def list(self, prefix: str) -> Iterator[Stat]:
        """Every object below `prefix`, sorted by key. Temporary files are never listed."""

    def children(self, prefix: str) -> Sequence[str]:
        """Names of the folders right below `prefix`, sorted; none where there is no such folder."""

    def publish(self, key: str, content: bytes | Path) -> Stat:
        """Create the object whole and durably. Idempotent for equal bytes; a local file may be moved, not copied.

        Raises StorageError where another content is there, or the disk is full or not writable (nothing is left then).
        """

    def swap(self, key: str, content: bytes, *, expected: str | None) -> Stat:
        """Replace a pointer if its version still is `expected` (None: there must be none). Raises SwapConflict."""

    def remove(self, key: str) -> None:
        """Remove one object; nothing where there is none. For retention alone: what is published is never replaced."""

    def local_path(self, key: str) -> Path:
        """A local file with the object's bytes, for memory-mapping. Read-only by convention."""

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """A new local folder from which `publish` moves cheaply; removed at the end, with whatever is left in it."""


class SwapConflict(StorageError):
    """A compare-and-swap lost: somebody else moved the pointer first."""


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

    def stat(self, key: str) -> Stat | None:
        try:
            found = self._path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot look at {self.uri(key)}: {error.strerror}") from error
        return Stat(key=key, bytes=found.st_size, version=f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}")

    def list(self, prefix: str) -> Iterator[Stat]:
        start = self._path(prefix) if prefix else self.folder
        for folder, folders, names in os.walk(start):
            folders[:] = sorted(name for name in folders if not name.startswith(".tmp-"))
            for name in sorted(names):
                if not name.startswith((".tmp-", ".lock-")):
                    stat = self.stat((Path(folder) / name).relative_to(self.folder).as_posix())
                    if stat is not None:
                        yield stat

    def children(self, prefix: str) -> Sequence[str]:
        try:
            found = list(os.scandir(self._path(prefix)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(entry.name for entry in found if entry.is_dir() and not entry.name.startswith(".tmp-"))

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

    def local_path(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise StorageError(f"cannot read {self.uri(key)}: no such file")
        return path

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        with self._writing(".tmp-"):
            self.folder.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".tmp-", dir=self.folder))
        try:
            with self._writing(folder.name):
                try:
                    yield folder
                except Exception as error:
                    # polars tells a footer that found no room as "Invalid thrift: transport error" and no more.
                    if not isinstance(error, OSError | PaddlewheelError) and (full := _fault_of_more(folder)):
                        raise OSError(full, os.strerror(full)) from error
                    raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

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
            temporary = folder / f".tmp-{os.getpid()}-{os.urandom(6).hex()}"
            os.link(content, temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            return temporary
        descriptor, name = tempfile.mkstemp(prefix=".tmp-", dir=folder)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
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

    @contextlib.contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else _disk_fault(str(error))
            if number is None:
                raise
            way_out = {
                errno.ENOSPC: "free some space, then run the same command again: nothing half-written was left",
                errno.EDQUOT: "the quota is used up; raise it, then run the same command again",
                errno.EACCES: "give this user the right to write there, or name another store with --root",
                errno.EPERM: "give this user the right to write there, or name another store with --root",
                errno.EROFS: "the file system is read-only; name another store with --root",
            }.get(number, "nothing half-written was left")
            raise StorageError(f"cannot write {self.root}/{key}: {os.strerror(number)}; {way_out}") from error


def _fault_of_more(folder: Path) -> int | None:
    """The errno that a further write in `folder` meets where the disk is full; None where there is room."""
    try:
        (folder / ".tmp-probe").write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        return error.errno if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return None


def _disk_fault(text: str) -> int | None:
    """The errno of a full disk that a library told in its own words (polars and safetensors raise no OSError)."""
    return next((number for number in (errno.ENOSPC, errno.EDQUOT) if os.strerror(number) in text), None)


def open_store(root: str) -> Store:
    """The store at a URI or a local path. Raises RecipeError for a scheme that this version has no store for."""
    scheme = urlsplit(root).scheme
    if scheme in ("", "file"):
        return LocalStore(uri_to_path(root))
    raise RecipeError(f"no store for {root!r}: this version keeps its root in a folder (file:///… or a path)")


def path_to_uri(path: Path) -> str:
    """file:// URI of an absolute path, with `{` and `}` kept so that templates stay readable."""
    return "file://" + quote(str(path), safe="/{}=+,@:~")


def uri_to_path(uri: str) -> Path:
    """Local path of a file:// URI or a plain path."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(os.path.normpath(unquote(parts.path)))
    if parts.scheme:
        raise StorageError(f"{uri} is not a local file")
    return Path(os.path.normpath(Path(uri).expanduser().absolute()))


def digest_file(path: Path) -> str:
    """xxh3-128 of a file's bytes, hexadecimal, read in chunks."""
    state = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            while chunk := file.read(READ_CHUNK_BYTES):
                state.update(chunk)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    return state.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the folder's names durable (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def default_root() -> str:
    """PADDLEWHEEL_ROOT, else `var/` beside the project's checkout, else `var/` in the working directory."""
    named = os.environ.get("PADDLEWHEEL_ROOT")
    if named:
        return named
    checkout = Path(__file__).resolve().parents[2]
    base = checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()
    return path_to_uri(base / "var")
