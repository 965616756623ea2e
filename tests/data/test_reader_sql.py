"""Queries as sources, on SQLite files; PostgreSQL is tested in services/postgres."""

from __future__ import annotations

import datetime
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from paddlewheel.data.readers import ReadJob
from paddlewheel.data.readers.sql import read, versions_of
from paddlewheel.data.readers.sql_query import bind, faults_of_query, is_ordered
from paddlewheel.data.tables.group import GroupFile, GroupJob, read_group
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source, Sql

BIG = 2**53 + 1
TYPES = {"id": "int64", "day": "date", "name": "string", "amount": "float64", "at": "timestamp", "good": "bool"}
ROWS = [
    (BIG, "2013-11-01", "Grüße, \"Anna\"", 0.1 + 0.2, "2013-11-03T01:30:00-05:00", 1),
    (2, "2013-11-01", None, None, "1969-12-31 23:59:59.5", 0),
    (1, "2013-11-02", "b", -1e300, None, None),
    (3, "2013-10-31", "before", 5e-324, "2013-10-31T00:00:00Z", 1),
]  # fmt: skip
QUERY = "SELECT * FROM sales WHERE day >= {start} AND day < {end}"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "sales 100%.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE sales (id INTEGER, day TEXT, name TEXT, amount REAL, at TEXT, good INTEGER)")
        connection.executemany("INSERT INTO sales VALUES (?,?,?,?,?,?)", ROWS)
    connection.close()
    return path


def source_of(path: Path, query: str = QUERY, *, key: tuple[str, ...] = ("id",), **fields: Any) -> Source:
    columns = tuple(Column(name=name, type=kind, nullable=True) for name, kind in fields.pop("types", TYPES).items())
    url = "sqlite:///" + str(path).replace("%", "%25")
    return Source(name="sales", columns=columns, key=key, sql=Sql(connection=url, query=query, **fields))


def rows_of(source: Source, day: str | None = "2013-11-01", version: str | None = None) -> list[tuple[Any, ...]]:
    chunks = list(read(ReadJob(name="sql", source=source, partition=day, version=version)))
    return [row for chunk in chunks for row in chunk.frame.rows()]


def grouped(job: GroupJob, folder: Path) -> tuple[bytes, int]:
    """(bytes of rows.parquet, number of refused rows)."""
    folder.mkdir()
    result = read_group(job, folder)
    assert result.unreadable == {}
    return (folder / "rows.parquet").read_bytes(), result.refused


def test_a_day_of_a_table_is_the_same_rows_file_as_from_csv(database: Path, tmp_path: Path) -> None:
    csv = tmp_path / "sales.csv"
    csv.write_text(
        "id,day,name,amount,at,good\n"
        "2,2013-11-01,,,1969-12-31T23:59:59.500000Z,false\n"
        '9007199254740993,2013-11-01,"Grüße, ""Anna""",0.30000000000000004,2013-11-03T06:30:00Z,true\n'
    )
    source = source_of(database)
    from_sql = GroupJob(source=dump(source), partition="2013-11-01", files=(GroupFile(name="sql"),))
    files = Source(name="sales", columns=source.columns, key=source.key, path="sales.csv")
    from_csv = GroupJob(source=dump(files), partition="2013-11-01", files=(GroupFile(name="sales.csv", path=str(csv)),))
    assert grouped(from_sql, tmp_path / "sql") == grouped(from_csv, tmp_path / "csv")
    frame = pl.read_parquet(tmp_path / "sql" / "rows.parquet")
    assert frame["id"].to_list() == [2, BIG]
    assert frame["at"].to_list()[1] == datetime.datetime(2013, 11, 3, 6, 30, tzinfo=datetime.UTC)


def test_bounds_take_the_day_itself_and_not_the_next(database: Path) -> None:
    assert [row[1] for row in rows_of(source_of(database))] == ["2013-11-01", "2013-11-01"]
    assert [row[0] for row in rows_of(source_of(database), "2013-11-02")] == ["1"]


