"""Rows that break the schema: what is refused, why, and where."""

from __future__ import annotations

import datetime
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from paddlewheel.data.tables.group import REFUSED_NAME, ROWS_NAME, GroupFile, GroupJob, GroupResult, read_group
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a group of one file became."""

    frame: pl.DataFrame
    refusals: list[dict[str, Any]]
    result: GroupResult


def source(*columns: Column, key: tuple[str, ...] = (), **fields: Any) -> Source:
    return Source(name="trips", path="f.csv", columns=columns, key=key, **fields)


def read(content: str | bytes, *columns: Column, key: tuple[str, ...] = (), **fields: Any) -> Table:
    raw = content.encode() if isinstance(content, str) else content
    with tempfile.TemporaryDirectory() as name:
        path, folder = Path(name, "f.csv"), Path(name, "out")
        path.write_bytes(raw)
        folder.mkdir()
        files = (GroupFile(name="f.csv", path=str(path)),)
        result = read_group(
            GroupJob(source=dump(source(*columns, key=key, **fields)), partition=None, files=files), folder
        )
        refused = folder / REFUSED_NAME
        lines = refused.read_bytes().splitlines() if refused.exists() else []
        return Table(
            frame=pl.read_parquet(folder / ROWS_NAME), refusals=[json.loads(line) for line in lines], result=result
        )


def unreadable(content: str | bytes, *columns: Column, **fields: Any) -> str:
    table = read(content, *columns, **fields)
    assert len(table.frame) == 0
    return table.result.unreadable["f.csv"]


def test_int64_is_exact_when_beyond_two_to_the_53_beside_a_null() -> None:
    table = read("n\n9007199254740993\nNA\n-9223372036854775808\n", Column(name="n", type="int64", nullable=True))
    assert table.frame["n"].to_list() == [9007199254740993, None, -9223372036854775808]
    assert table.refusals == []


def test_bounds_are_exact_when_int64_is_beyond_two_to_the_53() -> None:
    table = read("n\n9007199254740992\n9007199254740993\n", Column(name="n", type="int64", maximum=2**53))
    assert table.frame["n"].to_list() == [9007199254740992]
    assert table.refusals[0]["reasons"] == [
        {"column": "n", "value": "9007199254740993", "reason": "above the maximum 9007199254740992"}
    ]


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("int64", ["517.0", " 5", "0x10", "9223372036854775808", "five", "1e3"]),
        ("float64", ["nan", "inf", "1e999", "1,5".replace(",", ";"), "five"]),
        ("bool", ["maybe", "2"]),
        ("date", ["2013-02-29", "2013-1-1", "01/11/2013", "20131101", "0000-12-31"]),
        ("timestamp", ["2013-11-01", "2013-11-01T25:00:00Z", "noon", "1383300000"]),
        ("timestamp", ["0000-12-31T23:59:59Z", "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"]),
    ],
)
def test_row_is_refused_when_a_text_is_not_of_the_declared_type(kind: str, bad: list[str]) -> None:
    table = read("\n".join(["v", *bad]) + "\n", Column(name="v", type=kind))  # type: ignore[arg-type]
    assert len(table.frame) == 0
    assert [(entry["line"], entry["raw"]) for entry in table.refusals] == [(i + 2, text) for i, text in enumerate(bad)]


def test_times_are_utc_when_they_carry_an_offset_or_none() -> None:
    texts = ["2013-11-01T10:00:00Z", "2013-11-01 10:00", "2013-11-01T10:00:00.25-05:00", "2013-11-01T10:00+0530"]
    values = read("\n".join(["t", *texts]), Column(name="t", type="timestamp")).frame["t"].to_list()
    assert [value.astimezone(datetime.UTC).replace(tzinfo=None) for value in values] == [
        datetime.datetime(2013, 11, 1, 10),
        datetime.datetime(2013, 11, 1, 10),
        datetime.datetime(2013, 11, 1, 15, 0, 0, 250_000),
        datetime.datetime(2013, 11, 1, 4, 30),
    ]


def test_every_reason_is_told_when_a_row_breaks_several_rules() -> None:
    table = read(
        "a,b,c\n1,EWR,AB\n-1,LAX,ABx\n,EWR,AB\n",
        Column(name="a", type="int64", minimum=0),
        Column(name="b", type="string", allowed=("EWR", "JFK")),
        Column(name="c", type="string", pattern="[A-Z]{2}"),
    )
    assert table.refusals == [
        {
            "file": "f.csv",
            "line": 3,
            "raw": "-1,LAX,ABx",
            "reasons": [
                {"column": "a", "value": "-1", "reason": "below the minimum 0"},
                {"column": "b", "value": "LAX", "reason": "not one of EWR, JFK"},
                {"column": "c", "value": "ABx", "reason": "does not match [A-Z]{2}"},
            ],
        },
        {
            "file": "f.csv",
            "line": 4,
            "raw": ",EWR,AB",
            "reasons": [{"column": "a", "value": "", "reason": "missing"}],
        },
    ]
    assert table.result.reasons == {
        "a: below the minimum 0": 1,
        "a: missing": 1,
        "b: not one of EWR, JFK": 1,
        "c: does not match [A-Z]{2}": 1,
    }


def test_row_is_refused_when_it_has_another_number_of_fields() -> None:
    table = read("a,b\n1,2\n3\n4,5,6\n7,8\n", Column(name="a", type="int64"), Column(name="b", type="int64"))
    assert table.frame.rows() == [(1, 2), (7, 8)]
    assert [entry["reasons"][0]["reason"] for entry in table.refusals] == [
        "1 fields, the header has 2",
        "3 fields, the header has 2",
    ]


def test_later_row_is_refused_when_two_have_one_key() -> None:
    columns = Column(name="a", type="int64"), Column(name="b", type="string", nullable=True)
    table = read("a,b\n1,x\n2,\nbad,y\n1,x\n2,\n1,z\n", *columns, key=("a", "b"))
    assert table.frame.rows() == [(1, "x"), (2, None), (1, "z")]
    assert [(entry["line"], entry["reasons"]) for entry in table.refusals[1:]] == [
        (5, [{"column": "a, b", "value": "1, x", "reason": "the same key as line 2"}]),
        (6, [{"column": "a, b", "value": "2, None", "reason": "the same key as line 3"}]),
    ]


def test_fields_are_clean_when_the_file_has_a_bom_and_crlf() -> None:
    columns = Column(name="a", type="int64"), Column(name="b", type="string", nullable=True)
    table = read(b"\xef\xbb\xbfa,b\r\n1,x\r\n2,\r\n", *columns)
    assert table.frame.rows() == [(1, "x"), (2, None)]


def test_line_numbers_are_those_of_the_file_when_a_quoted_field_has_line_breaks() -> None:
    text = 'a,b\n1,"two\nlines, ""quoted"""\n2,plain\nx,"an\nother"\n3,last\n'
    table = read(text, Column(name="a", type="int64"), Column(name="b", type="string"))
    assert table.frame.rows() == [(1, 'two\nlines, "quoted"'), (2, "plain"), (3, "last")]
    assert [(entry["line"], entry["raw"]) for entry in table.refusals] == [(5, 'x,"an\nother"')]


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ('"a","b"', ["a", "b"]),
        ('"",x', ["", "x"]),
        ('"""","b ""c"" d"', ['"', 'b "c" d']),
        ('"a,b",', ["a,b", ""]),
        ('a,"b"', ["a", "b"]),
    ],
)
def test_fields_are_unquoted_when_quotes_are_in_order(row: str, fields: list[str]) -> None:
    columns = [Column(name=name, type="string", nullable=True) for name in ("a", "b")]
    table = read(f"a,b\n{row}\n", *columns, null_values=())
    assert table.frame.rows() == [tuple(fields)]


