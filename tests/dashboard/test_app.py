"""The dashboard: no route without a token, no key that leads out of the store, no markup from a run's values."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from paddlewheel.manifest import Manifest, publish_manifest
from paddlewheel.storage.local import LocalStore
from paddlewheel_dashboard.app import build_app

KEY = "0123456789abcdef0123"
PATHS = {"/": "/", "/runs/{key}/card": f"/runs/{KEY}/card", "/models/{name}": "/models/flights_delay"}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setenv("PADDLEWHEEL_ROOT", str(tmp_path))
    store = LocalStore(tmp_path)
    run = Manifest(kind="run", name="<b>evil</b>", key=f"runs/{KEY}", facts={"partition": "2013-11-01"})
    publish_manifest(store, run)
    store.publish(f"runs/{KEY}/cards/aa11bb22/card.html", b"<html>the card</html>")
    publish_manifest(store, Manifest(kind="card", name="x", key=f"runs/{KEY}/cards/aa11bb22"))
    return build_app()


@pytest.fixture
def open_client(app: FastAPI) -> TestClient:
    """A client past the login: the dependency is Airflow's own and is tested by the routes that refuse."""
    for route in app.routes:
        assert isinstance(route, APIRoute)
        for dependency in route.dependant.dependencies:
            app.dependency_overrides[dependency.call] = lambda: None
    return TestClient(app)


def test_every_route_refuses_when_there_is_no_token(app: FastAPI) -> None:
    paths = [route.path for route in app.routes]
    assert sorted(paths) == sorted(PATHS)
    client = TestClient(app, raise_server_exceptions=False)
    for path in paths:
        assert client.get(PATHS[path]).status_code in (401, 403), path
    for path in ("/docs", "/openapi.json", "/redoc"):
        assert client.get(path).status_code == 404


def test_the_newest_card_is_shown_without_scripts(open_client: TestClient) -> None:
    answer = open_client.get(f"/runs/{KEY}/card")
    assert (answer.status_code, answer.text) == (200, "<html>the card</html>")
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_values_of_a_run_never_become_markup(open_client: TestClient) -> None:
    answer = open_client.get("/")
    assert answer.status_code == 200
    assert "&lt;b&gt;evil&lt;/b&gt;" in answer.text
    assert "<b>evil" not in answer.text


@pytest.mark.parametrize("key", ["..%2f..%2fetc", "ABCDEF0123", "0123", "0123456789abcdef01234567/../x"])
def test_a_key_that_is_no_key_is_refused(open_client: TestClient, key: str) -> None:
    assert open_client.get(f"/runs/{key}/card").status_code in (404, 422)


def test_a_run_without_a_card_says_what_writes_it(open_client: TestClient) -> None:
    answer = open_client.get("/runs/ffffffffffff/card")
    assert answer.status_code == 404
    assert "the task report writes it" in answer.text
    assert open_client.get("/models/none_such").status_code == 404