def test_rows_are_sorted_by_the_key_unless_the_query_has_an_order(database: Path) -> None:
    everything = "SELECT * FROM sales"
    assert [row[0] for row in rows_of(source_of(database, everything), None)] == ["1", "2", "3", str(BIG)]
    by_name = rows_of(source_of(database, f"{everything} ORDER BY name DESC; "), None)
    assert [row[2] for row in by_name] == ["before", "b", 'Grüße, "Anna"', None]


def test_equal_keys_come_in_one_order_whatever_the_order_they_were_written_in(tmp_path: Path) -> None:
    found = []
    for number, rows in enumerate(([(1, "a"), (1, "b"), (1, None)], [(1, None), (1, "b"), (1, "a")])):
        path = tmp_path / f"{number}.db"
        _write(path, "CREATE TABLE t (id INTEGER, name TEXT)", rows)
        found.append(rows_of(source_of(path, "SELECT * FROM t", types={"id": "int64", "name": "string"}), None))
    assert found[0] == found[1] == [("1", None), ("1", "a"), ("1", "b")]


def test_values_keep_their_digits_whatever_the_first_rows_of_a_column_were(tmp_path: Path) -> None:
    # The first batch of 8,192 rows is null: a type taken from it would be wrong for the rest.
    values: list[Any] = [None] * 9000 + [BIG, 2.0, "12", "abc", 1.5, b"\xff", 1e15]
    _write(tmp_path / "a.db", "CREATE TABLE t (id INTEGER, value)", list(enumerate(values)))
    source = source_of(tmp_path / "a.db", "SELECT * FROM t", types={"id": "int64", "value": "int64"})
    chunks = list(read(ReadJob(name="sql", source=source)))
    assert [chunk.places[0] for chunk in chunks] == [1, 8193]
    last = [value for chunk in chunks for value in chunk.frame["value"].to_list()][-7:]
    assert last == [str(BIG), "2", "12", "abc", "1.5", None, "1000000000000000"]
    told = "value: bytes (a BLOB) where the recipe declares int64"
    assert [chunk.broken for chunk in chunks] == [{}, {9005 - 8192: told}]


def test_bytes_are_taken_as_they_are_when_binary_is_declared(tmp_path: Path) -> None:
    rows = [(number, value) for number, value in enumerate([None, b"\x00\xff", b"", "text"])]
    _write(tmp_path / "a.db", "CREATE TABLE t (id INTEGER, value)", rows)
    source = source_of(tmp_path / "a.db", "SELECT * FROM t", types={"id": "int64", "value": "binary"})
    assert rows_of(source, None) == [("0", None), ("1", b"\x00\xff"), ("2", b""), ("3", b"text")]


def test_the_version_is_the_number_of_rows_or_what_its_query_says(database: Path) -> None:
    sql = source_of(database).sql
    assert sql is not None
    assert versions_of(sql, ["2013-11-01", "2013-11-02", "2014-01-01"]) == ['["2"]', '["1"]', '["0"]']
    told = "SELECT max(id), count(*) FROM sales WHERE day >= {start} AND day < {end}"
    sql = Sql(connection=sql.connection, query=QUERY, version=told)
    assert versions_of(sql, ["2013-11-01"]) == [f'["{BIG}", "2"]']


@pytest.mark.parametrize(
    ("version", "number"), [("SELECT id FROM sales", "more than one row"), ("SELECT id FROM sales LIMIT 0", "no row")]
)
def test_a_version_query_must_give_one_row(database: Path, version: str, number: str) -> None:
    sql = source_of(database).sql
    assert sql is not None
    with pytest.raises(DataError, match=f"the version query gives {number}; let it give one, as SELECT max"):
        versions_of(Sql(connection=sql.connection, query=QUERY, version=version), ["2013-11-01"])


