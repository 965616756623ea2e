"""Manifests: immutable JSON lists of files with their digests, and where they came from.

A step publishes its files first and its manifest last, at a key derived from what it was made of. Found again with its
digests right it need not be made again; with wrong digests it is an error, never a skip. References to other manifests
are keys relative to the root, so that a store can be moved whole.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from paddlewheel.errors import StorageError
from paddlewheel.storage import ObjectDamaged, Store, digest_file

MANIFEST_VERSION = 1
MANIFEST_NAME = "manifest.json"
VERIFIED_AT_ONCE = 8  # waits for a disk or a server; digests free the interpreter's lock
VERIFIED_IN_ONE_GO = 1024  # bounds what waits for its turn
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of a manifest: its key relative to the root, rows, size and xxh3-128 digest; `facts` by kind."""

    key: str
    bytes: int
    digest: str
    rows: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Input:
    """What a manifest was made from: the key of another manifest (or the URI of a source file) and its digest."""

    key: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What one step made. `facts` holds the numbers of its kind (window, refused rows, layout, metrics)."""

    kind: str
    name: str
    key: str
    files: tuple[Shard, ...] = ()
    inputs: tuple[Input, ...] = ()
    recipe: str = ""
    code: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    version: int = MANIFEST_VERSION

    @property
    def rows(self) -> int:
        """Rows of all files together."""
        return sum(shard.rows or 0 for shard in self.files)

    def to_json(self) -> bytes:
        """Canonical JSON: sorted keys, so that equal manifests have equal bytes."""
        return (json.dumps(asdict(self), sort_keys=True, indent=1, allow_nan=False) + "\n").encode()

    @staticmethod
    def from_json(raw: bytes, where: str) -> Manifest:
        """Parse a manifest. Raises StorageError naming `where` for anything that is not one of this version;
        ObjectDamaged for what is none at all."""
        try:
            tree = json.loads(raw)
            if tree["version"] != MANIFEST_VERSION:
                raise StorageError(
                    f"{where} is a manifest of version {tree['version']}, this program reads {MANIFEST_VERSION}"
                )
            files = tuple(Shard(**entry) for entry in tree.pop("files"))
            inputs = tuple(Input(**entry) for entry in tree.pop("inputs"))
            return Manifest(files=files, inputs=inputs, **tree)
        except (ValueError, KeyError, TypeError) as error:
            way_out = (
                "restore it" if "/models/" in where else "restore it, or remove it so that its step makes it again"
            )
            raise ObjectDamaged(f"{where} is not a manifest: {error}; {way_out}") from error


def derive_key(kind: str, *parts: Any) -> str:
    """20 hexadecimal digits that name a work: a digest of its kind, inputs, recipe section and code."""
    text = json.dumps([kind, *parts], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return xxhash.xxh3_128_hexdigest(text.encode())[:20]


@functools.cache
def code_digest(*modules: str) -> str:
    """Digest of the source of the named modules or packages (`paddlewheel.data.ingest`), without importing them."""
    state = xxhash.xxh3_128()
    for module in sorted(modules):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise StorageError(f"no source found for the module {module}")
        origin = Path(spec.origin)
        sources = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
        for source in sources:
            state.update(f"{module}/{source.name}\0".encode())
            state.update(source.read_bytes())
    return state.hexdigest()[:20]


def read_manifest(store: Store, key_or_uri: str) -> Manifest:
    """The manifest at a key or an absolute URI, parsed but without checking its files."""
    key = _key_of(store, key_or_uri)
    return Manifest.from_json(store.read(key), store.uri(key))


def input_of(store: Store, key_or_uri: str) -> Input:
    """A reference to a manifest with the digest of its bytes, for `Manifest.inputs`."""
    key = _key_of(store, key_or_uri)
    return Input(key=key, digest=xxhash.xxh3_128_hexdigest(store.read(key)))


def _key_of(store: Store, key_or_uri: str) -> str:
    """The key of a manifest that is named by its key or by an absolute URI or path."""
    return store.key(key_or_uri) if "://" in key_or_uri or key_or_uri.startswith("/") else key_or_uri


def find_done(store: Store, manifest_key: str) -> Manifest | None:
    """The manifest at this key if the step was finished before, its files verified; None if it was not.

    Says in the log that the step is skipped. Raises StorageError if a file is missing or has another digest.
    """
    raw = store.find(manifest_key)
    if raw is None:
        return None
    manifest = Manifest.from_json(raw, store.uri(manifest_key))
    verify(store, manifest)
    log.info("%s: already done, %d files verified, skipped (%s)", manifest.kind, len(manifest.files), manifest_key)
    return manifest


def verify(store: Store, manifest: Manifest, *, audit: bool = False) -> None:
    """Check size and digest of every file; with `audit`, of the bytes that the store holds, past this machine's cache.

    Raises ObjectDamaged that names each file that differs or is missing, and the way out; another StorageError where
    the store cannot be read, which says nothing of the files.
    """
    faults: dict[str, str] = {}
    with ThreadPoolExecutor(VERIFIED_AT_ONCE) as pool:
        for start in range(0, len(manifest.files), VERIFIED_IN_ONE_GO):
            files = manifest.files[start : start + VERIFIED_IN_ONE_GO]
            found = pool.map(functools.partial(_fault_of, store, audit=audit), files)
            faults.update({shard.key: fault for shard, fault in zip(files, found, strict=True) if fault})
    if faults:
        told = "; ".join(f"{store.uri(key)} {fault}" for key, fault in faults.items())
        way_out = _way_out(store, manifest, list(faults))
        raise ObjectDamaged(f"the files of {manifest.kind} {manifest.key} are damaged: {told}. {way_out}")


def _fault_of(store: Store, shard: Shard, *, audit: bool) -> str:
    """What is wrong with a file, to be said after its URI; empty where nothing is."""
    try:
        found = store.audit(shard.key) if audit else store.digest(shard.key)
    except ObjectDamaged as error:
        return str(error).removeprefix(f"{store.uri(shard.key)} ")
    except StorageError:
        if store.stat(shard.key) is None:
            return "is missing"
        raise
    if found == shard.digest:
        return ""
    stat = store.stat(shard.key)
    if stat is not None and stat.bytes != shard.bytes:
        return f"has {stat.bytes} bytes, not {shard.bytes}"
    return f"has the digest {found}, not {shard.digest}"


def _way_out(store: Store, manifest: Manifest, damaged: list[str]) -> str:
    """What to remove so that a step makes it again. A run's folder holds all that became of it: never the whole."""
    if manifest.kind == "model":
        bundle = store.uri(f"runs/{manifest.facts['run']}/bundle")
        return f"Copy them back from {bundle}, which has the same files; no step makes a version again"
    if manifest.kind == "evaluation":
        folder = store.uri(manifest.key)
        return f"Restore them; or, where the run has not become a version, remove {folder} so that it is made again"
    if manifest.kind == "run":
        removed = [*damaged, f"{manifest.key}/{MANIFEST_NAME}"]
    elif manifest.kind == "result":
        removed = [f"{manifest.key}/result.json", *sorted({key.rpartition("/")[0] for key in damaged})]
    else:  # a step's manifest lists files of parts that lie elsewhere, each made again where it is missing
        removed = sorted({key.rpartition("/")[0] for key in damaged})
    return f"Restore them, or remove {' and '.join(map(store.uri, removed))} so that the step makes them again"


def publish_manifest(store: Store, manifest: Manifest, *, manifest_key: str | None = None) -> str:
    """Publish a manifest after its files (default key: `<manifest.key>/manifest.json`); returns its absolute URI."""
    key = manifest_key or f"{manifest.key}/{MANIFEST_NAME}"
    store.publish(key, manifest.to_json())
    return store.uri(key)


def publish_file(
    store: Store, key: str, path: Path, *, rows: int | None = None, facts: Mapping[str, Any] | None = None
) -> Shard:
    """Publish a staged local file and describe it."""
    digest = digest_file(path)
    stat = store.publish(key, path)
    return Shard(key=key, bytes=stat.bytes, digest=digest, rows=rows, facts=dict(facts or {}))
