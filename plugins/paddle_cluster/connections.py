"""Airflow's connections as JSON, for processes that have no Airflow: jobs, and a package that must not import it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

NAMED = re.compile(r"^s3://([^@/?#]+)@")


def connection_json(connection_id: str) -> str | None:
    """The connection in the form that AIRFLOW_CONN_<ID> takes; None where Airflow has none. Holds secrets."""
    try:
        found = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        return None
    names = ("conn_type", "host", "login", "password", "schema", "port", "extra")
    tree = {name: getattr(found, name) for name in names}
    return json.dumps({name: value for name, value in tree.items() if value})


def extra_of(connection_id: str) -> Mapping[str, Any]:
    """The extra of a connection. Raises LookupError for one that Airflow does not have."""
    found = connection_json(connection_id)
    if found is None:
        raise LookupError(f"Airflow has no connection {connection_id!r}; add it, or correct resources.connection")
    extra = json.loads(found).get("extra") or {}
    tree = json.loads(extra) if isinstance(extra, str) else extra
    return tree if isinstance(tree, dict) else {}


def named_connections(texts: Iterable[str]) -> list[str]:
    """Ids of the connections that URIs among these texts name (`s3://ID@BUCKET/…`), each once, in their order."""
    return list(dict.fromkeys(match[1] for text in texts if (match := NAMED.match(text))))


def environment_of(connection_ids: Iterable[str]) -> dict[str, str]:
    """Variables that hand connections to a process. Hold secrets: never into a file, a log or a rendered field.

    Raises LookupError that names the connection which Airflow does not have.
    """
    variables = {}
    for one in connection_ids:
        found = connection_json(one)
        if found is None:
            raise LookupError(f"Airflow has no connection {one!r}; add it (airflow connections add {one} …)")
        variables[f"AIRFLOW_CONN_{one.upper()}"] = found
    return variables
