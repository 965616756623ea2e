"""Stores: atomic publish, create-only objects and compare-and-swap over a folder or an S3 prefix.

A key is a path relative to the store's root (`datasets/flights/ab12/manifest.json`); a URI is absolute. Objects are
immutable: `publish` creates an object whole or not at all and refuses to replace a different one. The only object that
ever changes is a pointer, moved by `swap`. Rejected: fsspec, whose rename, create-only and conditional writes differ by
backend and are silent about it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit

import xxhash

from paddlewheel.errors import RecipeError, StorageError

READ_CHUNK_BYTES = 1 << 20
ROOMS = ("datasets", "runs", "models")
LEFTOVER_SECONDS = 86_400.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Stat:
    """What a store knows of one object: its key, its size and the version that `swap` compares.

    `modified_seconds` is when it was written, since 1970, by the writer's clock or the store's: good for an order of
    what one run made, not for more.
    """

    key: str
    bytes: int
    version: str
    modified_seconds: float = field(default=0.0, compare=False)


class Store(Protocol):
    """A root that holds data sets, runs and models."""

    root: str

    def uri(self, key: str) -> str:
        """The absolute URI of `key`."""

    def key(self, uri: str) -> str:
        """The key of an absolute URI below this root. Raises StorageError for one outside it."""

    def read(self, key: str) -> bytes:
        """The object's bytes. Raises StorageError naming the URI where there is none."""

    def find(self, key: str) -> bytes | None:
        """The object's bytes, or None where there is no such object: one question to a server, not two."""

    def stat(self, key: str) -> Stat | None:
        """Size and version, or None where there is no such object."""

    def list(self, prefix: str) -> Iterator[Stat]:
        """Every object below the folder `prefix`, sorted by key (code points). Temporary files are never listed."""

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

    def local_path(self, key: str, *, version: str | None = None) -> Path:
        """A local file with the object's bytes, for memory-mapping. Read-only by convention.

        With `version`, the bytes that had it. Raises ObjectChanged where the object has another one meanwhile.
        """

    def digest(self, key: str) -> str:
        """xxh3-128 of the bytes that `local_path` gives, read anew. Raises StorageError where there is no object."""

    def audit(self, key: str) -> str:
        """xxh3-128 of the bytes as the store holds them, past every cache."""

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """A new local folder from which `publish` moves cheaply; removed at the end, with whatever is left in it."""

    def sweep(self, older_than_seconds: float) -> Sequence[str]:
        """Remove what writers left that died (temporary files, abandoned uploads), if it is older; what that was.

        Only in the ROOMS: what else lies below the root, a landing folder as it may be, is somebody else's.
        """


class ObjectChanged(StorageError):
    """An object has not the version any more that the caller knows: somebody replaced it."""


class ObjectDamaged(StorageError):
    """An object's bytes are not those that were stored."""


class SwapConflict(StorageError):
    """A compare-and-swap lost: somebody else moved the pointer first."""


def open_store(root: str) -> Store:
    """The store at `s3://[CONNECTION@]BUCKET/PREFIX`, a file:// URI or a local path.

    Raises RecipeError for another scheme, a root without a bucket, or a connection that nobody knows.
    """
    scheme = urlsplit(root).scheme
    if scheme in ("", "file"):
        from paddlewheel.storage.local import LocalStore

        return LocalStore(uri_to_path(root))
    if scheme == "s3":
        from paddlewheel.storage.s3 import S3Store

        return S3Store(root)
    raise RecipeError(f"no store for {root!r}: a root is a folder (file:///… or a path) or s3://[CONNECTION@]BUCKET/…")


def sweep_leftovers(store: Store) -> None:
    """Remove what writers left that died more than a day ago, and log it; a store that refuses is no fault."""
    try:
        for found in store.sweep(LEFTOVER_SECONDS):
            log.info("swept: %s", found)
    except StorageError as error:
        log.warning("what dead writers left stays: %s", error)


def path_to_uri(path: Path) -> str:
    """file:// URI of an absolute path, with `{` and `}` kept so that templates stay readable."""
    return "file://" + quote_key(str(path))


def quote_key(key: str) -> str:
    """The key as it stands in a URI of any scheme."""
    return quote(key, safe="/{}=+,@:~")


def uri_to_path(uri: str) -> Path:
    """Local path of a file:// URI or a plain path."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StorageError(f"{uri} names a host, {parts.netloc}; a folder here has three slashes: file:///folder")
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
    checkout = Path(__file__).resolve().parents[3]
    base = checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()
    return path_to_uri(base / "var")