def test_rows_that_changed_since_the_plan_are_refused(database: Path) -> None:
    source = source_of(database)
    assert len(rows_of(source, version='["2"]')) == 2
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO sales (id, day) VALUES (77, '2013-11-01')")
    connection.close()
    with pytest.raises(DataError, match=r'sql: the rows changed since .* version is \["3"\], it was \["2"\]\); run'):
        rows_of(source, version='["2"]')


def test_rows_are_of_one_moment_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    _write(path, "CREATE TABLE t (id INTEGER)", [(number,) for number in range(20_000)])
    with sqlite3.connect(path) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        chunks = read(ReadJob(name="sql", source=source_of(path, "SELECT * FROM t", types={"id": "int64"})))
        first = len(next(chunks).frame)
        writer.execute("INSERT INTO t VALUES (20000)")
        writer.commit()
        assert first + sum(len(chunk.frame) for chunk in chunks) == 20_000
    writer.close()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT * FROM nope", r"SQLite file .*sales 100%\.db: .*no such table: nope\. Correct the query"),
        ("SELECT id AS idd FROM sales", r"'sales': the columns 'id', 'day', .* are missing \(there is 'idd'\)\. It"),
    ],
)
def test_a_query_that_does_not_fit_is_an_error_of_the_step_when_it_is_read(
    database: Path, query: str, told: str
) -> None:
    with pytest.raises(DataError, match=told) as caught:
        rows_of(source_of(database, query), None)
    assert type(caught.value) is DataError  # an unreadable file is another class


@pytest.mark.parametrize(
    ("connection", "kind", "told"),
    [
        ("sqlite:////no/such.db", DataError, r"there is no SQLite file /no/such\.db"),
        ("sqlite:///relative.db", RecipeError, "give its whole path"),
        ("mysql://host/x", RecipeError, "is of the kind 'mysql'; a source's query goes to postgres or sqlite"),
        ("nobody_knows", RecipeError, "there is no connection 'nobody_knows'.*AIRFLOW_CONN_NOBODY_KNOWS"),
    ],
)
def test_a_connection_that_cannot_be_used_says_why(connection: str, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        versions_of(Sql(connection=connection, query="SELECT 1 AS a ORDER BY 1"), [None])


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"not a database, but long enough to be looked at " * 50)
    with pytest.raises(DataError, match=r"file is not a database\. Deliver the file again"):
        rows_of(source_of(path), "2013-11-01")


def test_bounds_are_bound_outside_of_texts_names_and_comments_only() -> None:
    query = "SELECT '{start}', \"{end}\", $$ {end} $$ /* {end} */ FROM t -- {start}\nWHERE d >= {start} AND d < {end}"
    bound = bind(f"{query} AND e > {{start}};", lambda number: f"${number}")
    assert bound.text.endswith("-- {start}\nWHERE d >= $1 AND d < $2 AND e > $1")
    assert bound.text.startswith("SELECT '{start}', \"{end}\", $$ {end} $$ /* {end} */")
    assert bound.names == ("start", "end")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t ORDER /* why */\n BY a LIMIT 3", True),
        ("SELECT a, row_number() OVER (ORDER BY a) FROM t", False),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a) AS q", False),
        ("SELECT 'ORDER BY' AS a FROM t -- ORDER BY a", False),
    ],
)
def test_an_order_counts_only_when_it_is_the_querys_own(query: str, expected: bool) -> None:
    assert is_ordered(query) is expected


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("DELETE FROM t", "must be one query: SELECT"),
        ("SELECT 1; DROP TABLE t", "no semicolon between statements"),
        ("SELECT a FROM t WHERE d >= '{start}'", r"without quotes, .* here is '{start}'"),
        ("SELECT a FROM t WHERE d >= $1", "takes no parameters but"),
    ],
)
def test_what_is_no_query_of_a_source_is_told(query: str, told: str) -> None:
    assert re.search(told, "; ".join(faults_of_query(query)))


def _write(path: Path, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(table)
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.close()
