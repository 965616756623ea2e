"""The dashboard: runs, models and cards of one store, read-only, behind Airflow's own login.

A mounted FastAPI application has no authentication of its own, so that every route depends on the right to read DAGs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import jinja2
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Path, Request
from fastapi.responses import HTMLResponse, PlainTextResponse

from paddle_cluster.connections import connection_json
from paddlewheel.champions import champion, list_versions
from paddlewheel.connections import Connection, parse_connection, use_lookup
from paddlewheel.errors import PaddlewheelError
from paddlewheel.runs import READERS, list_runs, newest_manifests
from paddlewheel.storage import Store, default_root, open_store

RunKey = Annotated[str, Path(pattern="^[0-9a-f]{8,64}$")]
ModelName = Annotated[str, Path(pattern="^[a-z][a-z0-9_]{0,63}$")]
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("paddlewheel_dashboard", "pages"), autoescape=True, undefined=jinja2.StrictUndefined
)


def build_app() -> FastAPI:
    """The application that the plugin mounts. Without documentation routes, which would be open to everybody."""
    app = FastAPI(
        title="Paddlewheel",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_dag("GET"))],
    )

    @app.exception_handler(PaddlewheelError)
    def tell(_: Request, error: PaddlewheelError) -> PlainTextResponse:
        """A store that refuses, does not answer or is damaged, in its own words."""
        return PlainTextResponse(f"{error}\n", status_code=503, headers=HEADERS)

    @app.get("/", response_class=HTMLResponse)
    def show_runs() -> HTMLResponse:
        """Every run and model of the store, the newest partition first."""
        store = _open()
        runs = sorted(list_runs(store), key=lambda run: (run.partition, run.key), reverse=True)
        with ThreadPoolExecutor(READERS) as pool:
            cards = pool.map(lambda run: newest_manifests(store, run.key, "cards"), runs)
            carded = {run.key for run, found in zip(runs, cards, strict=True) if found}
        current = [(name, champion(store, name)) for name in store.children("models")]
        models = [(name, one, len({change.version for change in one.history}) if one else 0) for name, one in current]
        return _page("runs.html", runs=runs, models=models, carded=carded, root=store.root)

    @app.get("/runs/{key}/card", response_class=HTMLResponse)
    def show_card(key: RunKey) -> HTMLResponse:
        """The newest card of a run, as it was written."""
        store = _open()
        cards = newest_manifests(store, key, "cards")
        if not cards:
            raise HTTPException(404, f"the run {key} has no card yet; the task report writes it")
        return HTMLResponse(store.read(f"{cards[-1].key}/card.html").decode(), headers=HEADERS)

    @app.get("/models/{name}", response_class=HTMLResponse)
    def show_model(name: ModelName) -> HTMLResponse:
        """A model's versions and the history of its champion."""
        store = _open()
        versions, current = list_versions(store, name), champion(store, name)
        if not versions and current is None:
            raise HTTPException(404, f"there is no model {name}")
        return _page("model.html", name=name, versions=versions[::-1], champion=current)

    return app


def _open() -> Store:
    """The store, with Airflow's connections for a root that names one."""
    use_lookup(_find_in_airflow)
    return open_store(default_root())


def _find_in_airflow(connection_id: str) -> Connection | None:
    found = connection_json(connection_id)
    return None if found is None else parse_connection(found)


def _page(template: str, **values: Any) -> HTMLResponse:
    return HTMLResponse(PAGES.get_template(template).render(**values), headers=HEADERS)
