"""Queries as sources on a real PostgreSQL: types, bounds, order, memory, and every way it can refuse."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from paddlewheel.data.readers import ReadJob, UnreadableFile
from paddlewheel.data.readers.sql import read, versions_of
from paddlewheel.data.tables.group import GroupFile, GroupJob, read_group
from paddlewheel.errors import DataError, StorageError
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source, Sql

from .server import PASSWORD, Postgres, run_server

pytestmark = pytest.mark.services
BIG = 2**53 + 1
TYPES = {
    "id": "int64", "day": "date", "at": "timestamp", "local": "timestamp", "good": "bool", "amount": "float64",
    "price": "float64", "whole": "int64", "name": "string", "raw": "binary", "code": "string", "more": "string",
}  # fmt: skip
TABLE = """
CREATE TABLE sales (id int8, day date, at timestamptz, local timestamp, good bool, amount float8, price numeric(20, 2),
  whole numeric, name text, raw bytea, code uuid, more json);
INSERT INTO sales VALUES
  (9007199254740993, '2013-11-03', '2013-11-03 01:30:00-05', '1969-12-31 23:59:59.5', true, 0.1, 12.50, 12.00,
   'Grüße', '\\x00ff', '12345678-1234-5678-1234-567812345678', '{"a": 1}'),
  (2, '2013-11-03', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (1, '2013-11-02', '2013-11-02 00:00:00+00', NULL, false, 1e300, 0.01, -9223372036854775808, 'b', '', NULL, NULL),
  (7, '2013-11-04', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""
QUERY = "SELECT * FROM sales WHERE day >= {start} AND day < {end}"


@pytest.fixture(scope="module")
def warehouse(postgres: Postgres) -> Iterator[Postgres]:
    """The server with the table, and the connection `warehouse` to it."""
    postgres.run(TABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_WAREHOUSE", postgres.url())
        yield postgres


def source_of(query: str = QUERY, *, key: tuple[str, ...] = ("id",), **fields: Any) -> Source:
    columns = tuple(Column(name=name, type=kind, nullable=True) for name, kind in fields.pop("types", TYPES).items())
    sql = Sql(connection=fields.pop("connection", "warehouse"), query=query, **fields)
    return Source(name="sales", columns=columns, key=key, sql=sql)


def frame_of(source: Source, day: str | None = None, version: str | None = None) -> pl.DataFrame:
    chunks = list(read(ReadJob(name="sql", source=source, partition=day, version=version)))
    return pl.concat([chunk.frame for chunk in chunks])


def refusal_of(source: Source, kind: type[Exception], day: str | None = None) -> str:
    """What is told of a query that fails; neither it nor its trace may hold the password."""
    with pytest.raises(kind) as told:
        frame_of(source, day)
    assert not isinstance(told.value, UnreadableFile)
    trace = "".join(traceback.format_exception(told.value))
    assert PASSWORD not in trace
    assert "s3cret" not in trace
    return str(told.value)


def test_every_type_comes_as_it_was_written(warehouse: Postgres) -> None:
    rows = frame_of(source_of(), "2013-11-03").to_dicts()
    assert rows[0] == {"id": 2, "day": datetime.date(2013, 11, 3)} | dict.fromkeys(list(TYPES)[2:])
    assert rows[1] == {
        "id": BIG,
        "day": datetime.date(2013, 11, 3),
        "at": datetime.datetime(2013, 11, 3, 6, 30, tzinfo=datetime.UTC),
        "local": datetime.datetime(1969, 12, 31, 23, 59, 59, 500_000),
        "good": True,
        "amount": 0.1,
        "price": "12.50",
        "whole": "12",
        "name": "Grüße",
        "raw": b"\x00\xff",
        "code": "12345678-1234-5678-1234-567812345678",
        "more": '{"a": 1}',
    }


def test_a_day_is_the_same_rows_file_as_from_csv(warehouse: Postgres, tmp_path: Path) -> None:
    csv = tmp_path / "sales.csv"
    csv.write_text(
        ",".join(TYPES) + "\n"
        "2,2013-11-03,,,,,,,,,,\n"
        "9007199254740993,2013-11-03,2013-11-03T06:30:00Z,1969-12-31T23:59:59.500000Z,true,0.1,12.50,12,Grüße,AP8=,"
        '12345678-1234-5678-1234-567812345678,"{""a"": 1}"\n'
    )
    from_sql = GroupJob(source=dump(source_of()), partition="2013-11-03", files=(GroupFile(name="sql"),))
    files = Source(name="sales", columns=source_of().columns, key=("id",), path="sales.csv")
    file = GroupFile(name="sales.csv", path=str(csv))
    from_csv = GroupJob(source=dump(files), partition="2013-11-03", files=(file,))
    found = {}
    for name, job in (("sql", from_sql), ("csv", from_csv)):
        (tmp_path / name).mkdir()
        result = read_group(job, tmp_path / name)
        assert (result.rows, result.refused, result.unreadable) == (2, 0, {})
        found[name] = (tmp_path / name / "rows.parquet").read_bytes()
    assert found["sql"] == found["csv"]


def test_decimals_that_do_not_fit_are_refused_for_their_rows_and_none_is_rounded(
    warehouse: Postgres, tmp_path: Path
) -> None:
    query = (
        "SELECT * FROM (VALUES (1, 12.00::numeric), (2, 12.50), (3, 9223372036854775808), (4, 0.1234567890123456789), "
        "(5, 9007199254740993), (6, 'NaN'), (7, 0.1), (8, 123456789012345678900)) AS v (id, value)"
    )
    whole = source_of(query, types={"id": "int64", "value": "int64"})
    job = GroupJob(source=dump(whole), partition=None, files=(GroupFile(name="sql"),))
    (tmp_path / "whole").mkdir()
    assert read_group(job, tmp_path / "whole").reasons == {"value: not a whole number of 64 bits (int64)": 6}
    assert pl.read_parquet(tmp_path / "whole" / "rows.parquet").rows() == [(1, 12), (5, BIG)]
    floats = source_of(query, types={"id": "int64", "value": "float64"})
    (chunk,) = read(ReadJob(name="sql", source=floats))
    told = "value: a decimal of more digits than a float64 holds; declare it string, or round it"
    assert chunk.broken == {3: told, 4: told, 7: told}
    assert chunk.raws([4]) == ['{"id": 5, "value": "9007199254740993"}']
    assert chunk.frame["value"].to_list()[2:3] + chunk.frame["value"].to_list()[5:7] == [
        "9223372036854775808",
        "nan",
        "0.1",
    ]


def test_infinite_moments_are_refused_and_not_wrapped_round(warehouse: Postgres, tmp_path: Path) -> None:
    query = (
        "SELECT * FROM (VALUES (1, 'infinity'::timestamptz, '2013-11-01'::date), (2, '2013-11-01 00:00Z', 'infinity'), "
        "(3, '0001-01-01 00:00Z', '9999-12-31'), (4, '-infinity', '10000-01-01')) AS v (id, at, day)"
    )
    source = source_of(query, types={"id": "int64", "at": "timestamp", "day": "date"})
    frame = frame_of(source)
    assert frame["at"].to_list() == [
        "infinity",
        "2013-11-01T00:00:00.000000",
        "0001-01-01T00:00:00.000000",
        "infinity",
    ]
    assert frame["day"].to_list() == ["2013-11-01", "infinity", "9999-12-31", "infinity"]
    (tmp_path / "out").mkdir()
    job = GroupJob(source=dump(source), partition=None, files=(GroupFile(name="sql"),))
    result = read_group(job, tmp_path / "out")
    assert (result.rows, result.refused) == (1, 3)


def test_a_moments_day_is_a_day_in_utc_whatever_the_servers_zone(warehouse: Postgres) -> None:
    warehouse.run("ALTER ROLE owner SET timezone = 'Asia/Tokyo'")
    try:
        query = "SELECT id, at FROM sales WHERE at >= {start} AND at < {end}"
        types = {"id": "int64", "at": "timestamp"}
        assert frame_of(source_of(query, types=types), "2013-11-02")["id"].to_list() == [1]
        assert frame_of(source_of(query, types=types), "2013-11-03")["id"].to_list() == [BIG]
    finally:
        warehouse.run("ALTER ROLE owner RESET timezone")


def test_bounds_are_bound_and_what_looks_like_one_in_a_text_is_left(warehouse: Postgres) -> None:
    query = "SELECT id, '{a,start}' || 'x' AS name FROM sales WHERE {start} <= day AND day < {end} AND day >= {start}"
    frame = frame_of(source_of(query, types={"id": "int64", "name": "string"}), "2013-11-03")
    assert frame.rows() == [(2, "{a,start}x"), (BIG, "{a,start}x")]


def test_texts_are_ordered_by_their_bytes_whatever_the_databases_collation(warehouse: Postgres) -> None:
    query = "SELECT name COLLATE \"und-x-icu\" AS name FROM (VALUES ('b'), ('B'), ('a'), (NULL), ('ä')) AS v (name)"
    frame = frame_of(source_of(query, key=("name",), types={"name": "string"}))
    assert frame["name"].to_list() == [None, "B", "a", "b", "ä"]


def test_rows_and_their_version_are_of_one_moment_while_others_write(warehouse: Postgres) -> None:
    warehouse.run("CREATE TABLE growing AS SELECT generate_series(1, 30000) AS id")
    source = source_of("SELECT id FROM growing", types={"id": "int64"})
    assert source.sql is not None
    (version,) = versions_of(source.sql, [None])
    chunks = read(ReadJob(name="sql", source=source, version=version))
    first = len(next(chunks).frame)
    warehouse.run("INSERT INTO growing VALUES (30001)")
    assert first + sum(len(chunk.frame) for chunk in chunks) == 30_000
    with pytest.raises(DataError, match=r'version is \["30001"\], it was \["30000"\]\); run the plan step again'):
        frame_of(source, version=version)


def test_the_version_query_sees_what_the_number_of_rows_does_not(warehouse: Postgres) -> None:
    told = "SELECT max(at), count(*) FROM sales WHERE day >= {start} AND day < {end}"
    sql = Sql(connection="warehouse", query=QUERY, version=told)
    assert versions_of(sql, ["2013-11-02"]) == ['["2013-11-02 00:00:00+00:00", "1"]']
    assert versions_of(Sql(connection="warehouse", query=QUERY), ["2013-11-02", "2013-11-03"]) == ['["1"]', '["2"]']


def test_a_result_larger_than_memory_passes_in_pieces(warehouse: Postgres) -> None:
    # 300 MB of answer; the reader may take 64 MB more than it takes for an answer of one row.
    code = (
        "import resource, sys\n"
        "from paddlewheel.data.readers import ReadJob\n"
        "from paddlewheel.data.readers.sql import read\n"
        "from paddlewheel.recipe_data import Column, Source, Sql\n"
        'query = f"SELECT g AS id, repeat(md5(g::text), 32) AS name FROM generate_series(1, {sys.argv[1]}) g"\n'
        "columns = (Column(name='id', type='int64'), Column(name='name', type='string'))\n"
        "sql = Sql(connection='warehouse', query=query)\n"
        "job = ReadJob(name='sql', source=Source(name='s', key=('id',), columns=columns, sql=sql))\n"
        "print(sum(len(c.frame) for c in read(job)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    found = {}
    for count in (1, 300_000):
        done = subprocess.run(
            [sys.executable, "-c", code, str(count)],
            capture_output=True, text=True, timeout=200, check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        rows, kibibytes = done.stdout.split()
        assert int(rows) == count
        found[count] = int(kibibytes) / 1024
    assert found[300_000] - found[1] < 64


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT * FROM nope", 'relation "nope" does not exist (SQLSTATE 42P01). Correct the table\'s name'),
        ("SELECT nope FROM sales", 'column "nope" does not exist (SQLSTATE 42703). Correct the column\'s name'),
        ("SELECT day AS dai, * FROM nope", 'relation "nope" does not exist'),
        ("SELECT FROM WHERE", "(SQLSTATE 42601). Correct the query"),
        ("SELECT 1 / (id - id) AS id FROM sales", "division by zero (SQLSTATE 22012). Correct the query"),
        ("SELECT id, '1 day'::interval AS day FROM sales", "the column 'day' has the type interval, which is not read"),
        ("SELECT id, 12.5::money AS price FROM sales", "write price::text AS price in the query"),
        ("SELECT id, ARRAY[1] AS code FROM sales", "the column 'code' has the type int4[]"),
        ("SELECT nextval('counter') AS id", "cannot execute nextval() in a read-only transaction"),
    ],
)  # fmt: skip
def test_a_query_that_the_server_refuses_says_what_to_change(warehouse: Postgres, query: str, told: str) -> None:
    warehouse.run("CREATE SEQUENCE IF NOT EXISTS counter")
    columns = tuple(Column(name=name, type=kind, required=False, nullable=True) for name, kind in TYPES.items())
    sql = Sql(connection="warehouse", query=query)
    text = refusal_of(Source(name="sales", key=("id",) if " id" in query else (), columns=columns, sql=sql), DataError)
    assert f"127.0.0.1:{warehouse.port}/warehouse as owner: " in text
    assert told in text


def test_a_column_that_the_query_lacks_is_named(warehouse: Postgres) -> None:
    text = refusal_of(source_of("SELECT id AS idd FROM sales", types={"id": "int64"}), DataError)
    assert text.startswith("the query of 'sales': the column 'id' is missing (there is 'idd'). It gives: idd.")


def test_a_table_that_the_user_may_not_read_says_so(warehouse: Postgres) -> None:
    warehouse.run(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD.replace(chr(39), chr(39) * 2)}'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_READER", warehouse.url(user="reader"))
        text = refusal_of(source_of(connection="reader"), DataError, "2013-11-03")
    assert "permission denied for table sales (SQLSTATE 42501). Grant the user of the connection 'reader' the" in text


def test_a_statement_timeout_says_how_to_raise_it(warehouse: Postgres) -> None:
    slow = "SELECT id FROM sales, pg_sleep(5)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_HASTY", f"{warehouse.url()}?options=-c%20statement_timeout%3D100")
        text = refusal_of(source_of(slow, connection="hasty", types={"id": "int64"}), DataError)
    assert (
        "canceling statement due to statement timeout (SQLSTATE 57014). The query took longer than the server" in text
    )
    assert "-c statement_timeout=… in `options` of the connection 'hasty'" in text


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        ({"password": "wrong"}, DataError, 'authentication failed for user "owner". Correct login and password'),
        ({"user": "nobody"}, DataError, "password authentication failed for user \"nobody\""),
        ({"database": "nowhere"}, DataError, 'database "nowhere" does not exist. Correct the connection \'other\''),
    ],
)  # fmt: skip
def test_a_connection_that_is_refused_says_what_to_correct(
    warehouse: Postgres, change: dict[str, str], kind: type[Exception], told: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_OTHER", warehouse.url(**change))
        assert told in refusal_of(source_of(connection="other"), kind, "2013-11-03")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://u:s3cret@127.0.0.1:1/x", "Connection refused"),
        ("postgresql://u:s3cret@no-such-host.invalid/x", 'could not translate host name "no-such-host.invalid"'),
    ],
)
def test_a_server_that_is_not_there_may_be_there_later(url: str, told: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_OTHER", url)
        text = refusal_of(source_of(connection="other"), StorageError, "2013-11-03")
    assert "cannot be reached: " in text
    assert told in text


def test_a_server_that_dies_amid_the_rows_is_an_error_that_may_pass(postgres: Postgres) -> None:
    with run_server(postgres.binaries) as other, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_OTHER", other.url())
        query = "SELECT g AS id, repeat('x', 2000) AS name FROM generate_series(1, 100000) g"
        source = source_of(query, connection="other", types={"id": "int64", "name": "string"})
        chunks = read(ReadJob(name="sql", source=source))
        next(chunks)
        other.kill()
        with pytest.raises(StorageError, match=r"Nothing was kept; run the same command again") as told:
            list(chunks)
        assert PASSWORD not in "".join(traceback.format_exception(told.value))