@pytest.mark.parametrize("row", ['a"b",c', '"a"b,c', '"a" ,c', ' "a",c', 'a,"b""'])
def test_row_is_refused_when_a_quote_is_out_of_place(row: str) -> None:
    table = read(f"a,b\n{row}\n", Column(name="a", type="string"), Column(name="b", type="string"))
    assert [entry["reasons"][0]["reason"] for entry in table.refusals] == ["a quote is out of place"]


def test_only_its_own_line_is_refused_when_a_quote_is_never_closed() -> None:
    table = read('a,b\n1,"open\n2,x\n3,5" pipe\n4,y\n', Column(name="a", type="int64"), Column(name="b", type="string"))
    assert table.frame.rows() == [(2, "x"), (4, "y")]
    assert [(entry["line"], entry["reasons"][0]["reason"]) for entry in table.refusals] == [
        (2, "a quote is out of place"),
        (4, "a quote is out of place"),
    ]


def test_columns_are_found_by_name_when_the_order_differs_and_more_are_there() -> None:
    table = read("z,b,a\n9,x,1\n", Column(name="a", type="int64"), Column(name="b", type="string"))
    assert table.frame.rows() == [(1, "x")]
    assert table.result.extra_columns == ("z",)


def test_column_is_null_when_it_is_not_required_and_not_there() -> None:
    table = read("a\n1\n", Column(name="a", type="int64"), Column(name="b", type="float64", required=False))
    assert table.frame.rows() == [(1, None)]


def test_file_and_column_are_named_when_a_column_is_missing_or_there_twice() -> None:
    told = unreadable("a,delay,a\n1,2,3\n", Column(name="dely", type="int64"), Column(name="a", type="int64"))
    assert told.startswith(
        "f.csv: the column 'dely' is missing (there is 'delay'); the column 'a' stands there 2 times. The header has: "
        "a, delay, a. Deliver the file with its columns"
    )


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (
            "ID, x,s",
            "f.csv: the columns 'id', 'x' are missing (there is 'ID', ' x'). The header has: ID,  x, s. Deliver",
        ),
        (
            "a;b;c",
            "f.csv: the columns 'id', 'x', 's' are missing. The header has: a;b;c. Is ';' its delimiter? Then tell",
        ),
        ("id,s", "f.csv: the column 'x' is missing. The header has: id, s. Deliver"),  # x is not what s is meant to be
    ],
)
def test_what_may_be_meant_is_told_when_columns_are_missing(header: str, told: str) -> None:
    columns = (Column(name="id", type="int64"), Column(name="x", type="int64"), Column(name="s", type="string"))
    assert unreadable(f"{header}\n1\n", *columns).startswith(told)


def test_line_is_named_when_a_file_is_not_utf_8() -> None:
    told = unreadable(b"a\nx\nM\xfcller\n", Column(name="a", type="string"))
    assert told.startswith("f.csv: line 3 is not UTF-8 text (byte 5); export it as UTF-8")
