"""Rows of a query, over an Airflow connection or a URL: PostgreSQL and SQLite by ADBC.

A database that refuses or cannot be reached is an error of the step, never an unreadable file: quarantine is for what
was delivered broken.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from paddlewheel.connections import Connection, find_connection, parse_connection
from paddlewheel.data.readers import Chunk, ReadJob
from paddlewheel.data.readers.columns import column_faults
from paddlewheel.data.readers.sql_postgres import PostgresSession
from paddlewheel.data.readers.sql_query import counted, is_by_day, is_ordered
from paddlewheel.data.readers.sql_sqlite import SqliteSession
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.recipe_data import Source, Sql

if TYPE_CHECKING:
    import polars as pl

NO_ROWS: Final = '["0"]'  # the version of a query without rows, where their number is the version
Bounds = Mapping[str, datetime.date]
SESSIONS: Final[Mapping[str, Callable[[Connection, str], Session]]] = {
    "postgres": PostgresSession,
    "postgresql": PostgresSession,
    "sqlite": SqliteSession,
}
log = logging.getLogger(__name__)


class Session(Protocol):
    """A transaction that only reads, and reads of one moment."""

    def first_rows(self, query: str, bounds: Bounds) -> list[tuple[Any, ...]]:
        """The first rows of a query, two at the most."""

    def columns(self, query: str) -> list[str]:
        """The names of a query's columns."""

    def batches(
        self, query: str, bounds: Bounds, source: Source, order: Sequence[str]
    ) -> Iterator[tuple[pl.DataFrame, dict[int, str]]]:
        """Rows of the source's columns, in the query's own order or by the columns `order`; rows refused already."""

    def close(self) -> None:
        """End the transaction and the connection."""


def versions_of(sql: Sql, partitions: Sequence[str | None]) -> list[str]:
    """What a query's rows of each of these days (None: of all) are known by: the version query's row, or their number.

    All are of one moment. Raises RecipeError for a connection that is not there, StorageError for a database that
    cannot be reached, DataError for one that refuses.
    """
    with open_session(sql) as session:
        return [_version(session, sql, day_bounds(partition)) for partition in partitions]


def day_bounds(partition: str | None) -> Bounds:
    """The bounds of a day: itself, and the day after it."""
    if partition is None:
        return {}
    day = datetime.date.fromisoformat(partition)
    return {"start": day, "end": day + datetime.timedelta(days=1)}


def read(job: ReadJob) -> Iterator[Chunk]:
    """The query's rows of the job's day, in an order that does not depend on the database.

    Raises what `versions_of` does, and DataError where the rows are of another version than `job.version`, or the
    query lacks a required column.
    """
    source, sql = job.source, job.source.sql
    if sql is None:
        raise RecipeError(f"the source {source.name!r} has no query: give it sql")
    bounds = day_bounds(job.partition if is_by_day(sql) else None)
    with open_session(sql) as session:
        if job.version is not None and (found := _version(session, sql, bounds)) != job.version:
            raise DataError(
                f"{job.name}: the rows changed since the run was planned (their version is {found}, it was "
                f"{job.version}); run the plan step again"
            )
        names = session.columns(sql.query)
        _check_columns(source, names)
        declared = [column.name for column in source.columns if column.name in names]
        order = [*source.key, *(name for name in declared if name not in source.key)]
        extra = tuple(name for name in names if name not in declared)
        row = 1
        for frame, broken in session.batches(sql.query, bounds, source, () if is_ordered(sql.query) else order):
            yield _chunk(frame, broken, row, extra)
            row += len(frame)


@contextlib.contextmanager
def open_session(sql: Sql) -> Iterator[Session]:
    """A transaction on the source's database. Raises RecipeError for a connection of another kind."""
    connection, name = connection_of(sql)
    kind = SESSIONS.get(connection.kind)
    if kind is None:
        raise RecipeError(
            f"the connection {name} is of the kind {connection.kind!r}; a source's query goes to postgres or sqlite"
        )
    session = kind(connection, name)
    try:
        yield session
    finally:
        session.close()


def connection_of(sql: Sql) -> tuple[Connection, str]:
    """The connection, and its name in messages. Raises RecipeError where nobody knows it."""
    if "://" not in sql.connection:
        return find_connection(sql.connection), repr(sql.connection)
    try:
        return parse_connection(sql.connection), "in the recipe"
    except ValueError as error:
        raise RecipeError(f"sql.connection: {sql.connection!r} is not a URL: {error}") from error


def _version(session: Session, sql: Sql, bounds: Bounds) -> str:
    rows = session.first_rows(sql.version or counted(sql.query), bounds)
    if len(rows) != 1:
        number = "more than one row" if rows else "no row"
        raise DataError(
            f"the version query gives {number}; let it give one, as SELECT max(changed_at), count(*) FROM …"
        )
    return json.dumps([None if value is None else str(value) for value in rows[0]], ensure_ascii=False)


def _check_columns(source: Source, names: Sequence[str]) -> None:
    if faults := column_faults(source, names):
        raise DataError(
            f"the query of {source.name!r}: {'; '.join(faults)}. It gives: {', '.join(names)}. Name its columns as the "
            "recipe does (x AS y), or change the recipe's"
        )


def _chunk(frame: pl.DataFrame, broken: Mapping[int, str], row: int, extra: tuple[str, ...]) -> Chunk:
    import polars as pl

    def raws(rows: Sequence[int]) -> list[str]:
        return [json.dumps(one, default=_plain, ensure_ascii=False) for one in frame[list(rows)].iter_rows(named=True)]

    places = pl.int_range(row, row + len(frame), dtype=pl.Int64, eager=True)
    return Chunk(frame=frame, places=places, raws=raws, broken=broken, extra_columns=extra, unit="row", nulls_set=True)


def _plain(value: Any) -> str:
    return "\\x" + value.hex() if isinstance(value, bytes) else str(value)
