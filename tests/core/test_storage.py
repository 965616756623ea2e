"""The local store beyond what every store promises (test_store_contract.py): full disks, leftovers, deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.storage import default_root, open_store
from paddlewheel.storage.local import LocalStore


def test_publish_takes_a_staged_file_and_leaves_no_staging_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.staging() as folder:
        (folder / "rows").write_bytes(b"x" * 3_000_000)
        stat = store.publish("d/rows", folder / "rows")
    assert stat.bytes == 3_000_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]
    assert [found.key for found in store.list("")] == ["d/rows"]


def test_nothing_is_found_when_the_writer_is_killed_in_the_middle(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from paddlewheel.storage.local import LocalStore
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


def test_sweep_takes_what_a_killed_writer_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from paddlewheel.storage.local import LocalStore
        with LocalStore(Path(sys.argv[1])).staging() as folder:
            (folder / "half").write_bytes(b"x")
            (Path(sys.argv[1]) / "runs").mkdir()
            (Path(sys.argv[1]) / "runs/.tmp-0-12ab").write_bytes(b"x")
            (Path(sys.argv[1]) / "landing").mkdir()
            (Path(sys.argv[1]) / "landing/.tmp-theirs").write_bytes(b"x")
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    store = LocalStore(tmp_path)
    store.publish("runs/a", b"kept")
    (left,) = (path for path in tmp_path.iterdir() if path.name.startswith(".tmp-"))
    assert list(store.list("")) == [store.stat("runs/a")]
    assert store.sweep(60) == []
    with store.staging() as living:
        (living / "rows").write_bytes(b"x")
        assert store.sweep(0) == [left.as_uri(), f"{tmp_path.as_uri()}/runs/.tmp-0-12ab"]
        assert (living / "rows").read_bytes() == b"x"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".tmp-theirs", "a", "landing", "runs"]


def test_a_folder_that_may_not_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match=r"cannot list file://.*/loop: Too many levels"):
        list(LocalStore(tmp_path / "loop").list(""))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of one megabyte, which only root can")
def test_links_to_nothing_and_to_themselves_are_no_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.publish("day/a.csv", b"rows")
    (tmp_path / "day" / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "day" / "gone.csv").symlink_to("nowhere")
    assert [found.key for found in store.list("day")] == ["day/a.csv"]


def test_a_file_uri_with_two_slashes_is_told() -> None:
    with pytest.raises(StorageError, match=r"file://landing names a host, landing; .* three slashes: file:///folder"):
        open_store("file://landing")


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
        from paddlewheel.storage.local import LocalStore
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
