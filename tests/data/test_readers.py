"""Files as they come: compressed, cut off, of other encodings and formats. Real files, read as groups of one."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile, delimited, jsonl
from paddlewheel.data.readers.delimited import split_line
from paddlewheel.data.readers.parquet import read as read_parquet
from paddlewheel.data.tables.group import REFUSED_NAME, ROWS_NAME, GroupFile, GroupJob, GroupResult, read_group
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source

A = Column(name="a", type="int64", nullable=True)
B = Column(name="b", type="string", nullable=True)


def make_source(*columns: Column, **fields: Any) -> Source:
    return Source(name="s", path="x", columns=columns or (A, B), **fields)


class Reading:
    """A file of a name and these bytes, read as a group."""

    def __init__(self, folder: Path, name: str, content: bytes, source: Source) -> None:
        path, out = folder / name, folder / "out"
        path.write_bytes(content)
        out.mkdir()
        job = GroupJob(source=dump(source), partition=None, files=(GroupFile(name=name, path=str(path)),))
        self.result: GroupResult = read_group(job, out)
        self.rows = pl.read_parquet(out / ROWS_NAME)
        refused = out / REFUSED_NAME
        self.refused = [json.loads(line) for line in refused.read_bytes().splitlines()] if refused.exists() else []
        self.reason = self.result.unreadable.get(name)


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("f.csv", bytes),
        ("f.csv.gz", lambda raw: gzip.compress(raw, mtime=0)),
        ("f.csv.gz", lambda raw: gzip.compress(raw[:9], mtime=0) + gzip.compress(raw[9:], mtime=0)),
        ("f.csv.gz", lambda raw: gzip.compress(raw, mtime=0) + bytes(512)),
        ("f.csv.zst", zstandard.compress),
        ("f.csv.zst", lambda raw: zstandard.compress(raw[:9]) + zstandard.compress(raw[9:])),
    ],
)
def test_rows_are_the_same_when_a_file_is_compressed_in_one_member_or_two(
    tmp_path: Path, name: str, packed: Any
) -> None:
    reading = Reading(tmp_path, name, packed(b"a,b\n1,x\n2,y\n3,z\n"), make_source())
    assert reading.rows.rows() == [(1, "x"), (2, "y"), (3, "z")]


NOISE = b"a,b\n" + b"".join(b"%d,%d\n" % (n, n * n * 7919 % 104729) for n in range(40_000))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("f.csv", b"", "f.csv: the file is empty (0 bytes)"),
        ("f.csv.gz", b"", "f.csv.gz: the file is empty (0 bytes)"),
        ("f.csv.gz", gzip.compress(b"", mtime=0), "f.csv.gz: the file is empty, not even a header stands in it"),
        ("f.csv", b"\xef\xbb\xbf\r\n \n", "f.csv: the file is empty, not even a header stands in it"),
        ("f.csv.gz", gzip.compress(NOISE, mtime=0)[:-9], "f.csv.gz: the gzip file is cut off after "),
        ("f.csv.gz", gzip.compress(NOISE, mtime=0)[:-1], "f.csv.gz: the gzip file is cut off after "),
        ("f.csv.gz", gzip.compress(NOISE, mtime=0) * 2 + b"\x1f\x8b", "f.csv.gz: the gzip file is cut off after "),
        ("f.csv.gz", b"a,b\n1,2\n", "f.csv.gz: not a sound gzip file (it does not begin as one)"),
        (
            "f.csv.gz",
            gzip.compress(NOISE, mtime=0)[:-8] + bytes(8),
            "f.csv.gz: not a sound gzip file (CRC check failed",
        ),
        ("f.csv.zst", zstandard.compress(NOISE)[:-9], "f.csv.zst: the Zstandard file is cut off after "),
        ("f.csv.zst", zstandard.compress(NOISE) + b"abcde", "f.csv.zst: not a sound Zstandard file ("),
        ("f.csv", b"a,b\r1,x\r2,y\r" * 9000, "f.csv: its lines end in a carriage return alone, as on old Macs"),
        ("f.csv", b'a,"b\n1,x\n', "f.csv: line 1: the header's quotes are out of order: 'a,\"b"),
        ("f.csv", NOISE + b"1,\xff\n", "f.csv: line 40002 is not UTF-8 text (byte "),
        ("f.csv", b"a,b\n1,\xc3", "f.csv: line 2 is not UTF-8 text (byte 6)"),
    ],
)
def test_no_row_stays_when_a_file_cannot_be_read(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    reading = Reading(tmp_path, name, content, make_source())
    assert reading.reason is not None
    assert reading.reason.startswith(told)
    assert len(reading.reason) < 1200
    assert (len(reading.rows), reading.refused, dict(reading.result.files)) == (0, [], {})


def test_reason_is_told_when_the_file_is_not_there(tmp_path: Path) -> None:
    job = ReadJob(name="f.csv", path=tmp_path / "f.csv", source=make_source())
    with pytest.raises(UnreadableFile, match=r"f\.csv: cannot be read: No such file"):
        list(delimited.read(job))


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [
        ("latin-1", "a,b\n1,Müller\n".encode("latin-1")),
        ("cp1252", "a,b\r\n1,Müller\r\n".encode("cp1252")),
        ("utf-16", "a,b\n1,Müller\n".encode("utf-16")),
        ("utf-8", "\ufeffa,b\n1,Müller\n".encode()),
        ("utf-8-sig", "\ufeffa,b\n1,Müller\n".encode()),
    ],
)
def test_texts_are_right_when_the_encoding_is_declared(tmp_path: Path, encoding: str, raw: bytes) -> None:
    reading = Reading(tmp_path, "f.csv", raw, make_source(encoding=encoding))
    assert reading.rows.rows() == [(1, "Müller")]


def test_encoding_is_told_when_there_is_none_of_that_name(tmp_path: Path) -> None:
    reason = Reading(tmp_path, "f.csv", b"a,b\n", make_source(encoding="latin9000")).reason
    assert reason is not None
    assert reason.startswith("f.csv: 'latin9000' is no encoding of text that Python knows")


def test_columns_are_taken_by_position_when_there_is_no_header(tmp_path: Path) -> None:
    source = make_source(format="tsv", header=False)
    reading = Reading(tmp_path, "f.tsv", b"1\tx\n2\t\n3\n4\ty, z\tw\n", source)
    assert reading.rows.rows() == [(1, "x"), (2, None)]
    assert [(entry["line"], entry["reasons"][0]["reason"]) for entry in reading.refused] == [
        (3, "1 fields, the recipe names 2"),
        (4, "3 fields, the recipe names 2"),
    ]
    assert reading.result.reasons == {"(row): wrong number of fields": 2}


def test_fields_are_cut_at_the_delimiter_when_one_is_declared(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "f.csv", b'a;b\n1;x,y\n2;"p;q"\n', make_source(delimiter=";"))
    assert reading.rows.rows() == [(1, "x,y"), (2, "p;q")]


def test_blank_lines_are_no_rows_when_they_stand_at_the_end(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "f.csv", b"a,b\n\n1,x\r\n\n\r\n\n", make_source())
    assert reading.rows.rows() == [(1, "x")]
    assert [(entry["line"], entry["raw"]) for entry in reading.refused] == [(2, "")]


def test_times_are_exact_when_they_lie_before_1970_or_over_a_change_to_summer_time(tmp_path: Path) -> None:
    columns = Column(name="day", type="date"), Column(name="at", type="timestamp")
    raw = (
        b"day,at\n1969-12-31,1969-12-31T23:59:59.999999Z\n1900-02-28,1883-11-18T12:03:58-04:56\n"
        b"2013-03-31,2013-03-31T01:59:59+01:00\n2013-03-31,2013-03-31T03:00:00+02:00\n"
        b"2013-11-03,2013-11-03T01:30:00-04:00\n2013-11-03,2013-11-03T01:30:00-05:00\n"
    )
    rows = Reading(tmp_path, "f.csv", raw, make_source(*columns)).rows
    assert rows["at"].dt.timestamp("us").to_list() == [
        -1,
        -2717650802_000_000,
        1364691599_000_000,
        1364691600_000_000,
        1383456600_000_000,
        1383460200_000_000,
    ]
    assert rows["day"][:2].to_list() == [datetime.date(1969, 12, 31), datetime.date(1900, 2, 28)]


def test_bytes_are_those_of_base64_when_a_column_is_binary(tmp_path: Path) -> None:
    raw = b"a,b\n1,AP8=\n2,\n3,AP8\n4,A P8=\n"
    reading = Reading(tmp_path, "f.csv", raw, make_source(A, Column(name="b", type="binary", nullable=True)))
    assert reading.rows.rows() == [(1, b"\x00\xff"), (2, None)]
    assert [entry["reasons"][0]["reason"] for entry in reading.refused] == ["not bytes in base64 (binary)"] * 2


def test_integers_are_exact_when_beyond_two_to_the_53_beside_a_null_in_every_format(tmp_path: Path) -> None:
    wanted = [2**53 + 1, None, -(2**63)]
    table = pa.table({"a": pa.array(wanted, pa.int64()), "b": ["x", "y", "z"]})
    pq.write_table(table, sink := io.BytesIO())
    contents = {
        "csv": b"a,b\n9007199254740993,x\n,y\n-9223372036854775808,z\n",
        "tsv": b"a\tb\n9007199254740993\tx\nNA\ty\n-9223372036854775808\tz\n",
        "jsonl": b'{"a":9007199254740993,"b":"x"}\n{"a":null,"b":"y"}\n{"a":"-9223372036854775808","b":"z"}\n',
        "parquet": sink.getvalue(),
    }
    digests = set()
    for kind, content in contents.items():
        (folder := tmp_path / kind).mkdir()
        assert Reading(folder, f"f.{kind}", content, make_source(format=kind)).rows["a"].to_list() == wanted
        digests.add((folder / "out" / ROWS_NAME).read_bytes())
    assert len(digests) == 1


def test_lines_are_refused_with_every_reason_when_they_are_not_the_declared_objects(tmp_path: Path) -> None:
    raw = (
        b'\xef\xbb\xbf{"a": 1, "b": "x", "c": [1]}\r\n\r\n{"a": 1.5, "b": 7}\n[1, 2]\n{"a": NaN}\n{"a": 1\n'
        b'{"a": true, "b": "\\ud800"}\n{"b": "\\ud83d\\ude00"}\n{"a": 1e2, "b": "y"}\n'
        b'{"a": 3, "b": ["p", "q"]}'
    )
    reading = Reading(tmp_path, "f.jsonl", raw, make_source(format="jsonl"))
    assert reading.rows.rows() == [(1, "x"), (None, "😀")]
    assert [(one["line"], [reason["reason"] for reason in one["reasons"]]) for one in reading.refused] == [
        (3, ["b is a number and not string"]),
        (4, ["not a JSON object"]),
        (5, ["not JSON"]),
        (6, ["not JSON"]),
        (7, ["b has half of a surrogate pair, which is no character"]),
        (9, ["not a whole number of 64 bits (int64)"]),
        (10, ["b is an array and not string; write its texts as one, between separators, as a|b"]),
    ]
    assert reading.refused[3]["raw"] == '{"a": 1'
    assert reading.result.extra_columns == ("c",)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\n \n", "f.jsonl: the file is empty, there is no object in it"),
        (
            b'{"a": 1}\n{"a": 2}\n',
            "f.jsonl: the column 'b' is missing in every one of its 2 lines. Its objects have: a",
        ),
        (b'{"a": 1, "b": "\xff"}\n', "f.jsonl: line 1 is not UTF-8 text (byte 15)"),
    ],
)
def test_no_row_stays_when_a_file_of_json_lines_cannot_be_read(tmp_path: Path, content: bytes, told: str) -> None:
    reading = Reading(tmp_path, "f.jsonl", content, make_source(format="jsonl"))
    assert reading.reason is not None
    assert reading.reason.startswith(told)
    assert len(reading.rows) == 0


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    pq.write_table(table, sink := io.BytesIO(), **options)
    return sink.getvalue()


def test_row_group_and_row_are_told_when_a_parquet_row_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1.0, 2.0, 2.5, None]), "b": pa.array(["x", "x", "y", None]).dictionary_encode()})
    source = make_source(A, Column(name="b", type="string"), format="parquet")
    reading = Reading(tmp_path, "f.parquet", parquet_bytes(table, row_group_size=2), source)
    assert reading.rows.rows() == [(1, "x"), (2, "x")]
    assert reading.refused == [
        {
            "file": "f.parquet", "row": 3, "row_group": 1, "raw": '{"a": 2.5, "b": "y"}',
            "reasons": [{"column": "a", "value": "2.5", "reason": "not a whole number of 64 bits (int64)"}],
        },
        {
            "file": "f.parquet", "row": 4, "row_group": 1, "raw": '{"a": null, "b": null}',
            "reasons": [{"column": "b", "value": None, "reason": "missing"}],
        },
    ]  # fmt: skip


def test_values_are_refused_when_the_declared_type_would_lose_something(tmp_path: Path) -> None:
    nanoseconds = pa.array([-1_000, -999, None], pa.timestamp("ns"))
    table = pa.table({"at": nanoseconds, "x": pa.array([1.0, float("nan"), float("inf")])})
    columns = Column(name="at", type="timestamp", nullable=True), Column(name="x", type="float64", nullable=True)
    reading = Reading(tmp_path, "f.parquet", parquet_bytes(table), make_source(*columns, format="parquet"))
    assert reading.rows["at"].dt.timestamp("us").to_list() == [-1]
    assert reading.result.reasons == {
        "at: not a time as 2013-11-01T10:00:00Z (timestamp)": 1,
        "x: not a finite number (float64)": 1,
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (parquet_bytes(pa.table({"a": [1], "b": ["x"]}))[:-30], "f.parquet: not a sound Parquet file of "),
        (b"", "f.parquet: the file is empty (0 bytes)"),
        (b"a,b\n1,x\n", "f.parquet: not a sound Parquet file of 8 bytes ("),
        (parquet_bytes(pa.table({"a": [1]})), "f.parquet: the column 'b' is missing. It has: a."),
        (
            parquet_bytes(pa.table({"a": [[1]], "b": ["x"]})),
            "f.parquet: column 'a': a whole number of 64 bits is needed",
        ),
    ],
)
def test_no_row_stays_when_a_parquet_file_cannot_be_read(tmp_path: Path, content: bytes, told: str) -> None:
    reading = Reading(tmp_path, "f.parquet", content, make_source(format="parquet"))
    assert reading.reason is not None
    assert reading.reason.startswith(told)
    assert len(reading.rows) == 0


def test_flipped_bit_is_found_when_parquet_pages_have_checksums(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000)), "b": [f"name {n}" for n in range(1000)]})
    content = bytearray(parquet_bytes(table, write_page_checksum=True, compression="none", use_dictionary=False))
    content[content.index(b"name 500") + 5] ^= 1
    reading = Reading(tmp_path, "f.parquet", bytes(content), make_source(format="parquet"))
    assert reading.reason is not None
    assert "CRC checksum verification failed" in reading.reason


def rows_of(chunks: Iterator[Chunk]) -> list[Any]:
    """Every record of a file: line, raw text, fields or why it is broken."""
    found = []
    for chunk in chunks:
        raws = chunk.raws(list(range(len(chunk.places))))
        for row, values in enumerate(chunk.frame.iter_rows()):
            found.append((chunk.places[row], raws[row], chunk.broken.get(row, values)))
    return found


def expected_rows(text: str) -> list[Any]:
    """What stands in a CSV of the columns a and b, by the rules in plain Python: a record is a line, longer while its
    quotes are odd; one whose quotes are out of place is its first line alone; blank lines at the end are none."""
    lines = text.split("\n")
    found: list[Any] = []
    at = 0
    while at < len(lines):
        end = at
        while "\n".join(lines[at : end + 1]).count('"') % 2 and end + 1 < len(lines):
            end += 1
        record = "\n".join(lines[at : end + 1]).removesuffix("\r")
        values = split_line(record, ",")
        if values is None:
            record, end = lines[at].removesuffix("\r"), at
        if values is None:
            told: Any = "a quote is out of place"
        elif len(values) != 2:
            told = f"{len(values)} fields, the header has 2"
        else:
            told = tuple(None if value in ("", "NA") else value for value in values)
        found.append((at + 1, record, told))
        at = end + 1
    while found and not found[-1][1]:
        found.pop()
    return found[1:]


PIECES = st.lists(st.sampled_from(["a", "NA", "ü", "long text beyond twelve", '"', '""', ",", "\n", "\r\n", "\r", " "]))


@settings(deadline=None, max_examples=400)
@given(PIECES, st.integers(1, 9), st.integers(1, 5))
def test_records_are_those_of_the_plain_rules_when_a_file_is_cut_into_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], buffer_bytes: int, max_rows: int
) -> None:
    text = "a,b\n" + "".join(pieces)
    path = tmp_path_factory.getbasetemp() / "pieces.csv"
    path.write_bytes(text.encode())
    job = ReadJob(name="f.csv", path=path, source=make_source(Column(name="a", type="string", nullable=True), B))
    wanted = expected_rows(text)
    assert rows_of(delimited.read(job, buffer_bytes=buffer_bytes, max_rows=max_rows)) == wanted
    assert rows_of(delimited.read(job)) == wanted


NUMBERS = st.lists(
    st.one_of(
        st.integers(-(2**65), 2**65).map(str),
        st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1]).map(str),
        st.text("0123456789+-\"' \u0663e.NAx", max_size=5),
        st.integers(0, 99).map(lambda number: f'"{number:030}"'),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=200)
@given(NUMBERS)
def test_whole_numbers_are_the_same_when_they_are_parsed_with_the_fields_or_as_texts(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    found = []
    for null_values in (("", "NA"), ("", "NA", "a text too long for the compiled loop")):
        folder = tmp_path_factory.mktemp("numbers")
        raw = ("a,b\n" + "".join(f"{text},x\n" for text in texts)).encode()
        reading = Reading(folder, "f.csv", raw, make_source(null_values=null_values))
        found.append((reading.rows.rows(), reading.refused))
    assert found[0] == found[1]
    sound = [row for row, text in enumerate(texts) if re.fullmatch(r"[+-]?[0-9]+", text)]
    wanted = [int(texts[row]) for row in sound if -(2**63) <= int(texts[row]) < 2**63]
    assert [a for a, _ in found[0][0] if a is not None and a in wanted] == wanted or '"' in "".join(texts)


def test_quote_is_out_of_place_when_it_is_not_closed_within_the_longest_record(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b'a,b\n1,"' + b"x\n" * 40 + b'",y\n2,z\n')
    job = ReadJob(name="f.csv", path=path, source=make_source())
    for buffer_bytes in (1, 7, 1 << 20):
        found = rows_of(delimited.read(job, buffer_bytes=buffer_bytes, max_record_bytes=64))
        assert found[0] == (2, '1,"x', "a quote is out of place")
        assert found[-1] == (43, "2,z", (2, "z"))
        assert len(found) == 42


def test_file_is_unreadable_when_a_line_is_longer_than_a_record_may_be(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"a,b\n1,x\n" + b"7" * 100 + b",y\n")
    job = ReadJob(name="f.csv", path=path, source=make_source())
    for buffer_bytes in (1, 7, 1 << 20):
        with pytest.raises(UnreadableFile, match="line 3 is longer than 64 bytes"):
            rows_of(delimited.read(job, buffer_bytes=buffer_bytes, max_record_bytes=64))


def test_objects_are_the_same_when_json_lines_are_cut_into_any_pieces(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes("".join(f'{{"a": {n}, "b": "ü{n}"}}\r\n\n' for n in range(50)).encode())
    job = ReadJob(name="f.jsonl", path=path, source=make_source(format="jsonl"))
    whole = rows_of(jsonl.read(job))
    assert whole[1] == (3, '{"a": 1, "b": "ü1"}', ("1", "ü1"))
    for buffer_bytes in (1, 5, 64):
        assert rows_of(jsonl.read(job, buffer_bytes=buffer_bytes, max_rows=3)) == whole


def test_rows_are_counted_through_when_parquet_is_read_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(parquet_bytes(pa.table({"a": list(range(10)), "b": ["x"] * 10}), row_group_size=4))
    job = ReadJob(name="f.parquet", path=path, source=make_source(format="parquet"))
    found = [(chunk.row_group, chunk.places.to_list()) for chunk in read_parquet(job, batch_rows=3)]
    assert found == [(0, [1, 2, 3]), (0, [4]), (1, [5, 6, 7]), (1, [8]), (2, [9, 10])]


def test_member_that_is_missing_is_told_when_it_comes_only_later_in_the_file(tmp_path: Path) -> None:
    content = b'{"b": "x"}\n' * 20_000 + b'{"a": 1, "b": "y"}\n'  # the first chunk has no member a
    source = make_source(Column(name="a", type="int64"), B, format="jsonl")
    reading = Reading(tmp_path, "f.jsonl", content, source)
    assert reading.rows.rows() == [(1, "y")]
    assert reading.result.reasons == {"a: missing": 20_000}


def test_empty_objects_are_refused_when_a_column_may_not_be_null(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "f.jsonl", b"{}\n{}\n", make_source(Column(name="a", type="int64"), format="jsonl"))
    assert (reading.result.rows, reading.result.reasons) == (0, {"a: missing": 2})


def test_row_is_refused_when_its_moment_is_of_no_year_of_four_digits(tmp_path: Path) -> None:
    moments = [0, 253_402_300_799_999, 253_402_300_800_000, -62_135_596_800_001, 2**62]  # milliseconds
    days = pa.array([0, 2_932_896, 0, 0, 2_932_897], pa.int32()).cast(pa.date32())
    table = pa.table({"at": pa.array(moments, pa.int64()).cast(pa.timestamp("ms")), "day": days})
    columns = (Column(name="at", type="timestamp"), Column(name="day", type="date"))
    reading = Reading(tmp_path, "f.parquet", parquet_bytes(table), make_source(*columns, format="parquet"))
    assert reading.rows["day"].to_list() == [datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]
    assert [one["reasons"][0]["reason"] for one in reading.refused] == [
        "at lies outside the years of four digits",
        "at lies outside the years of four digits",
        "at lies outside the years of four digits; day lies outside the years of four digits",
    ]
