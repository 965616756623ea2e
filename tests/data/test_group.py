"""Groups of files: the same bytes however the rows are split, bad files left out whole, keys once."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlewheel.data.tables import group_pass
from paddlewheel.data.tables.group import (
    REFUSED_NAME,
    ROWS_NAME,
    STATISTICS_NAME,
    FileCount,
    GroupFile,
    GroupJob,
    GroupResult,
    read_group,
)
from paddlewheel.data.tables.repeated import KeyLog
from paddlewheel.data.tables.rows import RowGroups, text_bytes
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source

A, B = Column(name="a", type="int64"), Column(name="b", type="string", nullable=True)


def make_source(*columns: Column, **fields: Any) -> Source:
    return Source(name="s", path="x", columns=columns or (A, B), **fields)


def read(folder: Path, contents: dict[str, bytes], source: Source, announced: list[str] | None = None) -> GroupResult:
    """Files of these names and bytes as a group; the outcome lies in `folder / "out"`."""
    files = []
    for name, content in contents.items():
        (path := folder / name).write_bytes(content)
        files.append(GroupFile(name=name, path=str(path)))
    (out := folder / "out").mkdir()
    job = GroupJob(source=dump(source), partition="2013-11-01", files=tuple(files))
    announce = (announced if announced is not None else []).append
    result = read_group(GroupJob.from_json(job.to_json()), out, announce=announce)
    assert GroupResult.from_json(result.to_json()) == result
    names = {ROWS_NAME, STATISTICS_NAME} | ({REFUSED_NAME} if result.refused else set())
    assert {path.name for path in out.iterdir()} == names
    return result


def rows(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "out" / ROWS_NAME)


def refused(folder: Path) -> list[dict[str, Any]]:
    path = folder / "out" / REFUSED_NAME
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_other_files_go_on_when_one_parquet_of_five_is_cut_off(tmp_path: Path) -> None:
    contents = {}
    for number in range(5):
        pq.write_table(pa.table({"a": [number], "b": [f"n{number}"]}), sink := io.BytesIO())
        contents[f"{number}.parquet"] = sink.getvalue()[: -20 if number == 2 else None]
    announced: list[str] = []
    result = read(tmp_path, contents, make_source(format="parquet"), announced)
    assert rows(tmp_path)["a"].to_list() == [0, 1, 3, 4]
    assert list(result.unreadable) == ["2.parquet"]
    assert "not a sound Parquet file" in result.unreadable["2.parquet"]
    assert result.files == {f"{number}.parquet": FileCount(rows=1, refused=0) for number in (0, 1, 3, 4)}
    assert announced == [f"{number}.parquet" for number in range(5)]


@pytest.mark.parametrize("held_bytes", [0, 1 << 30])
def test_no_row_of_a_file_stays_when_it_ends_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    monkeypatch.setattr(group_pass, "HELD_BYTES", held_bytes)
    many = b"a,b\n" + b"".join(b"%d,%x\nbad,\n" % (n, n * 7919 % 104729) for n in range(30_000))
    contents = {
        "1.csv.gz": gzip.compress(b"a,b\n1,x\n", mtime=0),
        "2.csv.gz": gzip.compress(many, mtime=0)[:-5],
        "3.csv.gz": gzip.compress(b"a,b\n2,y\nbad,z\n", mtime=0),
    }
    result = read(tmp_path, contents, make_source())
    assert rows(tmp_path).rows() == [(1, "x"), (2, "y")]
    assert [entry["file"] for entry in refused(tmp_path)] == ["3.csv.gz"]
    assert (result.rows, result.refused) == (2, 1)
    assert result.reasons == {"a: not a whole number of 64 bits (int64)": 1}
    assert "cut off" in result.unreadable["2.csv.gz"]
    assert json.loads((tmp_path / "out" / STATISTICS_NAME).read_bytes())["rows"] == 2


def test_table_has_its_columns_when_no_file_could_be_read(tmp_path: Path) -> None:
    result = read(tmp_path, {"1.csv": b""}, make_source())
    assert (result.rows, list(result.unreadable)) == (0, ["1.csv"])
    assert dict(rows(tmp_path).schema) == {"a": pl.Int64, "b": pl.String}


def test_later_row_is_refused_when_another_file_of_the_group_has_its_key(tmp_path: Path) -> None:
    contents = {
        "1.csv": b"a,b\n1,x\nbad,x\n2,y\n",
        "2.csv": b"",
        "3.csv": b"a,b\n3,z\n1,w\n3,v\n",
        "4.csv": b"a,b\n1,u\n4,t\n",
    }
    result = read(tmp_path, contents, make_source(key=("a",)))
    assert rows(tmp_path).rows() == [(1, "x"), (2, "y"), (3, "z"), (4, "t")]
    assert [(entry["file"], entry["line"], entry["reasons"][0]["reason"]) for entry in refused(tmp_path)[1:]] == [
        ("3.csv", 3, "the same key as line 2 of 1.csv"),
        ("3.csv", 4, "the same key as line 2"),
        ("4.csv", 2, "the same key as line 2 of 1.csv"),
    ]
    assert result.files["3.csv"] == FileCount(rows=1, refused=2)
    assert result.reasons["a: duplicate key"] == 3
    assert json.loads((tmp_path / "out" / STATISTICS_NAME).read_bytes())["rows"] == 4


def test_key_is_free_again_when_the_file_that_had_it_cannot_be_read(tmp_path: Path) -> None:
    contents = {"1.csv": b"a,b\n1,x\n1,\xff\n", "2.csv": b"a,b\n1,y\n"}
    read(tmp_path, contents, make_source(key=("a",)))
    assert rows(tmp_path).rows() == [(1, "y")]


@pytest.mark.parametrize("memory_rows", [1, 50, 1000])
def test_rows_with_an_earlier_key_are_found_when_hashes_lie_on_disk(tmp_path: Path, memory_rows: int) -> None:
    keys = [random.Random(3).randrange(60) for _ in range(100)]
    first: dict[int, int] = {}
    wanted = []
    for row, key in enumerate(keys):
        if key in first:
            wanted.append((row, first[key]))
        first.setdefault(key, row)
    log = KeyLog(("k", "l"), tmp_path, memory_rows=memory_rows)
    frame = pl.DataFrame({"k": keys, "l": [None] * 100}, schema={"k": pl.Int64, "l": pl.String})
    for start in range(0, 100, 7):
        part = frame[start : start + 7]
        places = np.arange(start, start + len(part))
        log.add(part, places, 5)
    repeats = log.find()
    found = [(row, place.place, place.file) for row, place in repeats.among(0, 100)]
    assert found == [(row, place, 5) for row, place in wanted]
    assert [row for row, _ in repeats.among(50, 60)] == [row - 50 for row, _ in wanted if 50 <= row < 60]


def test_row_groups_are_cut_by_the_rows_alone_when_frames_come_in_other_sizes() -> None:
    sizes = [3, 0, 40, 1, 1, 1, 25, 2, 9, 9, 9, 9, 1]
    frame = pl.DataFrame({"t": ["x" * size for size in sizes]})
    cuts = set()
    for step, more in itertools.product(range(1, len(sizes) + 1), (0, 5, 1000)):  # than the bytes that there are
        groups = RowGroups(rows=4, text_bytes=20)
        pieces = [frame[start : start + step] for start in range(0, len(sizes), step)]
        parts = [part for piece in pieces for part in groups.add([piece], text_bytes(piece) + more)]
        cuts.add(tuple(tuple(part["t"].str.len_bytes()) for part in [*parts, *groups.rest()]))
    assert cuts == {((3, 0), (40,), (1, 1, 1), (25,), (2, 9, 9), (9, 9, 1))}


LINES = st.lists(
    st.tuples(st.integers(-3, 3), st.sampled_from(["x", "", "a text longer than twelve", "ü"])), min_size=1, max_size=30
)


@settings(deadline=None, max_examples=40)
@given(LINES, st.lists(st.integers(0, 30), max_size=4), st.integers(1, 60), st.integers(1, 7))
def test_bytes_are_the_same_when_rows_are_split_over_files_and_chunks_in_any_way(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[int, str]],
    cuts: list[int],
    buffer_bytes: int,
    max_rows: int,
) -> None:
    source = make_source(key=("a", "b"))
    bounds = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    contents = {
        f"{number}.csv": b"a,b\n" + "".join(f"{a},{b}\n" for a, b in lines[start:stop]).encode()
        for number, (start, stop) in enumerate(itertools.pairwise(bounds))
    }
    whole, split = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("split")
    first = read(whole, {"all.csv": b"a,b\n" + "".join(f"{a},{b}\n" for a, b in lines).encode()}, source)
    with pytest.MonkeyPatch.context() as patch:
        from paddlewheel.data.readers import delimited

        plain = delimited.read
        patch.setattr(delimited, "read", lambda job: plain(job, buffer_bytes=buffer_bytes, max_rows=max_rows))
        patch.setattr(group_pass, "HELD_BYTES", 100)
        second = read(split, contents, source)
    distinct = list(dict.fromkeys(lines))
    assert rows(whole).rows() == [(a, b or None) for a, b in distinct]
    assert (first.rows, first.refused) == (second.rows, second.refused) == (len(distinct), len(lines) - len(distinct))
    for name in (ROWS_NAME, STATISTICS_NAME):
        assert (whole / "out" / name).read_bytes() == (split / "out" / name).read_bytes()


def test_every_rule_is_checked_when_a_reader_gives_typed_columns(tmp_path: Path) -> None:
    (tmp_path / "own_reader.py").write_text(
        "import polars as pl\n\ndef read(path, params):\n"
        "    yield pl.DataFrame({'a': [1, 20, None], 'b': ['x', 'no', 'x'], 'c': [1, 2, 3]})\n"
    )
    columns = Column(name="a", type="int64", maximum=9), Column(name="b", type="string", pattern="[a-z]")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        result = read(tmp_path, {"1.x": b"1"}, make_source(*columns, format="own_reader:read"))
    assert rows(tmp_path).rows() == [(1, "x")]
    assert result.reasons == {"a: above the maximum 9": 1, "a: missing": 1, "b: does not match [a-z]": 1}
    assert result.extra_columns == ("c",)


def test_bound_is_no_fault_when_it_lies_beyond_64_bits(tmp_path: Path) -> None:
    columns = Column(name="a", type="int64", minimum=-1e30, maximum=1e30), B
    read(tmp_path, {"1.csv": b"a,b\n9223372036854775807,x\n"}, make_source(*columns))
    assert rows(tmp_path)["a"].to_list() == [2**63 - 1]
