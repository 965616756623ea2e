"""What every store promises: the same cases over a folder, always, and over a real S3 server (marker services)."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from paddlewheel.errors import StorageError
from paddlewheel.storage import ObjectChanged, Store, SwapConflict, open_store

ABC_DIGEST = "06b05ab6733a618578af5f94892f3950"  # xxh128sum of "abc"
EMPTY_DIGEST = "99aa06d3014798d86001c324468d497f"  # xxh128sum of nothing


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.services)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "the root")
    return f"s3://mine@{request.getfixturevalue('s3_bucket')}/the%20root"


@pytest.fixture
def store(root: str) -> Store:
    return open_store(root)


def test_publish_keeps_the_first_content_when_another_comes(store: Store) -> None:
    first = store.publish("a/b.json", b"abc")
    assert store.publish("a/b.json", b"abc") == first == store.stat("a/b.json")
    for other in (b"abd", b"ab", b""):
        with pytest.raises(StorageError, match=r"a/b\.json already exists with other content"):
            store.publish("a/b.json", other)
    assert store.read("a/b.json") == b"abc"
    assert first.bytes == 3


def test_a_staged_file_is_published_whole_and_staging_is_gone(store: Store) -> None:
    with store.staging() as folder:
        (folder / "rows").write_bytes(bytes(range(256)) * 8192)
        stat = store.publish("d/rows", folder / "rows")
        assert store.publish("d/rows", folder / "rows") == stat
    assert not folder.exists()
    assert stat.bytes == 2_097_152
    assert store.local_path("d/rows").read_bytes() == bytes(range(256)) * 8192
    assert [found.key for found in store.list("")] == ["d/rows"]


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.publish("nothing", b"")
    stat = store.stat("nothing")
    assert stat is not None
    assert stat.bytes == 0
    assert store.read("nothing") == b""
    assert store.digest("nothing") == store.audit("nothing") == EMPTY_DIGEST
    assert store.local_path("nothing").read_bytes() == b""


def test_what_is_not_there_is_named(store: Store) -> None:
    assert store.stat("no/such") is None
    assert store.find("no/such") is None
    for ask in (store.read, store.local_path, store.digest, store.audit):
        with pytest.raises(StorageError, match=r"cannot read \S+the%20root/no/such: "):
            ask("no/such")
    store.remove("no/such")
    assert list(store.list("no")) == []
    assert list(store.children("no")) == []


def test_what_is_found_is_its_bytes_though_there_be_none(store: Store) -> None:
    store.publish("a/b", b"abc")
    store.publish("a/empty", b"")
    assert [store.find(key) for key in ("a/b", "a/empty", "a/c")] == [b"abc", b"", None]


def test_a_key_that_leads_out_of_the_root_is_refused(store: Store, root: str) -> None:
    with pytest.raises(StorageError, match=r"'\.\./outside' leads out of the root"):
        store.publish("../outside", b"x")
    with pytest.raises(StorageError, match="not below the root"):
        store.key(open_store(f"{root}-other").uri("x"))


@pytest.mark.parametrize(
    ("key", "quoted"),
    [
        ("with space/a b", "with%20space/a%20b"),
        ("a+b=c%41", "a+b=c%2541"),
        ("größe/日本", "gr%C3%B6%C3%9Fe/%E6%97%A5%E6%9C%AC"),
        ("what?/#1&2;'\"", "what%3F/%231%262%3B%27%22"),
        ("{run}/date=2013-11-01,x@y:z~", "{run}/date=2013-11-01,x@y:z~"),
    ],
)
def test_a_uri_leads_back_to_its_key_when_the_name_is_odd(store: Store, root: str, key: str, quoted: str) -> None:
    store.publish(key, b"abc")
    uri = store.uri(key)
    assert uri.endswith(f"/the%20root/{quoted}")
    assert store.key(uri) == key
    assert [stat.key for stat in store.list("")] == [key]
    again = open_store(store.root)
    assert again.read(again.key(uri)) == b"abc"
    assert again.local_path(key).name == key.rpartition("/")[2]
    assert again.digest(key) == ABC_DIGEST


def test_a_list_is_sorted_as_whole_keys_and_has_one_folder_alone(store: Store) -> None:
    keys = ["a-b/1", "a.txt", "a/2", "a/b/1", "a0", "ab/1", "ä", "日"]  # by code points: - . / 0
    for key in reversed(keys):
        store.publish(key, key.encode())
    assert [stat.key for stat in store.list("")] == keys
    assert [stat.key for stat in store.list("a")] == ["a/2", "a/b/1"]
    assert [stat.key for stat in store.list("a/")] == ["a/2", "a/b/1"]
    assert list(store.list("a0")) == []
    assert list(store.children("")) == ["a", "a-b", "ab"]
    assert list(store.children("a")) == ["b"]
    assert all(stat == store.stat(stat.key) for stat in store.list(""))


def test_a_removed_object_is_gone_and_may_come_again(store: Store) -> None:
    store.publish("a/b", b"one")
    store.remove("a/b")
    assert store.stat("a/b") is None
    assert list(store.list("")) == []
    store.publish("a/b", b"two")
    assert store.read("a/b") == b"two"


def test_swap_refuses_when_the_pointer_moved(store: Store) -> None:
    first = store.swap("champion.json", b"1", expected=None)
    second = store.swap("champion.json", b"2", expected=first.version)
    for stale in (first.version, None):
        with pytest.raises(SwapConflict, match=r"champion\.json was moved by somebody else"):
            store.swap("champion.json", b"3", expected=stale)
    assert store.read("champion.json") == b"2"
    assert store.stat("champion.json") == second
    with pytest.raises(SwapConflict):
        store.swap("other.json", b"1", expected=second.version)
    assert store.stat("other.json") is None


def test_a_local_path_has_the_version_that_was_asked_for(store: Store) -> None:
    first = store.swap("p", b"one", expected=None)
    assert store.local_path("p", version=first.version).read_bytes() == b"one"
    second = store.swap("p", b"second", expected=first.version)
    assert store.local_path("p", version=second.version).read_bytes() == b"second"
    assert store.local_path("p").read_bytes() == b"second"
    with pytest.raises(ObjectChanged, match="p was replaced since it was listed"):
        store.local_path("p", version="0")


def test_the_digest_is_of_the_bytes(store: Store) -> None:
    store.publish("d/abc", b"abc")
    assert store.digest("d/abc") == store.audit("d/abc") == ABC_DIGEST


def test_what_was_written_later_says_so(store: Store) -> None:
    for name in ("z", "y", "x"):
        store.publish(name, b"")
    found = [stat for stat in map(store.stat, "xyz") if stat]
    assert [stat.key for stat in sorted(found, key=lambda stat: stat.modified_seconds)] == ["z", "y", "x"]


def test_sixteen_threads_share_a_store(store: Store) -> None:
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for name in range(4):
                store.publish(f"t/{name}", f"{name}".encode() * 1000)
                assert store.local_path(f"t/{name}").read_bytes() == f"{name}".encode() * 1000
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [stat.key for stat in store.list("t")] == ["t/0", "t/1", "t/2", "t/3"]


def _race(
    root: str, way: str, number: int, start: multiprocessing.Barrier, results: multiprocessing.Queue[int]
) -> None:
    store, content = open_store(root), f"{number}".encode() * 1000
    store.stat("one")
    start.wait(60)
    refused = SwapConflict if way == "swap" else StorageError
    try:
        if way == "publish":
            store.publish("one", content)
        else:
            store.swap("one", content, expected=None)
        results.put(number)
    except refused:
        results.put(-1)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["publish", "swap"])
def test_one_of_sixteen_processes_wins_when_each_has_another_content(store: Store, root: str, way: str) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[int] = context.Queue()
    start = context.Barrier(16)
    racers = [context.Process(target=_race, args=(root, way, number, start, results)) for number in range(16)]
    for racer in racers:
        racer.start()
    outcomes = [results.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join()
    winners = [outcome for outcome in outcomes if outcome >= 0]
    assert len(winners) == 1
    assert store.read("one") == f"{winners[0]}".encode() * 1000


def _increment(root: str, times: int) -> None:
    store = open_store(root)
    for _ in range(times):
        while True:
            stat = store.stat("n")
            value = int(store.read("n")) if stat else 0
            try:
                store.swap("n", str(value + 1).encode(), expected=stat.version if stat else None)
                break
            except SwapConflict:
                continue


@pytest.mark.slow
def test_no_swap_is_lost_when_eight_processes_race(store: Store, root: str) -> None:
    context = multiprocessing.get_context("spawn")
    racers = [context.Process(target=_increment, args=(root, 10)) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert store.read("n") == b"80"
