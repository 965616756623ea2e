"""Keys that stand more than once over many files."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlewheel.data.checks import duplicates
from paddlewheel.data.checks.duplicates import Duplicate, KeyedFile, find_duplicates


def keyed(folder: Path, *frames: pl.DataFrame) -> list[KeyedFile]:
    files = []
    for number, frame in enumerate(frames):
        path = folder / f"{number}.parquet"
        frame.write_parquet(path, row_group_size=2)
        files.append(KeyedFile(path=path, places=((f"file {number}", len(frame)),)))
    return files


def test_a_key_is_told_with_its_values_and_places_when_it_stands_in_two_files(tmp_path: Path) -> None:
    day = datetime.date(2013, 11, 1)
    one = pl.DataFrame({"wind": [1.0, 2.0, 3.0], "day": [day] * 3, "number": [1, 2, 3]})
    two = pl.DataFrame({"wind": [4.0, 5.0], "day": [day] * 2, "number": [4, 2]})
    found = find_duplicates(keyed(tmp_path, one, two), ["day", "number"], scratch=tmp_path)
    assert found.num_keys == 1
    assert found.examples == (Duplicate(key=(day, 2), count=2, places=("file 0", "file 1")),)


def test_places_are_those_of_a_tables_own_files_when_it_holds_several(tmp_path: Path) -> None:
    frame = pl.DataFrame({"tail": ["N1", "N2", "N3", "N2", "N1"]})
    frame.write_parquet(tmp_path / "rows.parquet")
    file = KeyedFile(path=tmp_path / "rows.parquet", places=(("a.csv", 2), ("empty.csv", 0), ("b.csv", 3)))
    found = find_duplicates([file], ["tail"], scratch=tmp_path)
    assert [(one.key, one.places) for one in found.examples] == [
        (("N1",), ("a.csv", "b.csv")),
        (("N2",), ("a.csv", "b.csv")),
    ]


def test_nothing_is_found_when_every_key_stands_once(tmp_path: Path) -> None:
    files = keyed(tmp_path, pl.DataFrame({"k": [1, 2]}), pl.DataFrame({"k": [3, None]}), pl.DataFrame({"k": [4]}))
    assert find_duplicates(files, ["k"], scratch=tmp_path).num_keys == 0


def test_whole_numbers_beyond_doubles_are_told_apart_when_they_are_keys(tmp_path: Path) -> None:
    files = keyed(tmp_path, pl.DataFrame({"k": [2**53, None]}), pl.DataFrame({"k": [2**53 + 1, 2**53 + 2]}))
    assert find_duplicates(files, ["k"], scratch=tmp_path).num_keys == 0


def test_two_missing_keys_are_the_same_key_when_both_are_null(tmp_path: Path) -> None:
    files = keyed(tmp_path, pl.DataFrame({"k": ["a", None]}), pl.DataFrame({"k": [None, "b"]}))
    assert find_duplicates(files, ["k"], scratch=tmp_path).examples == (
        Duplicate(key=(None,), count=2, places=("file 0", "file 1")),
    )


def test_all_are_counted_and_the_first_told_when_more_stand_twice_than_are_asked_for(tmp_path: Path) -> None:
    files = keyed(tmp_path, pl.DataFrame({"k": range(100)}), pl.DataFrame({"k": range(50, 150)}))
    found = find_duplicates(files, ["k"], scratch=tmp_path, most=2)
    assert (found.num_keys, [one.key for one in found.examples]) == (50, [(50,), (51,)])


def test_scratch_is_left_empty_when_hashes_lay_on_disk(tmp_path: Path) -> None:
    files = keyed(tmp_path, pl.DataFrame({"k": range(1000)}), pl.DataFrame({"k": [999, 1000]}))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = find_duplicates(files, ["k"], scratch=scratch, memory_bytes=1024)
    assert [one.key for one in found.examples] == [(999,)]
    assert list(scratch.iterdir()) == []


@pytest.fixture(params=[1, 1 << 18])
def batch_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(duplicates, "BATCH_ROWS", request.param)
    return int(request.param)


@pytest.mark.parametrize("memory_bytes", [1, 1 << 20])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.one_of(st.none(), st.sampled_from("abc"))), max_size=40
    ),
    cut=st.integers(0, 40),
)
def test_found_are_those_of_a_count_when_rows_are_split_anywhere(
    tmp_path: Path, batch_rows: int, memory_bytes: int, rows: list[tuple[Any, ...]], cut: int
) -> None:
    schema = {"a": pl.Int64, "b": pl.String}
    parts = [pl.DataFrame(part, schema=schema, orient="row") for part in (rows[:cut], rows[cut:])]
    found = find_duplicates(keyed(tmp_path, *parts), ["a", "b"], scratch=tmp_path, most=99, memory_bytes=memory_bytes)
    expected = {key: count for key, count in Counter(rows).items() if count > 1}
    assert found.num_keys == len(expected)
    assert {one.key: one.count for one in found.examples} == expected
