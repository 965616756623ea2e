"""The store on a real S3 server: more keys than a page holds, damage on either side, and the cache between."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddlewheel.errors import StorageError
from paddlewheel.manifest import Manifest, Shard, publish_file, publish_manifest, verify
from paddlewheel.storage import ObjectDamaged, open_store
from paddlewheel.storage.object_cache import ObjectCache
from paddlewheel.storage.s3 import S3Store

from .s3.proxy import Proxy
from .s3.server import S3Server

pytestmark = pytest.mark.services
ABC_DIGEST = "06b05ab6733a618578af5f94892f3950"  # xxh128sum of "abc"
MIB = 1 << 20


def test_more_keys_than_a_page_holds_are_listed_in_order(s3_server: S3Server, store: S3Store) -> None:
    keys = [f"many/{number:04}" for number in range(1101)]
    client = s3_server.client()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: client.put_object(Bucket=store.bucket.bucket, Key=f"root/{key}", Body=b"x"), keys))
        folders = [f"folders/{number:04}/x" for number in range(1050)]
        list(pool.map(lambda key: client.put_object(Bucket=store.bucket.bucket, Key=f"root/{key}", Body=b""), folders))
    assert [stat.key for stat in store.list("many")] == keys
    assert list(store.children("folders")) == [f"{number:04}" for number in range(1050)]
    assert len(list(store.list(""))) == 2151


def flip(path: Path) -> None:
    """One bit of the file's last byte."""
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)


def manifest_of(store: S3Store) -> Manifest:
    """A table of one file, published."""
    with store.staging() as folder:
        (folder / "rows").write_bytes(b"abc")
        shard = publish_file(store, "d/K/rows", folder / "rows")
    manifest = Manifest(kind="table", name="flights", key="d/K", files=(shard,))
    publish_manifest(store, manifest)
    return manifest


def test_a_bit_that_flips_in_the_cache_is_noticed_and_healed(store: S3Store, caplog: pytest.LogCaptureFixture) -> None:
    manifest = manifest_of(store)
    cached = store.local_path("d/K/rows")
    flip(cached)
    assert store.digest("d/K/rows") == ABC_DIGEST
    assert "is damaged" in caplog.text
    flip(store.local_path("d/K/rows"))
    verify(store, manifest)
    flip(store.local_path("d/K/rows"))
    assert S3Store(store.root).local_path("d/K/rows").read_bytes() == b"abc"


def test_a_bit_that_flips_on_the_server_is_noticed_by_whoever_gets_it(
    s3_server: S3Server, store: S3Store, tmp_path: Path
) -> None:
    manifest = manifest_of(store)
    flip(s3_server.object_path(store.bucket.bucket, "root/d/K/rows"))
    verify(store, manifest)  # what this machine works with is whole
    with pytest.raises(ObjectDamaged, match=r"root/d/K/rows is damaged on the server"):
        store.audit("d/K/rows")
    elsewhere = S3Store(store.root, cache=ObjectCache(folder=tmp_path / "other machine"))
    for act in (elsewhere.audit, elsewhere.digest, elsewhere.local_path, elsewhere.read):
        with pytest.raises(ObjectDamaged, match=r"root/d/K/rows is damaged on the server"):
            act("d/K/rows")
    with pytest.raises(StorageError, match=r"rows is damaged on the server.*remove \S+/root/d/K so that the step"):
        verify(elsewhere, manifest)
    assert [path for path in (tmp_path / "other machine/objects").rglob("*") if path.is_file()] == []


def test_an_object_of_another_program_is_as_good(s3_server: S3Server, store: S3Store) -> None:
    """As a root that was copied into a bucket by other means: no digest of ours beside it."""
    s3_server.client().put_object(Bucket=store.bucket.bucket, Key="root/a", Body=b"abc")
    assert store.publish("a", b"abc") == store.stat("a")
    with pytest.raises(StorageError, match="already exists with other content"):
        store.publish("a", b"abd")
    flip(s3_server.object_path(store.bucket.bucket, "root/a"))
    with pytest.raises(ObjectDamaged):  # by the checksum that the server keeps
        store.read("a")


def _fetch(root: str, start: multiprocessing.Barrier, results: multiprocessing.Queue[str]) -> None:
    store = open_store(root)
    store.stat("a/b")
    start.wait(60)
    results.put(str(store.local_path("a/b")))


def test_one_of_many_processes_downloads_when_all_want_the_same(store: S3Store, proxy: Proxy) -> None:
    content = os.urandom(16 * MIB)
    store.publish("a/b", content)
    proxy.requests.clear()
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    start = context.Barrier(4)
    racers = [context.Process(target=_fetch, args=(store.root, start, results)) for _ in range(4)]
    for racer in racers:
        racer.start()
    paths = {results.get(timeout=120) for _ in racers}
    for racer in racers:
        racer.join()
    (path,) = paths
    assert Path(path).read_bytes() == content
    assert [line.split()[0] for line in proxy.requests].count("GET") == 1
    assert list((store.cache.folder / "objects").glob(".tmp-*")) == []


def test_a_download_that_is_killed_leaves_nothing_that_counts(store: S3Store, proxy: Proxy) -> None:
    store.publish("a/b", bytes(64 * MIB))
    script = "import sys; from paddlewheel.storage import open_store; open_store(sys.argv[1]).local_path('a/b')"
    reader = subprocess.Popen([sys.executable, "-c", script, store.root])
    objects = store.cache.folder / "objects"
    while not any(path.stat().st_size for path in objects.glob(".tmp-*/new")):
        assert reader.poll() is None
        time.sleep(0.002)
    reader.send_signal(signal.SIGKILL)
    reader.wait()
    left = [path.as_uri() for path in objects.glob(".tmp-*")]
    assert len(left) == 1
    assert store.local_path("a/b").stat().st_size == 64 * MIB
    assert store.sweep(0) == left
    assert store.local_path("a/b").stat().st_size == 64 * MIB


def test_what_was_just_written_is_not_downloaded(store: S3Store, proxy: Proxy, large: Path) -> None:
    with store.staging() as folder:
        (folder / "rows").write_bytes(b"abc")
        stat = store.publish("a/rows", folder / "rows")
    proxy.requests.clear()
    assert store.local_path("a/rows", version=stat.version).read_bytes() == b"abc"
    assert proxy.requests == []
    assert store.digest("a/rows") == ABC_DIGEST
    assert [line.split()[0] for line in proxy.requests] == ["HEAD"]


def test_a_forked_child_has_a_client_of_its_own(store: S3Store) -> None:
    store.publish("a", b"abc")
    child = multiprocessing.get_context("fork").Process(target=lambda: store.publish("b", store.read("a")))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert store.read("b") == b"abc"


def test_damage_names_the_file_and_the_way_out(store: S3Store) -> None:
    manifest = manifest_of(store)
    store.remove("d/K/rows")
    with pytest.raises(StorageError, match=r"root/d/K/rows is missing\. Restore them, or remove \S+/root/d/K so that"):
        verify(store, manifest)
    other = Manifest(kind="table", name="f", key="d/L", files=(Shard(key="d/K/manifest.json", bytes=1, digest="0"),))
    with pytest.raises(StorageError, match=r"manifest\.json has \d+ bytes, not 1"):
        verify(store, other)
