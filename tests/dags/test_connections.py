"""Airflow's own connections inside a task, as `paddlewheel` has them."""

from __future__ import annotations

import pytest

from chain_wiring import find_in_airflow
from paddlewheel import connections
from paddlewheel.connections import find_connection, url_of, use_lookup
from paddlewheel.errors import RecipeError


def test_a_connection_of_airflows_is_found_and_one_that_it_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_lookups", [])
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgres://reader:s3%2Fcret@db:6432/sales?sslmode=require")
    use_lookup(find_in_airflow)
    found = find_connection("warehouse")
    assert url_of(found) == "postgresql://reader:s3%2Fcret@db:6432/sales"
    assert (found.kind, dict(found.extra)) == ("postgres", {"sslmode": "require"})
    assert "cret" not in repr(found)
    with pytest.raises(RecipeError, match="there is no connection 'nobody'; add it in Airflow"):
        find_connection("nobody")
