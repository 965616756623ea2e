"""Readers of the user's own: what they may give, and how their faults are told."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile, custom
from paddlewheel.data.tables.group import GroupFile, GroupJob, read_group
from paddlewheel.data.tables.isolate import Readers
from paddlewheel.errors import RecipeError
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source

BIG = 2**53 + 1


@pytest.fixture(autouse=True)
def _own_readers_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    sys.modules.pop("own_readers", None)


def source_of(name: str, **params: Any) -> Source:
    columns = (
        Column(name="id", type="int64", nullable=True),
        Column(name="amount", type="float64", nullable=True, required=False),
    )
    return Source(name="own", path="x/*", format=f"own_readers:{name}", columns=columns, params=params)


def chunks_of(folder: Path, name: str, content: str = "", **params: Any) -> list[Chunk]:
    path = folder / "cached-under-another-name"
    path.write_text(content)
    return list(custom.read(ReadJob(name="landed/a.bin", source=source_of(name, **params), path=path)))


def test_lists_of_dicts_are_rows_of_the_declared_types(tmp_path: Path) -> None:
    (chunk,) = chunks_of(tmp_path, "lines", f"{BIG}=0.5\n7=\n", separator="=")
    assert chunk.frame.rows() == [(BIG, "0.5"), (7, None)]  # texts are parsed by the schema
    assert chunk.frame.schema["id"] == pl.Int64


def test_every_kind_of_piece_is_taken(tmp_path: Path) -> None:
    chunks = chunks_of(tmp_path, "frames")
    assert [row for chunk in chunks for row in chunk.frame.rows()] == [
        (1, 0.5), (BIG, None), (2, 1.5), (None, None), (3, 2.5), (None, None), (4, 3.5), (BIG, None),
    ]  # fmt: skip
    assert [chunk.places.to_list() for chunk in chunks] == [[1, 2], [3, 4], [5, 6], [7], [8]]
    assert chunks[-1].extra_columns == ("more",)


def test_a_column_of_mixed_values_comes_as_texts_so_that_only_the_bad_row_is_refused(tmp_path: Path) -> None:
    (chunk,) = chunks_of(tmp_path, "mixed")
    assert chunk.frame["id"].to_list() == ["1", "two", "3"]
    assert chunk.raws([1]) == ['{"id": "two", "amount": 0.5}']


def test_an_error_is_the_files_with_the_place_in_the_reader(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile) as told:
        chunks_of(tmp_path, "failing", "x1")
    assert re.fullmatch(
        r"landed/a\.bin: the reader own_readers:failing failed: ValueError: invalid literal for int\(\) with base 10: "
        r"'x1'\n  own_readers\.py:\d+ in failing: return int\(path\.read_text\(\)\)",
        str(told.value),
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "wrong",
            r"gave a builtins\.dict; it may give polars or pandas frames, pyarrow tables or record batches, or l",
        ),
        ("leaving", "failed: SystemExit: enough"),
        ("panicking", "failed: PanicException: "),
        ("narrow", r"the column 'id' is missing \(there is 'idd'\)"),
    ],
)
def test_what_is_no_table_makes_the_file_unreadable(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(UnreadableFile, match=f"landed/a.bin: .*{told}"):
        chunks_of(tmp_path, name)


def test_row_is_refused_when_its_piece_lacks_a_required_column(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "out").mkdir()
    columns = (Column(name="id", type="int64"), Column(name="amount", type="float64"))
    source = Source(name="own", path="x/*", format="own_readers:narrowing", columns=columns)
    result = read_group(
        GroupJob(source=dump(source), partition=None, files=(GroupFile(name="a", path=str(tmp_path / "a")),)),
        tmp_path / "out",
    )
    assert (result.rows, result.refused, result.reasons) == (1, 1, {"id: missing": 1})


@pytest.mark.parametrize("format_", ["own_readers:nobody", "no_such_module:read"])
def test_a_reader_that_is_not_there_is_a_fault_of_the_recipe(tmp_path: Path, format_: str) -> None:
    with pytest.raises(RecipeError, match=f"the reader '{format_}' cannot be imported"):
        custom.load_function(format_)


@pytest.mark.parametrize(("name", "signal"), [("aborting", "SIGABRT"), ("crashing", "SIGSEGV")])
def test_a_crash_in_native_code_costs_the_file_and_not_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, signal: str
) -> None:
    files = []
    for file, content in (("a", "good"), ("b", "bad"), ("c", "good")):
        (tmp_path / file).write_text(content)
        files.append(GroupFile(name=f"landed/{file}", path=str(tmp_path / file)))
    folder = tmp_path / "out"
    folder.mkdir()
    with Readers(1) as readers:
        job = GroupJob(source=dump(source_of(name)), partition="2013-11-01", files=tuple(files))
        result = readers.read(job, folder)
    assert result.unreadable == {"landed/b": f"its reader crashed in native code ({signal})"}
    assert pl.read_parquet(folder / "rows.parquet").rows() == [(1, 1.0), (1, 1.0)]
    assert f"in {name}\n" in caplog.text  # where it crashed, of the user's own lines
    assert "Extension modules" not in caplog.text
