"""Where the data steps keep what they make, and what their manifests say to one another.

Two kinds of manifest. A part (table, samples) holds files and is named by what they are made of alone, so that
another night, or the same night with another model, finds it again; a step's manifest lists parts and descends from the
plan, so that the recipe of a run is the one that it was asked with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from paddlewheel.errors import StorageError
from paddlewheel.manifest import MANIFEST_NAME, Manifest, read_manifest, verify
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store

NUM_LOOKERS = 8  # threads that verify what is there: they wait for a disk or a network
WINDOW_FACTS = ("partition", "train", "holdout")
log = logging.getLogger(__name__)


def dataset_folder(recipe: Recipe, part: str, key: str) -> str:
    """`datasets/NAME.PART/KEY`: the folder of one dataset."""
    return f"datasets/{recipe.name}.{part}/{key}"


def manifest_key(folder: str) -> str:
    """Key of the manifest of a dataset."""
    return f"{folder}/{MANIFEST_NAME}"


def read_kind(store: Store, uri: str, kind: str) -> Manifest:
    """The manifest at a URI, which must be of this kind. Raises StorageError that says what it is instead."""
    manifest = read_manifest(store, uri)
    if manifest.kind != kind:
        raise StorageError(f"{uri} is a manifest of kind {manifest.kind!r}; this step needs one of kind {kind!r}")
    return manifest


def find_part(store: Store, folder: str) -> Manifest | None:
    """The part in a folder, its files verified; None where it is not made. Raises StorageError where it is damaged."""
    key = manifest_key(folder)
    raw = store.find(key)
    if raw is None:
        return None
    manifest = Manifest.from_json(raw, store.uri(key))
    verify(store, manifest)
    return manifest


def window_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Partition, training days and holdout days, handed on from manifest to manifest."""
    return {name: facts[name] for name in WINDOW_FACTS}


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by name added up, the largest first."""
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items(), key=lambda entry: (-entry[1], entry[0])))
