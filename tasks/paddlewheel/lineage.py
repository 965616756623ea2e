"""What a manifest came from: the manifests behind it, the nearest first. No heavy import."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from paddlewheel.errors import StorageError
from paddlewheel.manifest import Manifest, read_manifest
from paddlewheel.storage import Store

READ_AT_ONCE = 8  # a night descends from a table a day and source: each waits for a disk or a server


def ancestors(store: Store, key_or_uri: str) -> Iterator[Manifest]:
    """The manifest itself, then its inputs, their inputs, and so on; each once. Source files are no manifests."""
    frontier, seen = [key_or_uri], {key_or_uri}
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        while frontier:
            some, frontier = frontier[:READ_AT_ONCE], frontier[READ_AT_ONCE:]
            for manifest in pool.map(partial(read_manifest, store), some):
                yield manifest
                for entry in manifest.inputs:
                    if entry.key.endswith(".json") and entry.key not in seen:
                        seen.add(entry.key)
                        frontier.append(entry.key)


def nearest(store: Store, key_or_uri: str, kind: str) -> Manifest:
    """The nearest manifest of this kind. Raises StorageError where none is behind it."""
    for manifest in ancestors(store, key_or_uri):
        if manifest.kind == kind:
            return manifest
    raise StorageError(
        f"{key_or_uri} does not descend from a manifest of kind {kind!r}; give the URI that the step before printed"
    )


def manifest_key(manifest: Manifest) -> str:
    """The key under which a step's manifest lies."""
    return f"{manifest.key}/manifest.json"
