"""The cache of remote objects: bounded, never without what was just handed out, and believed only by its digests."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from paddlewheel.errors import StorageError
from paddlewheel.storage.object_cache import ObjectCache


def writes(content: bytes, calls: list[str] | None = None) -> Callable[[Path], str]:
    """A download of this content."""

    def download(path: Path) -> str:
        if calls is not None:
            calls.append(path.name)
        path.write_bytes(content)
        return xxhash.xxh3_128_hexdigest(content)

    return download


def names(cache: ObjectCache) -> list[str]:
    return sorted(path.name for path in (cache.folder / "objects").rglob("*") if path.is_file())


def age(path: Path, seconds: float) -> None:
    """Make an entry look as if it was used so long ago."""
    then = time.time() - seconds
    os.utime(path.parents[1], (then, then))


def test_a_version_is_downloaded_once(tmp_path: Path) -> None:
    cache, calls = ObjectCache(folder=tmp_path), list[str]()
    first = cache.fetch("key 1", "rows.parquet", writes(b"abc", calls))
    assert first[0].name == "rows.parquet"
    assert first[1] == "06b05ab6733a618578af5f94892f3950"  # xxh128sum of "abc"
    assert cache.fetch("key 1", "rows.parquet", writes(b"abc", calls)) == first
    assert cache.find("key 1") == first[0]
    assert cache.find("key 2") is None
    assert cache.fetch("key 2", "rows.parquet", writes(b"abd", calls))[0].read_bytes() == b"abd"
    assert len(calls) == 2


def test_what_was_unused_the_longest_goes_first_when_the_bound_is_passed(tmp_path: Path) -> None:
    cache = ObjectCache(folder=tmp_path, bound_bytes=3500)
    for number in range(3):
        path, _ = cache.fetch(f"{number}", f"{number}", writes(bytes(1000)))
        age(path, 10_000 - number)
    age(cache.fetch("0", "0", writes(b""))[0], 5_000)  # used again, later than the others
    age(cache.fetch("3", "3", writes(bytes(1000)))[0], 4_000)
    assert names(cache) == ["0", "2", "3"]
    cache.fetch("4", "4", writes(bytes(2000)))
    assert names(cache) == ["3", "4"]
    assert list((tmp_path / "objects").glob(".tmp-*")) == []


def test_what_was_used_within_the_hour_stays_whatever_the_bound(tmp_path: Path) -> None:
    cache = ObjectCache(folder=tmp_path, bound_bytes=1)
    path, _ = cache.fetch("0", "old", writes(bytes(1000)))
    age(path, 3500)
    for number in range(4):
        cache.fetch(f"{number + 1}", f"{number}", writes(bytes(1000)))
    assert names(cache) == ["0", "1", "2", "3", "old"]
    age(path, 3700)
    cache.fetch("9", "9", writes(b"x"))
    assert names(cache) == ["0", "1", "2", "3", "9"]


def test_an_open_file_stays_readable_when_its_entry_goes(tmp_path: Path) -> None:
    cache = ObjectCache(folder=tmp_path, bound_bytes=1)
    path, _ = cache.fetch("0", "0", writes(b"abc"))
    with path.open("rb") as file:
        age(path, 10_000)
        cache.fetch("1", "1", writes(b"x"))
        assert not path.exists()
        assert file.read() == b"abc"


def test_a_failed_download_leaves_nothing(tmp_path: Path) -> None:
    cache = ObjectCache(folder=tmp_path)

    def fail(path: Path) -> str:
        path.write_bytes(b"half")
        raise ValueError("cut off")

    with pytest.raises(ValueError, match="cut off"):
        cache.fetch("0", "0", fail)
    assert names(cache) == []
    assert cache.fetch("0", "0", writes(b"abc"))[0].read_bytes() == b"abc"


def test_a_damaged_copy_is_fetched_again_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, digest = ObjectCache(folder=tmp_path).fetch("0", "0", writes(b"abc"))
    path.chmod(0o644)
    path.write_bytes(b"abd")
    cache = ObjectCache(folder=tmp_path)
    assert cache.find("0") is None
    again, found = cache.fetch("0", "0", writes(b"abc"))
    assert (again.read_bytes(), found) == (b"abc", digest)
    assert f"the cached copy {path} is damaged" in caplog.text


def test_a_cache_that_is_removed_while_it_fetches_fetches_again(tmp_path: Path) -> None:
    abc = "06b05ab6733a618578af5f94892f3950"  # xxh128sum of "abc"
    cache, tries = ObjectCache(folder=tmp_path / "cache"), list[Path]()

    def download(path: Path) -> str:
        path.write_bytes(b"abc")
        tries.append(path)
        if len(tries) == 1:
            shutil.rmtree(tmp_path / "cache")
        return abc

    path, digest = cache.fetch("a", "name", download)
    assert (path.read_bytes(), digest, len(tries)) == (b"abc", abc, 2)


def test_an_object_that_went_is_no_reason_to_fetch_again(tmp_path: Path) -> None:
    tries = list[Path]()

    def download(path: Path) -> str:
        tries.append(path)
        raise StorageError("no such object")

    with pytest.raises(StorageError, match="no such object"):
        ObjectCache(folder=tmp_path / "cache").fetch("a", "name", download)
    assert len(tries) == 1


def test_a_long_name_keeps_its_end(tmp_path: Path) -> None:
    path, _ = ObjectCache(folder=tmp_path).fetch("0", "ü" * 200 + ".parquet", writes(b"abc"))
    assert path.name.endswith("üü.parquet")
    assert len(path.name.encode()) <= 255


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "no folder").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot write \S+/no folder: Not a directory"):
        ObjectCache(folder=tmp_path / "no folder").fetch("0", "0", writes(b"abc"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system read-only, which only root can")
def test_a_read_only_cache_is_told_with_the_way_out(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(tmp_path)], check=True)
    try:
        with pytest.raises(StorageError, match=r"read-only; name another cache folder with \$XDG_CACHE_HOME"):
            ObjectCache(folder=tmp_path).fetch("0", "0", writes(b"abc"))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of one megabyte, which only root can")
def test_a_cache_on_a_full_disk_is_told_with_the_way_out(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    try:
        cache = ObjectCache(folder=tmp_path / "cache")
        with pytest.raises(StorageError, match=r"No space left on device; free some space, or .* \$XDG_CACHE_HOME"):
            cache.fetch("a", "name", writes(bytes(3_000_000)))
        assert names(cache) == []
        assert cache.fetch("b", "name", writes(b"abc"))[0].read_bytes() == b"abc"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
