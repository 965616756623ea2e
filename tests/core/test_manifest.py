"""Manifests: found again and verified, or an error; never a silent skip."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from paddlewheel.errors import StorageError
from paddlewheel.manifest import (
    Manifest,
    Shard,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_file,
    publish_manifest,
    read_manifest,
    verify,
)
from paddlewheel.storage.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def _publish(store: LocalStore) -> str:
    with store.staging() as folder:
        (folder / "rows").write_bytes(b"abc")
        shard = publish_file(store, "d/K/rows", folder / "rows", rows=3, facts={"day": "2013-11-01"})
    return publish_manifest(store, Manifest(kind="table", name="flights", key="d/K", files=(shard,)))


def test_a_manifest_comes_back_as_it_was_published(store: LocalStore) -> None:
    uri = _publish(store)
    manifest = read_manifest(store, uri)
    assert (manifest.kind, manifest.rows, manifest.files[0].bytes) == ("table", 3, 3)
    assert manifest.files[0].digest == "06b05ab6733a618578af5f94892f3950"  # xxh128sum of "abc"
    assert read_manifest(store, store.key(uri)) == manifest
    assert Manifest.from_json(manifest.to_json(), "again") == manifest


def test_a_finished_step_is_skipped_and_said(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    assert find_done(store, "d/K/manifest.json") is None
    _publish(store)
    with caplog.at_level(logging.INFO):
        assert find_done(store, "d/K/manifest.json") is not None
    assert "table: already done, 1 files verified, skipped" in caplog.text


@pytest.mark.parametrize(
    ("damage", "words"),
    [(b"abd", "has the digest"), (b"ab", "has 2 bytes, not 3"), (None, "is missing")],
)
def test_a_damaged_file_is_an_error_when_the_step_is_found_done(
    store: LocalStore, damage: bytes | None, words: str
) -> None:
    _publish(store)
    path = store.local_path("d/K/rows")
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(StorageError, match=words):
        find_done(store, "d/K/manifest.json")


@pytest.mark.parametrize(
    ("kind", "key", "file", "removed"),
    [
        ("table", "d/K", "d/K/rows", ["d/K"]),
        ("packed", "d.packed/K", "d.rows/L/rows.parquet", ["d.rows/L"]),
        ("run", "runs/K", "runs/K/recipe.json", ["runs/K/recipe.json", "runs/K/manifest.json"]),
        ("result", "runs/K", "runs/K/checkpoints/step-2/model", ["runs/K/result.json", "runs/K/checkpoints/step-2"]),
    ],
)
def test_the_way_out_removes_what_a_step_makes_again(
    store: LocalStore, kind: str, key: str, file: str, removed: list[str]
) -> None:
    manifest = Manifest(kind=kind, name="d", key=key, files=(Shard(key=file, bytes=1, digest="0"),))
    with pytest.raises(StorageError) as caught:
        verify(store, manifest)
    named = " and ".join(store.uri(one) for one in removed)
    assert f"Restore them, or remove {named} so that the step makes them again" in str(caught.value)


def test_a_damaged_version_is_restored_from_its_run(store: LocalStore) -> None:
    files = (Shard(key="models/m/versions/1/network", bytes=1, digest="0"),)
    manifest = Manifest(kind="model", name="m", key="models/m/versions/1", files=files, facts={"run": "K"})
    with pytest.raises(StorageError, match=r"Copy them back from .*/runs/K/bundle") as caught:
        verify(store, manifest)
    assert "remove" not in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 99}'])
def test_something_else_than_a_manifest_is_named(store: LocalStore, raw: bytes) -> None:
    store.publish("x/manifest.json", raw)
    with pytest.raises(StorageError, match=r"x/manifest\.json is"):
        read_manifest(store, "x/manifest.json")


def test_keys_differ_when_any_part_does() -> None:
    keys = {derive_key("a", 1, "x"), derive_key("b", 1, "x"), derive_key("a", 2, "x"), derive_key("a", 1, "y")}
    assert len(keys) == 4
    assert derive_key("a", {"p": 1, "q": 2}) == derive_key("a", {"q": 2, "p": 1})


def test_an_input_carries_the_digest_of_the_manifest(store: LocalStore) -> None:
    uri = _publish(store)
    assert input_of(store, uri) == input_of(store, store.key(uri))
    assert input_of(store, uri).key == "d/K/manifest.json"


def test_the_code_digest_needs_a_module_that_is_there() -> None:
    assert code_digest("paddlewheel.storage") != code_digest("paddlewheel.manifest")
    with pytest.raises(StorageError, match=r"paddlewheel\.nothing"):
        code_digest("paddlewheel.nothing")
