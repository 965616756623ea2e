"""Connections without Airflow: both of its forms, its own reading as the measure, no secret in any text."""

from __future__ import annotations

import json

import pytest

from paddlewheel import connections
from paddlewheel.connections import Connection, environment_of, find_connection, parse_connection, url_of, use_lookup
from paddlewheel.errors import RecipeError

SECRET = "it's/@ %s"
URIS = [
    "postgres://reader:it%27s%2F%40%20%25s@db.example:6432/ware%20house?sslmode=require",
    "aws://key:sec%2Fret@/?__extra__=%7B%22endpoint_url%22%3A+%22http%3A%2F%2Fs3%3A9000%22%2C+%22n%22%3A+1%7D",
    "postgresql://db.example/x",
    "sqlite://%2Fdata%2Fx.db",
]


@pytest.mark.parametrize("uri", URIS)
def test_a_uri_is_read_as_airflow_reads_it(uri: str) -> None:
    from airflow.sdk import Connection as AirflowConnection

    theirs, ours = AirflowConnection.from_uri(uri, conn_id="x"), parse_connection(uri)
    kind = {"postgresql": "postgres"}.get(ours.kind, ours.kind)
    assert (kind, ours.host, ours.login, ours.password) == (
        theirs.conn_type, theirs.host or "", theirs.login or "", theirs.password or "",
    )  # fmt: skip
    assert (ours.port, ours.schema, dict(ours.extra)) == (theirs.port, theirs.schema or "", theirs.extra_dejson)


def test_json_goes_round_and_shows_no_secret() -> None:
    connection = parse_connection(
        json.dumps({"conn_type": "postgres", "host": "db", "port": "5432", "password": SECRET, "extra": '{"a": 1}'})
    )
    assert parse_connection(connection.to_json()) == connection
    assert (connection.port, connection.password, connection.extra) == (5432, SECRET, {"a": 1})
    assert SECRET not in repr(connection)
    assert "password" not in str(connection)


def test_a_url_quotes_what_would_break_it() -> None:
    connection = Connection(kind="postgres", host="fd00::1", port=5432, login="a b", password=SECRET, schema="x")
    assert url_of(connection) == "postgresql://a%20b:it%27s%2F%40%20%25s@[fd00::1]:5432/x"


def test_a_lookup_is_asked_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_lookups", [])
    monkeypatch.setenv("AIRFLOW_CONN_ONE", "postgres://environment/x")
    monkeypatch.setenv("AIRFLOW_CONN_TWO", "postgres://environment/x")

    def lookup(connection_id: str) -> Connection | None:
        return Connection(kind="postgres", host="lookup") if connection_id == "one" else None

    use_lookup(lookup)
    use_lookup(lookup)
    assert [find_connection(one).host for one in ("one", "two")] == ["lookup", "environment"]
    assert parse_connection(environment_of(["one"])["AIRFLOW_CONN_ONE"]).host == "lookup"
    assert len(connections._lookups) == 1


def test_a_connection_that_cannot_be_found_or_read_is_told_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="there is no connection 'nobody'; add it in Airflow, or set AIRFLOW_CONN_NO"):
        find_connection("nobody")
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", '{"password": "s3cret"')
    with pytest.raises(RecipeError, match="AIRFLOW_CONN_BROKEN is neither") as told:
        find_connection("broken")
    assert "s3cret" not in str(told.value)
