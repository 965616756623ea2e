"""The local store: whole objects or none, nothing overwritten, one winner of a swap."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.local_store import LocalStore
from paddlewheel.storage import SwapConflict, default_root, open_store


def test_publish_keeps_the_first_content_when_another_comes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.publish("a/b.json", b"one")
    store.publish("a/b.json", b"one")
    with pytest.raises(StorageError, match="already exists with other content"):
        store.publish("a/b.json", b"two")
    assert (tmp_path / "a/b.json").read_bytes() == b"one"
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b.json"]


def test_publish_takes_a_staged_file_and_leaves_no_staging_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.staging() as folder:
        (folder / "rows").write_bytes(b"x" * 3_000_000)
        stat = store.publish("d/rows", folder / "rows")
    assert stat.bytes == 3_000_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]
    assert [found.key for found in store.list("")] == ["d/rows"]


def test_a_key_that_leads_out_of_the_root_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    with pytest.raises(StorageError, match="leads out of the root"):
        store.publish("../outside", b"x")
    with pytest.raises(StorageError, match="not below the root"):
        store.key((tmp_path / "elsewhere").as_uri())


@pytest.mark.parametrize("name", ["with space", "a+b=c%41", "jahr/größe-日本"])
def test_a_uri_leads_back_to_its_key_when_the_name_is_odd(tmp_path: Path, name: str) -> None:
    store = LocalStore(tmp_path)
    store.publish(name, b"here")
    assert store.key(store.uri(name)) == name
    assert open_store(store.root).read(store.key(store.uri(name))) == b"here"


def test_swap_refuses_when_the_pointer_moved(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first = store.swap("champion.json", b"1", expected=None)
    second = store.swap("champion.json", b"2", expected=first.version)
    with pytest.raises(SwapConflict, match="moved by somebody else"):
        store.swap("champion.json", b"3", expected=first.version)
    with pytest.raises(SwapConflict):
        store.swap("champion.json", b"3", expected=None)
    assert store.read("champion.json") == b"2"
    assert store.stat("champion.json") == second


def _increment(folder: str, times: int) -> None:
    store = LocalStore(Path(folder))
    for _ in range(times):
        while True:
            stat = store.stat("n")
            value = int(store.read("n")) if stat else 0
            try:
                store.swap("n", str(value + 1).encode(), expected=stat.version if stat else None)
                break
            except SwapConflict:
                continue


def test_no_swap_is_lost_when_eight_processes_race(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    racers = [context.Process(target=_increment, args=(str(tmp_path), 25)) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert LocalStore(tmp_path).read("n") == b"200"


def _publish_own(folder: str, number: int, results: multiprocessing.Queue[int]) -> None:
    try:
        LocalStore(Path(folder)).publish("one", f"{number}".encode() * 1000)
        results.put(number)
    except StorageError:
        results.put(-1)


def test_one_of_sixteen_publishers_wins_when_each_has_another_content(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[int] = context.Queue()
    racers = [context.Process(target=_publish_own, args=(str(tmp_path), n, results)) for n in range(16)]
    for racer in racers:
        racer.start()
    outcomes = [results.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join()
    winners = [outcome for outcome in outcomes if outcome >= 0]
    assert len(winners) == 1
    assert LocalStore(tmp_path).read("one") == f"{winners[0]}".encode() * 1000


def test_nothing_is_found_when_the_writer_is_killed_in_the_middle(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from paddlewheel.local_store import LocalStore
        store = LocalStore(Path(sys.argv[1]))
        n = 0
        while True:
            store.publish(f"objects/{n}", bytes([n % 256]) * 2_000_000)
            n += 1
    """)
    for pause in (0.5, 0.9):
        writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / str(pause))])
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        for stat in LocalStore(tmp_path / str(pause)).list("objects"):
            number = int(stat.key.rpartition("/")[2])
            assert LocalStore(tmp_path / str(pause)).read(stat.key) == bytes([number % 256]) * 2_000_000


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of one megabyte, which only root can")
def test_a_full_disk_is_told_whatever_a_library_says_of_it(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    try:
        store = LocalStore(tmp_path)
        with pytest.raises(RuntimeError, match="transport error"), store.staging():
            raise RuntimeError("Invalid thrift: transport error")  # there is room: not the disk's fault
        (tmp_path / "rows").write_bytes(bytes(1_000_000))
        with pytest.raises(StorageError, match="No space left on device; free some space"), store.staging():
            raise RuntimeError("Invalid thrift: transport error")
        assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of one megabyte, which only root can")
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    try:
        store = LocalStore(tmp_path)
        with pytest.raises(StorageError, match=r"No space left on device; free some space"):
            store.publish("a/b", b"x" * 3_000_000)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        store.publish("a/b", b"x" * 1000)
        with pytest.raises(StorageError, match="No space left"):
            store.swap("a/c", b"x" * 3_000_000, expected=None)
        assert store.stat("a/c") is None
        assert [stat.key for stat in store.list("")] == ["a/b"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
def test_a_root_without_write_permission_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from paddlewheel.local_store import LocalStore
        from paddlewheel.errors import StorageError
        os.setuid(65534)
        try:
            LocalStore(Path(sys.argv[1])).publish("a", b"x")
        except StorageError as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)
    assert "Permission denied" in done.stdout
    assert "--root" in done.stdout
    assert list(folder.iterdir()) == []


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(RecipeError, match="gopher://x"):
        open_store("gopher://x/y")


def test_the_root_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEWHEEL_ROOT", "/data/store")
    assert default_root() == "/data/store"
    monkeypatch.delenv("PADDLEWHEEL_ROOT")
    assert default_root().endswith("/var")
