"""Files that break the schema: what is refused, why, and where."""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path

import pytest

from paddlewheel.data.records import read_content
from paddlewheel.data.schema import Table, read_table
from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Column, Source

PATH = Path("trips/2013-11-01.csv.gz")


def source(*columns: Column, key: tuple[str, ...] = ()) -> Source:
    return Source(name="trips", path="trips/{partition}.csv.gz", columns=columns, key=key)


def read(text: str, *columns: Column, key: tuple[str, ...] = ()) -> Table:
    return read_table(PATH, text.encode(), source(*columns, key=key))


def refusals(table: Table) -> list[dict[str, object]]:
    return [json.loads(line) for line in table.refusal_lines("f.csv").splitlines()]


def test_int64_is_exact_when_beyond_two_to_the_53_beside_a_null() -> None:
    table = read("n\n9007199254740993\nNA\n-9223372036854775808\n", Column(name="n", type="int64", nullable=True))
    assert table.frame["n"].to_list() == [9007199254740993, None, -9223372036854775808]
    assert table.refusals == ()


def test_bounds_are_exact_when_int64_is_beyond_two_to_the_53() -> None:
    table = read("n\n9007199254740992\n9007199254740993\n", Column(name="n", type="int64", maximum=2**53))
    assert table.frame["n"].to_list() == [9007199254740992]
    assert refusals(table)[0]["reasons"] == [
        {"column": "n", "value": "9007199254740993", "reason": "above the maximum 9007199254740992"}
    ]


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("int64", ["517.0", " 5", "0x10", "9223372036854775808", "five", "1e3"]),
        ("float64", ["nan", "inf", "1e999", "1,5".replace(",", ";"), "five"]),
        ("bool", ["maybe", "2"]),
        ("date", ["2013-02-29", "2013-1-1", "01/11/2013", "20131101"]),
        ("timestamp", ["2013-11-01", "2013-11-01T25:00:00Z", "noon", "1383300000"]),
    ],
)
def test_row_is_refused_when_a_text_is_not_of_the_declared_type(kind: str, bad: list[str]) -> None:
    table = read("\n".join(["v", *bad]) + "\n", Column(name="v", type=kind))  # type: ignore[arg-type]
    assert len(table.frame) == 0
    assert [(entry["line"], entry["raw"]) for entry in refusals(table)] == [(i + 2, text) for i, text in enumerate(bad)]


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
    assert refusals(table) == [
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
    assert table.counts == {
        "a: below the minimum 0": 1,
        "a: missing": 1,
        "b: not one of EWR, JFK": 1,
        "c: does not match [A-Z]{2}": 1,
    }


def test_row_is_refused_when_it_has_another_number_of_fields() -> None:
    table = read("a,b\n1,2\n3\n4,5,6\n7,8\n", Column(name="a", type="int64"), Column(name="b", type="int64"))
    assert table.frame.rows() == [(1, 2), (7, 8)]
    assert [entry["reasons"][0]["reason"] for entry in refusals(table)] == [  # type: ignore[index]
        "1 fields, the header has 2",
        "3 fields, the header has 2",
    ]


def test_later_row_is_refused_when_two_have_one_key() -> None:
    columns = Column(name="a", type="int64"), Column(name="b", type="string", nullable=True)
    table = read("a,b\n1,x\n2,\nbad,y\n1,x\n2,\n1,z\n", *columns, key=("a", "b"))
    assert table.frame.rows() == [(1, "x"), (2, None), (1, "z")]
    assert [(entry["line"], entry["reasons"]) for entry in refusals(table)[1:]] == [
        (5, [{"column": "a, b", "value": "1, x", "reason": "the same key as line 2"}]),
        (6, [{"column": "a, b", "value": "2, None", "reason": "the same key as line 3"}]),
    ]


def test_fields_are_clean_when_the_file_has_a_bom_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\r\n1,x\r\n2,\r\n")
    table = read_table(
        path, read_content(path), source(Column(name="a", type="int64"), Column(name="b", type="string", nullable=True))
    )
    assert table.frame.rows() == [(1, "x"), (2, None)]


def test_line_numbers_are_those_of_the_file_when_a_quoted_field_has_line_breaks() -> None:
    text = 'a,b\n1,"two\nlines, ""quoted"""\n2,plain\nx,"an\nother"\n3,last\n'
    table = read(text, Column(name="a", type="int64"), Column(name="b", type="string"))
    assert table.frame.rows() == [(1, 'two\nlines, "quoted"'), (2, "plain"), (3, "last")]
    assert [(entry["line"], entry["raw"]) for entry in refusals(table)] == [(5, 'x,"an\nother"')]


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
    table = read_table(
        PATH, f"a,b\n{row}\n".encode(), Source(name="s", path="x", columns=tuple(columns), null_values=())
    )
    assert table.frame.rows() == [tuple(fields)]


@pytest.mark.parametrize("row", ['a"b",c', '"a"b,c', '"a" ,c', ' "a",c', 'a,"b""'])
def test_row_is_refused_when_a_quote_is_out_of_place(row: str) -> None:
    table = read(f"a,b\n{row}\n", Column(name="a", type="string"), Column(name="b", type="string"))
    assert [entry["reasons"][0]["reason"] for entry in refusals(table)] == ["a quote is out of place"]  # type: ignore[index]


def test_only_its_own_line_is_refused_when_a_quote_is_never_closed() -> None:
    table = read('a,b\n1,"open\n2,x\n3,5" pipe\n4,y\n', Column(name="a", type="int64"), Column(name="b", type="string"))
    assert table.frame.rows() == [(2, "x"), (4, "y")]
    assert [(entry["line"], entry["reasons"][0]["reason"]) for entry in refusals(table)] == [  # type: ignore[index]
        (2, "a quote is out of place"),
        (4, "a quote is out of place"),
    ]


def test_columns_are_found_by_name_when_the_order_differs_and_more_are_there() -> None:
    table = read("z,b,a\n9,x,1\n", Column(name="a", type="int64"), Column(name="b", type="string"))
    assert table.frame.rows() == [(1, "x")]
    assert table.extra_columns == ("z",)


def test_column_is_null_when_it_is_not_required_and_not_there() -> None:
    table = read("a\n1\n", Column(name="a", type="int64"), Column(name="b", type="float64", required=False))
    assert table.frame.rows() == [(1, None)]


def test_file_and_column_are_named_when_a_column_is_missing_or_there_twice() -> None:
    with pytest.raises(
        DataError, match=r"2013-11-01\.csv\.gz: the column 'dely'.*'delay'.*column 'a' stands.* 2 times"
    ):
        read("a,delay,a\n1,2,3\n", Column(name="dely", type="int64"), Column(name="a", type="int64"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        (b"", r"the file is empty \(0 bytes\)"),
        (gzip.compress(b"", mtime=0), "the file is empty, not even a header"),
        (gzip.compress(b"a,b\n" + bytes(range(32, 127)) * 40, mtime=0)[:-9], "cut off after"),
        (b"a,b\n1,2\n", "not a sound gzip file"),
    ],
)
def test_file_is_named_when_it_cannot_be_read(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "f.csv.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"f\.csv\.gz: .*{told}"):
        read_content(path)


def test_line_is_named_when_a_file_is_not_utf_8() -> None:
    with pytest.raises(DataError, match="line 3 is not UTF-8"):
        read_table(PATH, b"a\nx\nM\xfcller\n", source(Column(name="a", type="string")))
