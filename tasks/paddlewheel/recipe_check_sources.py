"""What a source of a recipe may say of where its rows come from: a path or a query, and the params of its format."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping

from paddlewheel.connections import parse_connection
from paddlewheel.data.readers import READERS, images, text
from paddlewheel.data.readers.sql_query import BOUNDS, bind, bounds_of, faults_of_query, is_ordered
from paddlewheel.recipe_data import ColumnType, Source, Sql
from paddlewheel.recipe_tree import Fault, unknown_name

DATABASES = ("postgres", "postgresql", "sqlite")
OFFERED: Mapping[str, Mapping[str, ColumnType]] = {"text": text.COLUMNS, "images": images.COLUMNS}


def check_origin(path: str, source: Source, *, by_day: bool) -> Iterator[Fault]:
    """Faults of one source. `by_day`: it is the one that the days of the night come from."""
    if source.sql is None:
        yield from _check_path(path, source, by_day=by_day)
        yield from _check_params(path, source)
        yield from _check_offered(path, source)
        return
    if source.path:
        yield Fault(path=f"{path}.path", value=source.path, allowed="a source is files or a query: give path or sql")
    if source.format not in ("csv", "sql"):  # csv: the default, when nothing was said
        yield Fault(path=f"{path}.format", value=source.format, allowed="is for files; a query has none: leave it out")
    if source.params:
        yield Fault(path=f"{path}.params", value=dict(source.params), allowed="is for files; a query takes none")
    yield from _check_sql(f"{path}.sql", source.sql, by_day=by_day)
    if not source.key and not is_ordered(source.sql.query):
        allowed = "must be in one order whenever it is asked: end it with ORDER BY, or give the source a key to sort by"
        yield Fault(path=f"{path}.sql.query", value=source.sql.query, allowed=allowed)


def _check_path(path: str, source: Source, *, by_day: bool) -> Iterator[Fault]:
    if not source.path:
        yield Fault(path=f"{path}.path", value="", allowed="name the files, or give the source a query by sql")
    elif by_day and "{partition}" not in source.path:
        yield Fault(path=f"{path}.path", value=source.path, allowed="must contain {partition}")
    parts = source.path.split("/") if source.path else []
    if any(part in ("", ".", "..") for part in parts):
        allowed = "must be relative to the landing folder, names with / between them, as trips/{partition}/*.csv"
        yield Fault(path=f"{path}.path", value=source.path, allowed=allowed)
    if any("**" in part and part != "**" for part in parts):
        yield Fault(path=f"{path}.path", value=source.path, allowed="has ** within a name; ** is a name of its own")
    if not _is_text_encoding(source.encoding):
        allowed = "must be an encoding that Python knows, as utf-8 or latin-1"
        yield Fault(path=f"{path}.encoding", value=source.encoding, allowed=allowed)
    if source.delimiter is not None and (not source.delimiter.isascii() or source.delimiter in '"\r\n'):
        allowed = "must be a character of ASCII, no quote and no line end"
        yield Fault(path=f"{path}.delimiter", value=source.delimiter, allowed=allowed)
    if source.format == "sql":
        yield Fault(path=f"{path}.format", value="sql", allowed="a query is given by sql: {connection, query}")


def _is_text_encoding(name: str) -> bool:
    """Whether files can be read piece by piece as text of this encoding; base64 is an encoding to Python too."""
    try:
        decoder = codecs.lookup(name).incrementaldecoder
        return decoder is not None and isinstance(decoder().decode(b"", True), str)
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def _check_params(path: str, source: Source) -> Iterator[Fault]:
    faults = {"text": text.faults_of_params, "images": images.faults_of_params}.get(source.format)
    if faults is not None:
        for name, value, allowed in faults(source.params):
            yield Fault(path=f"{path}.params.{name}", value=value, allowed=allowed)
    elif source.format in READERS and source.params:
        allowed = "is for text, images and readers of your own"
        yield Fault(path=f"{path}.params", value=dict(source.params), allowed=allowed)


def _check_offered(path: str, source: Source) -> Iterator[Fault]:
    offered = OFFERED.get(source.format)
    if offered is None:
        return
    for index, column in enumerate(source.columns):
        if column.name == "label" and "table" in source.params:
            continue
        if column.name not in offered:
            yield unknown_name(f"{path}.columns.{index}.name", column.name, offered, f"what {source.format} offers")
        elif column.type != offered[column.name]:
            yield Fault(path=f"{path}.columns.{index}.type", value=column.type, allowed=f"is {offered[column.name]}")


def _check_sql(path: str, sql: Sql, *, by_day: bool) -> Iterator[Fault]:
    yield from _check_connection(f"{path}.connection", sql.connection)
    for field, query in (("query", sql.query), ("version", sql.version)):
        for allowed in faults_of_query(query) if query is not None else ():
            yield Fault(path=f"{path}.{field}", value=query, allowed=allowed)
    found = bounds_of(sql)
    if (by_day or found) and len(found) < len(BOUNDS):
        missing = " and ".join(f"{{{name}}}" for name in BOUNDS if name not in found)
        allowed = f"must contain {missing}, as day >= {{start}} AND day < {{end}} (the day after)"
        yield Fault(path=f"{path}.query", value=sql.query, allowed=allowed)
    if sql.version is not None and not found and bind(sql.version, str).names:
        yield Fault(path=f"{path}.version", value=sql.version, allowed="takes no bounds: the query has none")


def _check_connection(path: str, connection: str) -> Iterator[Fault]:
    """An id of Airflow's, or a URL. The recipe is kept in manifests for all to read, so no password in it."""
    if "://" not in connection:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", connection):
            allowed = "must be the id of a connection (letters, digits, _ . -) or a URL as sqlite:////data/x.db"
            yield Fault(path=path, value=connection, allowed=allowed)
        return
    hidden = re.sub(r"//.*@|\?.*", "…", connection)
    try:
        parsed = parse_connection(connection)
    except ValueError as error:
        yield Fault(path=path, value=hidden, allowed=f"must be a URL ({error})")
        return
    if parsed.password or "password" in parsed.extra:
        allowed = "must not hold a password, since recipes are kept: make it a connection of Airflow's and give its id"
        yield Fault(path=path, value=hidden, allowed=allowed)
    elif parsed.kind not in DATABASES:
        yield Fault(path=path, value=hidden, allowed="must be postgresql://… or sqlite:///…")
    elif parsed.kind == "sqlite" and not (parsed.schema or parsed.host).startswith("/"):
        yield Fault(path=path, value=connection, allowed="must have the whole path: sqlite:////data/x.db")
