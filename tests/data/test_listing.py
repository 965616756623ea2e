"""What a landing folder holds for a source: paths with wildcards, strange names, what is no data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paddlewheel.data.landing.groups import GroupHead, SourceFile, cut_batches, cut_groups
from paddlewheel.data.landing.listing import list_sources, pattern_of
from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Column, Source
from paddlewheel.storage import Stat
from paddlewheel.storage.local import LocalStore

STRANGE = ("with space.csv", "a+b.csv", "100%25.csv", "key=value.csv", "größe-данные.csv", "semi;colon&.csv")


def source(path: str, name: str = "trips") -> Source:
    return Source(name=name, path=path, columns=(Column(name="id", type="int64"),))


class CountingStore(LocalStore):
    """A landing folder that counts what it is asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lists: list[str] = []
        self.stats: list[str] = []

    def list(self, prefix: str) -> Iterator[Stat]:
        self.lists.append(prefix)
        return super().list(prefix)

    def stat(self, key: str) -> Stat | None:
        self.stats.append(key)
        return super().stat(key)


def landing(folder: Path, *paths: str) -> CountingStore:
    for path in paths:
        (target := folder / path).parent.mkdir(parents=True, exist_ok=True)
        target.write_text("id\n1\n")
    return CountingStore(folder)


def paths_of(folder: Path, pattern: str, *paths: str) -> dict[str, list[str]]:
    listing = list_sources(landing(folder, *paths), [source(pattern)])["trips"]
    found = {day: [file.path for file in files] for day, files in listing.days.items()}
    return found | ({"": [file.path for file in listing.single]} if listing.single else {})


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("t/{partition}.csv", ["t/2013-10-01.csv"], ["t/2013-10-01.csv.gz", "t/20131001.csv", "t/x/2013-10-01.csv"]),
        ("t/{partition}/*.csv", ["t/2013-10-01/a.csv"], ["t/2013-10-01/b/a.csv", "t/2013-10-01/a.tsv"]),
        ("t/{partition}/part-?.csv", ["t/2013-10-01/part-1.csv"], ["t/2013-10-01/part-10.csv"]),
        ("t/{partition}/**", ["t/2013-10-01/a", "t/2013-10-01/b/c/a"], ["t/2013-10-02x/a"]),
        ("t/{partition}/**/*.csv", ["t/2013-10-01/a.csv", "t/2013-10-01/b/c/a.csv"], ["t/2013-10-01/b/a.txt"]),
        ("t/**/{partition}.csv", ["t/2013-10-01.csv", "t/x/y/2013-10-01.csv"], ["t/x/2013-10-01/a.csv"]),
        ("t/d={partition}/{partition}-*", ["t/d=2013-10-01/2013-10-01-a"], ["t/d=2013-10-01/2013-10-02-a"]),
        ("t/[ab]{partition}.csv", ["t/[ab]2013-10-01.csv"], ["t/a2013-10-01.csv"]),
        ("t/{partition}.c.v", ["t/2013-10-01.c.v"], ["t/2013-10-01.csv"]),
        ("t/_{partition}*.csv", ["t/_2013-10-01x.csv"], []),
    ],
)  # fmt: skip
def test_a_path_matches_whole_names(tmp_path: Path, pattern: str, matched: list[str], not_matched: list[str]) -> None:
    assert paths_of(tmp_path, pattern, *matched, *not_matched) == {"2013-10-01": sorted(matched)}
    assert [path for path in not_matched if pattern_of(pattern).fullmatch(path)] == []


def test_a_day_that_is_none_is_left_out(tmp_path: Path) -> None:
    assert list(paths_of(tmp_path, "{partition}.csv", "2013-02-29.csv", "2013-02-28.csv")) == ["2013-02-28"]


def test_what_writers_leave_beside_their_files_is_left_out(tmp_path: Path) -> None:
    beside = [
        "_SUCCESS",
        "_temporary/0/part-1.csv",
        ".part-0.csv.crc",
        "part-0.csv.crc",
        ".hidden.csv",
        "part-2.csv.tmp",
    ]
    beside += ["_committed_12", "_started_12", ".git/x.csv", "_delta_log/1.json", "part-3.csv._COPYING_", ".tmp-x"]
    data = ["part-0.csv", "_MG_1234.jpg", "deeper/part-1.csv"]
    written = [f"t/2013-10-01/{name}" for name in (*beside, *data)]
    assert paths_of(tmp_path, "t/{partition}/**", *written) == {
        "2013-10-01": ["t/2013-10-01/_MG_1234.jpg", "t/2013-10-01/deeper/part-1.csv", "t/2013-10-01/part-0.csv"]
    }


def test_names_come_back_as_they_are_when_they_are_strange(tmp_path: Path) -> None:
    written = [f"t/2013-10-01/{name}" for name in STRANGE]
    assert paths_of(tmp_path, "t/{partition}/*.csv", *written) == {"2013-10-01": sorted(written)}


def test_a_folder_is_listed_once_and_no_file_is_asked_for(tmp_path: Path) -> None:
    store = landing(
        tmp_path, "t/2013-10-01/trips.csv", "t/2013-10-01/weather.csv", "t/2013-10-02/trips.csv", "planes.csv"
    )
    sources = [
        source("t/{partition}/trips.csv"),
        source("t/{partition}/weather.csv", "weather"),
        source("planes.csv", "planes"),
    ]
    found = list_sources(store, sources)
    assert (store.lists, store.stats) == (["t"], ["planes.csv"])
    assert found["trips"].held == ["2013-10-01", "2013-10-02"]
    assert found["weather"].held == ["2013-10-01"]
    assert [file.path for file in found["planes"].single] == ["planes.csv"]


def test_data_error_when_the_landing_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "landing").write_text("x")
    with pytest.raises(DataError, match="landing is a file; name a folder in data"):
        list_sources(LocalStore(tmp_path / "landing"), [source("{partition}.csv")])


def file(path: str, size: int) -> SourceFile:
    return SourceFile(path=path, bytes=size, etag="1")


def test_groups_are_cut_by_bytes_and_by_number() -> None:
    mebi = 1 << 20
    files = [file("d", 10 * mebi), file("c", 200 * mebi), file("b", 28 * mebi), file("a", 100 * mebi)]
    assert [[one.path for one in group] for group in cut_groups(files)] == [["a", "b"], ["c"], ["d"]]
    many = [file(f"{number:05}", 1) for number in range(2001)]
    assert [len(group) for group in cut_groups(many)] == [1000, 1000, 1]
    assert list(cut_groups([])) == []


def group(size: int, *, known: bool = False) -> GroupHead:
    return GroupHead(source="s", partition=None, receipt="r", known=known, num_files=1, size_bytes=size)


def test_batches_are_balanced_by_what_is_left_to_read() -> None:
    giga = 1 << 30
    groups = [group(3 * giga), group(1 * giga), group(9 * giga, known=True), group(1 * giga), group(1 * giga)]
    batches = cut_batches(groups, 2)
    assert batches == [[0, 2], [1, 3, 4]]
    assert len(cut_batches(groups, 1024)) == 5
    assert cut_batches([group(1000) for _ in range(137)], 4) == [list(range(137))]
    assert cut_batches([group(9 * giga, known=True)] * 3, 4) == [[0, 1, 2]]


def test_batches_are_at_most_as_many_as_the_recipe_says_when_there_are_many_files() -> None:
    groups = [group(1 << 27) for _ in range(100_000)]
    batches = cut_batches(groups, 1024)
    assert len(batches) == 1024
    assert {len(batch) for batch in batches} == {97, 98}
