"""A query's rows from a SQLite file by ADBC, in Arrow batches, within one read transaction.

SQLite's values have types of their own, and ADBC takes a column's type from its first batch; so every value comes as
a text with a letter before it that says what it is, and the declared type decides, as in a CSV file.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from paddlewheel.connections import Connection
from paddlewheel.data.readers.sql_query import Bound, bare, bind, quote_name
from paddlewheel.errors import DataError, PaddlewheelError, RecipeError, StorageError
from paddlewheel.recipe_data import Column, Source

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS: Final = 8192
BATCH_ROWS_OF_BYTES: Final = 16  # where a column is binary: a picture in each row


class SqliteSession:
    """A transaction that only reads, and reads of one moment."""

    def __init__(self, connection: Connection, name: str) -> None:
        """Opens the file. `name`: of the connection, for messages. Raises RecipeError or StorageError."""
        import adbc_driver_sqlite.dbapi

        found = connection.schema if connection.schema.startswith("/") else connection.host or connection.schema
        if not found.startswith("/"):
            raise RecipeError(
                f"the connection {name} names the SQLite file {found!r}; give its whole path, as sqlite:////data/x.db"
            )
        self._path = Path(found)
        if not self._path.is_file():
            raise DataError(f"there is no SQLite file {found}; deliver it, or correct the connection {name}")
        try:
            self._session = adbc_driver_sqlite.dbapi.connect(f"file:{quote(found)}?mode=ro", autocommit=False)
        except Exception as error:
            raise StorageError(f"SQLite cannot open {found}: {_plain(error)}") from error
        self._cursor = self._session.cursor()

    def close(self) -> None:
        """End the transaction and close the file."""
        self._cursor.close()
        self._session.close()

    def first_rows(self, query: str, bounds: Mapping[str, datetime.date]) -> list[tuple[Any, ...]]:
        """The first rows of a query, two at the most."""
        self._run(_bind(query), bounds)
        rows: list[tuple[Any, ...]] = self._cursor.fetchmany(2)
        return rows

    def columns(self, query: str) -> list[str]:
        """The names of a query's columns."""
        bound = _bind(f"SELECT * FROM (\n{bare(query)}\n) AS source LIMIT 0")
        self._run(bound, dict.fromkeys(bound.names, datetime.date.min))
        names: list[str] = self._cursor.fetch_arrow_table().schema.names
        return names

    def batches(
        self, query: str, bounds: Mapping[str, datetime.date], source: Source, order: Sequence[str]
    ) -> Iterator[tuple[pl.DataFrame, dict[int, str]]]:
        """Rows in pieces of BATCH_ROWS, in the query's own order or by the columns `order`; refusals."""
        import polars as pl

        names = self.columns(query)
        columns = [column for column in source.columns if column.name in names]
        picked = ", ".join(expression for column in columns for expression in _expressions(column))
        with_bytes = any(column.type == "binary" for column in columns)
        rows = BATCH_ROWS_OF_BYTES if with_bytes else BATCH_ROWS
        self._cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        by = ", ".join(f"source.{quote_name(name)} COLLATE BINARY NULLS FIRST" for name in order)
        self._run(_bind(f"SELECT {picked} FROM (\n{bare(query)}\n) AS source{by and f' ORDER BY {by}'}"), bounds)
        try:
            for batch in self._cursor.fetch_record_batch():
                batch.validate(full=True)  # SQLite keeps texts that are not UTF-8
                if batch.num_rows:
                    broken: dict[int, str] = {}
                    yield pl.DataFrame([_series(column, batch, broken) for column in columns]), broken
        except Exception as error:
            raise self._refused(error) from error

    def _run(self, query: Bound, bounds: Mapping[str, datetime.date]) -> None:
        try:
            self._cursor.execute(query.text, [bounds[name].isoformat() for name in query.names] or None)
        except Exception as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> PaddlewheelError:
        told = f"SQLite file {self._path}: {_plain(error)}"
        if "locked" in told or "busy" in told:
            return StorageError(f"{told}. Somebody writes it; run the same command again when they are done")
        if "malformed" in told or "not a database" in told:
            return DataError(f"{told}. Deliver the file again")
        if "utf8" in told.lower() or "utf-8" in told.lower():
            return DataError(f"{told}. Write such a column CAST(… AS BLOB) in the query and declare it binary")
        return DataError(f"{told}. Correct the query")


def _bind(query: str) -> Bound:
    return bind(query, lambda number: f"?{number}")


def _expressions(column: Column) -> list[str]:
    name, alias = f"source.{quote_name(column.name)}", quote_name(column.name)
    if column.type == "binary":
        return [
            f"typeof({name}) AS {quote_name(column.name + ' type')}",
            f"CASE WHEN {name} IS NULL THEN x'' ELSE CAST({name} AS BLOB) END AS {alias}",
        ]
    told = f"CASE typeof({name}) WHEN 'null' THEN 'n' WHEN 'real' THEN 'r' || quote({name})"
    return [f"{told} WHEN 'blob' THEN 'b' || hex({name}) ELSE 't' || {name} END AS {alias}"]


def _series(column: Column, batch: Any, broken: dict[int, str]) -> pl.Series:
    """A column as texts (or bytes), null where SQLite has a null. Rows that hold bytes for a text go to `broken`."""
    import polars as pl

    values = pl.Series(column.name, batch.column(column.name))
    if column.type == "binary":
        kinds = pl.Series(batch.column(column.name + " type"))
        return values.set(kinds == "null", None)
    kinds, texts = values.str.head(1), values.str.slice(1)
    for row in (kinds == "b").arg_true():
        broken[row] = f"{column.name}: bytes (a BLOB) where the recipe declares {column.type}"
    if (floats := kinds == "r").any():
        texts = pl.select(
            pl.when(floats).then(_plain_floats(texts.set(~floats, None), column)).otherwise(texts)
        ).to_series()
    return texts.set(kinds.is_in(["n", "b"]), None).alias(column.name)


def _plain_floats(texts: pl.Series, column: Column) -> pl.Series:
    """Floats as Python writes them; a whole one as a whole number where that is declared."""
    import polars as pl

    distinct = texts.drop_nulls().unique().to_list()
    plain = {text: _plain_float(float(text), whole=column.type in ("int64", "bool")) for text in distinct}
    return texts.replace_strict(plain, default=None, return_dtype=pl.String)


def _plain_float(value: float, *, whole: bool) -> str:
    return str(int(value)) if whole and value.is_integer() else repr(value)


def _plain(error: Exception) -> str:
    text = str(error).split("\nquery:")[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("[SQLite] ")
    return " ".join(text.split()).rstrip(".")
