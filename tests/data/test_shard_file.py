"""A shard's file: its row groups and bytes."""

from __future__ import annotations

import itertools
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlewheel.data.samples.shard_file import GroupLimits, ShardFile, group_limits, read_ids


def written(path: Path, frames: list[pl.DataFrame], *, rows: int, bytes: int) -> Path:
    with ShardFile(path, frames[0].clear(), limits=GroupLimits(rows=rows, bytes=bytes)) as file:
        for frame in frames:
            file.add(frame)
    return path


def group_rows(path: Path) -> list[int]:
    meta = pq.read_metadata(path)
    return [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]


def samples(*texts: str | None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": range(len(texts)),
            "text": texts,
            "image": [None if text is None else text.encode() for text in texts],
        },
        schema={"sample_id": pl.UInt64, "text": pl.String, "image": pl.Binary},
    )


def test_a_row_group_ends_at_its_rows_when_they_are_narrow(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", [samples(*"abcdefgh")], rows=3, bytes=10_000)
    assert group_rows(path) == [3, 3, 2]


def test_a_row_group_ends_with_the_row_that_reaches_its_bytes_when_rows_are_wide(tmp_path: Path) -> None:
    # a row takes 24 bytes and its text twice: 24, 124, 24, 24, 224, 24
    frame = samples("", "x" * 50, None, "", "x" * 100, "")
    assert group_rows(written(tmp_path / "a.parquet", [frame], rows=99, bytes=148)) == [2, 3, 1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.one_of(st.none(), st.text(max_size=30)), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    limits=st.tuples(st.integers(1, 12), st.sampled_from([1, 100, 300])),
)
def test_bytes_are_the_same_when_samples_come_in_any_pieces(
    tmp_path: Path, texts: list[str | None], cuts: list[int], limits: tuple[int, int]
) -> None:
    frame = samples(*texts)
    bounds = [0, *sorted(min(cut, len(texts)) for cut in cuts), len(texts)]
    parts = [frame[start:end] for start, end in itertools.pairwise(bounds)]
    whole = written(tmp_path / "whole.parquet", [frame], rows=limits[0], bytes=limits[1])
    pieces = written(tmp_path / "pieces.parquet", parts, rows=limits[0], bytes=limits[1])
    assert whole.read_bytes() == pieces.read_bytes()
    assert pl.read_parquet(whole).equals(frame)
    assert [number for ids in read_ids(whole) for number in ids.tolist()] == list(range(len(texts)))


@pytest.mark.parametrize(("num_shards", "rows"), [(1, 65_536), (4, 65_536), (8, 32_768), (256, 4_096)])
def test_row_groups_are_smaller_when_many_shards_are_written_side_by_side(num_shards: int, rows: int) -> None:
    assert group_limits(num_shards).rows == rows
