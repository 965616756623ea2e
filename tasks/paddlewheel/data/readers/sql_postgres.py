"""A query's rows from PostgreSQL by ADBC: one read-only snapshot, a cursor, Arrow batches of bounded size.

Rejected: ADBC's own execute, which streams by COPY without parameters or holds the whole result with them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from paddlewheel.connections import Connection, url_of
from paddlewheel.data.readers.sql_arrow import typed_rows
from paddlewheel.data.readers.sql_query import Bound, bind, ordered, quote_name
from paddlewheel.errors import DataError, PaddlewheelError, StorageError
from paddlewheel.recipe_data import Source

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

BATCH_BYTES: Final = 8 << 20
FIRST_ROWS, MOST_ROWS = 64, 65536
# Of a connection's extra, what libpq knows.
OPTIONS: Final = frozenset(
    {
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslpassword",
        "sslcrl",
        "channel_binding",
        "gssencmode",
        "krbsrvname",
        "passfile",
        "options",
        "connect_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "hostaddr",
        "target_session_attrs",
    }
)
READ_TYPES: Final = frozenset(
    {
        "bool",
        "int2",
        "int4",
        "int8",
        "float4",
        "float8",
        "numeric",
        "text",
        "varchar",
        "bpchar",
        "name",
        "date",
        "timestamp",
        "timestamptz",
        "bytea",
        "uuid",
        "json",
        "jsonb",
    }
)
# Classes of SQLSTATE that may pass: connection, rollback (a replica's conflict), resources, shutdown, system.
PASSING: Final = ("08", "40", "53", "57P", "58")


class PostgresSession:
    """A transaction that only reads, and reads of one moment, whatever is written meanwhile."""

    def __init__(self, connection: Connection, name: str) -> None:
        """Connects. `name`: of the connection, for messages. Raises StorageError or DataError with the way out."""
        import adbc_driver_postgresql.dbapi

        self._connection, self._name = connection, name
        where = f"{connection.host or 'localhost'}:{connection.port or 5432}/{connection.schema}"
        self._where = f"PostgreSQL at {where} as {connection.login or 'the default user'}"
        try:
            self._session = adbc_driver_postgresql.dbapi.connect(_address(connection), autocommit=False)
        except Exception as error:
            raise self._refused_connection(error) from None  # whatever else it says may hold the address
        self._cursor = self._session.cursor()
        for setting in (
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
            "SET LOCAL TIME ZONE 'UTC'",  # a date against a timestamptz is midnight in UTC
            "SET LOCAL cursor_tuple_fraction = 1",
        ):
            self._run(self._cursor, setting)
        self._fetch = self._session.cursor()
        self._fetch.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})

    def close(self) -> None:
        """End the transaction and the connection."""
        self._cursor.close()
        self._fetch.close()
        self._session.close()

    def first_rows(self, query: str, bounds: Mapping[str, datetime.date]) -> list[tuple[Any, ...]]:
        """The first rows of a query, two at the most."""
        for _ in self._open(_bind(query), bounds):
            self._run(self._fetch, "FETCH 2 FROM paddlewheel_rows")
            rows: list[tuple[Any, ...]] = self._fetch.fetchall()
        return rows

    def columns(self, query: str) -> list[str]:
        """The names of a query's columns, which is prepared and not run."""
        try:
            names: list[str] = self._cursor.adbc_execute_schema(_bind(query).text).names
        except Exception as error:
            raise self._refused(error) from None
        return names

    def batches(
        self, query: str, bounds: Mapping[str, datetime.date], source: Source, order: Sequence[str]
    ) -> Iterator[tuple[pl.DataFrame, dict[int, str]]]:
        """Rows in pieces of about BATCH_BYTES, in the query's own order or by the columns `order`; refusals."""
        if order:
            types = {column.name: column.type for column in source.columns}
            query = ordered(query, [_order(name, types[name]) for name in order])
        names = [column.name for column in source.columns]
        for _ in self._open(_bind(query), bounds):
            rows, known = FIRST_ROWS, False
            while True:
                self._run(self._fetch, f"FETCH {rows} FROM paddlewheel_rows")
                table = self._fetch.fetch_arrow_table()
                if not known:
                    self._check_types(table.schema, names)
                    known = True
                if not table.num_rows:
                    break
                yield typed_rows(table, source)
                wanted = BATCH_BYTES * table.num_rows // max(1, table.nbytes)
                rows = max(1, min(wanted, rows * 8, MOST_ROWS))

    def _open(self, query: Bound, bounds: Mapping[str, datetime.date]) -> Iterator[None]:
        """Once round with the cursor open."""
        self._run(
            self._cursor,
            f"DECLARE paddlewheel_rows NO SCROLL CURSOR FOR {query.text}",
            [bounds[name] for name in query.names],
        )
        yield
        self._run(self._cursor, "CLOSE paddlewheel_rows")

    def _run(self, cursor: Any, text: str, values: Sequence[Any] = ()) -> None:
        try:
            cursor.execute(text, list(values) or None)
        except Exception as error:
            raise self._refused(error) from None

    def _check_types(self, schema: pa.Schema, names: Sequence[str]) -> None:
        for field in schema:
            kind = ((field.metadata or {}).get(b"POSTGRESQL:type") or b"").decode()
            if field.name in names and kind not in READ_TYPES:
                shown = "a type of the database's own" if kind.startswith("unnamed") else f"the type {kind.lstrip('_')}"
                shown += "[]" if kind.startswith("_") else ""
                raise DataError(
                    f"{self._where}: the column {field.name!r} has {shown}, which is not read as it stands; "
                    f"write {field.name}::text AS {field.name} in the query, or leave it out of the columns"
                )

    def _refused_connection(self, error: Exception) -> PaddlewheelError:
        text = _plain(error)
        told = f"{self._where} refused the connection: {text}"
        if re.search("password authentication|no password supplied|authentication failed|SCRAM", text):
            return DataError(f"{told}. Correct login and password of the connection {self._name}")
        if "does not exist" in text:
            return DataError(f"{told}. Correct the connection {self._name}")
        if "no pg_hba.conf entry" in text:
            return DataError(f"{told}. The server must let this host in, or take the connection's sslmode")
        told = told.replace("refused the connection", "cannot be reached")
        if "translate host name" in text:
            return StorageError(f"{told}. Correct the host of the connection {self._name}, or the name service")
        return StorageError(f"{told}. Nothing was read; see that the server runs, then run the same command again")

    def _refused(self, error: Exception) -> PaddlewheelError:
        state = getattr(error, "sqlstate", None) or ""
        told = f"{self._where}: {_plain(error)}" + (f" (SQLSTATE {state})" if state else "")
        way_out = {
            "57014": "The query took longer than the server allows: give its bounds an index, or raise the time by "
            f"-c statement_timeout=… in `options` of the connection {self._name}",
            "42P01": "Correct the table's name in the query, with its schema",
            "42703": "Correct the column's name in the query",
            "42501": f"Grant the user of the connection {self._name} the right to read it",
            "25006": "A query of a source only reads",
        }.get(state)
        if way_out is None and (state.startswith(PASSING) or "server closed the connection" in told):
            return StorageError(f"{told}. Nothing was kept; run the same command again")
        return DataError(f"{told}. {way_out or 'Correct the query'}")


def _bind(query: str) -> Bound:
    return bind(query, lambda number: f"CAST(${number} AS DATE)")


def _order(name: str, kind: str) -> str:
    """Texts by their bytes, whatever order the database has; all types that have none as texts."""
    column = f"source.{quote_name(name)}"
    return (f'CAST({column} AS text) COLLATE "C"' if kind == "string" else column) + " NULLS FIRST"


def _address(connection: Connection) -> str:
    options = {name: str(value) for name, value in connection.extra.items() if name in OPTIONS}
    options = {"connect_timeout": "10", **options, "client_encoding": "UTF8", "application_name": "paddlewheel"}
    return f"{url_of(connection)}?{urlencode(options, quote_via=quote)}"


def _plain(error: Exception) -> str:
    """What the server said, in one line, without ADBC's and libpq's words around it."""
    text = str(error).split("Query was:")[0].split(". SQLSTATE:")[0]
    text = re.sub(r"^[A-Z_]+: |\[libpq\] ", "", text)
    text = re.sub(r".*?(ERROR|FATAL): +", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"\nLINE \d+:.*", "", text, flags=re.DOTALL)
    return " ".join(text.split()).rstrip(".")
