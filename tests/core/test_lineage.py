"""What a manifest came from: each once, the nearest first, and no more read than is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlewheel.errors import StorageError
from paddlewheel.lineage import READ_AT_ONCE, ancestors, nearest
from paddlewheel.manifest import Input, Manifest, input_of, publish_manifest
from paddlewheel.storage.local import LocalStore


def publish(store: LocalStore, kind: str, name: str, *inputs: str) -> str:
    """A manifest of that kind descending from the named ones and from a file that is no manifest; its key."""
    files = (Input(key="landing/file.csv", digest="0"),)
    manifest = Manifest(
        kind=kind, name=name, key=f"datasets/{name}", inputs=(*(input_of(store, key) for key in inputs), *files)
    )
    publish_manifest(store, manifest)
    return f"datasets/{name}/manifest.json"


def test_ancestors_come_level_by_level_each_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    tables = [publish(store, "table", f"table{number:02d}") for number in range(3 * READ_AT_ONCE)]
    plan = publish(store, "plan", "plan")
    ingest = publish(store, "ingest", "ingest", plan, *tables)
    other = publish(store, "ingest", "other", plan, *tables[:2])
    run = publish(store, "run", "run", ingest, other)
    found = [manifest.name for manifest in ancestors(store, run)]
    assert found == ["run", "ingest", "other", "plan", *(f"table{number:02d}" for number in range(3 * READ_AT_ONCE))]


def test_the_nearest_is_found_although_what_lies_behind_it_is_damaged(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    plan = publish(store, "plan", "plan")
    run = publish(store, "run", "run", publish(store, "ingest", "ingest", plan))
    (tmp_path / plan).write_text("{}")
    assert nearest(store, run, "ingest").name == "ingest"
    with pytest.raises(StorageError, match="is not a manifest"):
        nearest(store, run, "plan")
