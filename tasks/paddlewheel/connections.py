"""Connections by id, as Airflow names them, without Airflow: from AIRFLOW_CONN_<ID>, or from who else is asked first.

Inside a task the DAG hands in Airflow's own lookup (`use_lookup`), which also knows the metadata database and secrets
backends; a process of its own (a reader, an agent) gets what it needs by `environment_of`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from paddlewheel.errors import RecipeError

Lookup = Callable[[str], "Connection | None"]
_lookups: list[Lookup] = []


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What Airflow keeps of a connection. Its secrets show in no text of it."""

    kind: str
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        """The JSON form that AIRFLOW_CONN_<ID> takes. Holds secrets."""
        tree = {
            "conn_type": self.kind, "host": self.host, "port": self.port, "login": self.login,
            "password": self.password, "schema": self.schema, "extra": dict(self.extra),
        }  # fmt: skip
        return json.dumps({name: value for name, value in tree.items() if value})


def use_lookup(lookup: Lookup) -> None:
    """Ask `lookup` before the environment, from now on in this process. Called again with the same: nothing."""
    if lookup not in _lookups:
        _lookups.insert(0, lookup)


def find_connection(connection_id: str) -> Connection:
    """The connection of this id. Raises RecipeError where nobody knows it, or it cannot be parsed."""
    for lookup in _lookups:
        if (found := lookup(connection_id)) is not None:
            return found
    raw = os.environ.get(variable_of(connection_id))
    if raw is None:
        raise RecipeError(
            f"there is no connection {connection_id!r}; add it in Airflow, or set {variable_of(connection_id)} to its "
            "URI or JSON"
        )
    try:
        return parse_connection(raw)
    except (ValueError, TypeError, AttributeError) as error:
        # Not the value itself: it may hold a password.
        raise RecipeError(
            f"{variable_of(connection_id)} is neither a connection's URI nor its JSON; in a URI, a secret's / is "
            "written %2F, its + %2B and its @ %40"
        ) from error


def variable_of(connection_id: str) -> str:
    """The environment variable in which Airflow looks for a connection."""
    return f"AIRFLOW_CONN_{connection_id.upper()}"


def environment_of(connection_ids: list[str]) -> dict[str, str]:
    """Variables that hand these connections to a child process. Hold secrets: never into a file or a log."""
    return {variable_of(one): find_connection(one).to_json() for one in connection_ids}


def named_connections(roots: Iterable[str]) -> list[str]:
    """Ids of the connections that roots and URIs name (`s3://ID@BUCKET/…`), each once, in their order."""
    places = [urlsplit(root).netloc for root in roots if root.startswith("s3://")]
    return list(dict.fromkeys(place.rpartition("@")[0] for place in places if "@" in place))


def parse_connection(raw: str) -> Connection:
    """A connection from Airflow's JSON or URI form. Raises ValueError."""
    if raw.lstrip().startswith("{"):
        tree = json.loads(raw)
        extra = tree.get("extra") or {}
        return Connection(
            kind=tree.get("conn_type") or "",
            host=tree.get("host") or "",
            port=int(tree["port"]) if tree.get("port") else None,
            login=tree.get("login") or "",
            password=tree.get("password") or "",
            schema=tree.get("schema") or "",
            extra=json.loads(extra) if isinstance(extra, str) else extra,
        )
    parts = urlsplit(raw)
    if not parts.scheme:
        raise ValueError("no scheme")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    return Connection(
        kind=parts.scheme.replace("-", "_"),
        host=unquote(parts.hostname or ""),
        port=parts.port,
        login=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        schema=unquote(parts.path.removeprefix("/")),
        extra=extra,
    )


def url_of(connection: Connection) -> str:
    """The connection as a URL (`postgresql://user:password@host:port/schema`). Holds its password."""
    scheme = {"postgres": "postgresql"}.get(connection.kind, connection.kind)
    who = quote(connection.login, safe="") + (f":{quote(connection.password, safe='')}" if connection.password else "")
    host = f"[{connection.host}]" if ":" in connection.host else connection.host  # IPv6
    port = f":{connection.port}" if connection.port else ""
    return f"{scheme}://{who}{'@' if who else ''}{host}{port}/{quote(connection.schema, safe='/')}"
