"""Airflow's pages as a person sees them: the DAG, its form, a night triggered in it, and the card behind the link."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.data.demos.flights import write_flights

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY_SECONDS, NIGHT_SECONDS = 180, 420
PASSWORD = "only-for-this-test"
QUICK = {
    "partition": "2013-11-01",
    "data.window.train_days": 6,
    "data.window.holdout_days": 2,
    "training.epochs": 1,
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A running Airflow: where it is, its token, and where screenshots go."""

    url: str
    token: str
    pictures: Path

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call of the REST API."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not CHROMIUM.is_file():
        pytest.skip("no /usr/bin/chromium: apt-get install chromium")
    folder = tmp_path_factory.mktemp("site")
    write_flights(folder / "root/landing/flights")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = folder / "airflow"
    home.mkdir()
    (home / "simple_auth_manager_passwords.json.generated").write_text(
        json.dumps({"admin": PASSWORD, "viewer": PASSWORD})
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "PADDLEWHEEL_ROOT": str(folder / "root"),
    }
    log = (folder / "airflow.log").open("w")
    server = subprocess.Popen(
        [str(PROJECT / "bin/airflow"), "standalone"],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        yield Site(url=url, token=_token(url, server, folder / "airflow.log"), pictures=folder)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _token(url: str, server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until Airflow answers; a token of its admin."""
    body = json.dumps({"username": "admin", "password": PASSWORD}).encode()
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            request = urllib.request.Request(
                f"{url}/auth/token", data=body, headers={"Content-Type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request, timeout=5) as answer:
                token: str = json.load(answer)["access_token"]
            health = json.load(urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5))
            if all(health[part]["status"] == "healthy" for part in ("scheduler", "triggerer", "dag_processor")):
                return token
        except (urllib.error.URLError, OSError, KeyError, ValueError):
            pass
        time.sleep(1)
    raise AssertionError(f"Airflow did not come up:\n{log.read_text()[-3000:]}")


def _wait_for_dag(site: Site) -> None:
    for _ in range(60):
        try:
            site.call("GET", "/api/v2/dags/nightly_retrain")
            return
        except urllib.error.HTTPError:
            time.sleep(1)
    errors = site.call("GET", "/api/v2/importErrors")
    raise AssertionError(f"nightly_retrain was not parsed: {errors}")


@pytest.fixture(scope="module")
def page(site: Site) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    _wait_for_dag(site)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(f"{site.url}/auth/login")
        page.fill("input[name=username]", "admin")
        page.fill("input[name=password]", PASSWORD)
        page.click("button[type=submit]")
        page.wait_for_url(lambda url: "login" not in url)
        yield page
        browser.close()


@pytest.fixture(scope="module")
def night(site: Site, page: Any) -> dict[str, Any]:
    """A night that was triggered with the form's values, once it has ended."""
    run = site.call("POST", "/api/v2/dags/nightly_retrain/dagRuns", {"logical_date": None, "conf": QUICK})
    path = f"/api/v2/dags/nightly_retrain/dagRuns/{run['dag_run_id']}"
    deadline = time.monotonic() + NIGHT_SECONDS
    while time.monotonic() < deadline and run["state"] not in ("success", "failed"):
        time.sleep(3)
        run = site.call("GET", path)
    tasks = site.call("GET", f"{path}/taskInstances")["task_instances"]
    assert run["state"] == "success", {task["task_id"]: task["state"] for task in tasks}
    return run


def test_the_form_has_the_recipes_fields(site: Site, page: Any) -> None:
    page.goto(f"{site.url}/dags/nightly_retrain")
    page.get_by_test_id("trigger-dag-button").click()
    page.get_by_text("Window", exact=True).first.wait_for()
    for section in ("Training", "Gate", "Resources"):
        assert page.get_by_text(section, exact=True).count() >= 1, section
    page.get_by_text("Training", exact=True).first.click()
    page.get_by_text("Learning rate").first.wait_for()
    page.screenshot(path=str(site.pictures / "form.png"))


def test_wrong_values_in_the_form_are_refused(site: Site) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        site.call(
            "POST",
            "/api/v2/dags/nightly_retrain/dagRuns",
            {"logical_date": None, "conf": {"training.epochs": 0}},
        )
    assert refused.value.code == 400


def test_an_empty_form_field_is_no_change_when_a_recipe_is_run_on_demand(site: Site, page: Any) -> None:
    page.goto(f"{site.url}/dags/train_on_demand")
    page.get_by_test_id("trigger-dag-button").click()
    page.get_by_text("Work", exact=True).first.click()
    page.locator("input[type=date]").last.fill("2014-07-01")  # outside the data: the run ends with its first task
    page.screenshot(path=str(site.pictures / "form-on-demand.png"))
    page.get_by_role("button", name="Trigger").last.click()
    page.wait_for_url(lambda url: "/runs/" in url)
    (run,) = site.call("GET", "/api/v2/dags/train_on_demand/dagRuns")["dag_runs"]
    assert run["conf"]["partition"] == "2014-07-01"
    assert not run["conf"]["overrides"]


def test_the_graph_of_a_night_is_a_chain_of_green_tasks(site: Site, page: Any, night: dict[str, Any]) -> None:
    page.goto(f"{site.url}/dags/nightly_retrain/runs/{night['dag_run_id']}")
    page.get_by_text("fit_features").first.wait_for()
    page.screenshot(path=str(site.pictures / "night.png"))
    page.locator("button[aria-label*=raph]").first.click()
    page.locator(".react-flow__node").nth(11).wait_for()
    page.wait_for_timeout(1000)  # the layout moves once more after the nodes are there
    page.screenshot(path=str(site.pictures / "graph.png"))
    assert page.locator(".react-flow__node").count() == 12
    assert page.locator(".react-flow__edge").count() == 11


def test_the_link_of_the_report_opens_the_card(site: Site, page: Any, night: dict[str, Any]) -> None:
    for task in ("train", "report"):
        links = site.call(
            "GET", f"/api/v2/dags/nightly_retrain/dagRuns/{night['dag_run_id']}/taskInstances/{task}/links"
        )["extra_links"]
        assert links["Run card"].startswith(f"{site.url}/paddlewheel/runs/"), links
    page.goto(links["Run card"])
    assert "New York" in page.content()
    assert page.locator("svg").count() >= 3
    page.screenshot(path=str(site.pictures / "card.png"), full_page=True)
    page.goto(f"{site.url}/paddlewheel/")
    assert page.get_by_text("flights_delay").count() >= 1
    page.screenshot(path=str(site.pictures / "runs.png"))


def test_nobody_sees_a_card_without_the_login(site: Site, night: dict[str, Any]) -> None:
    for path in ("/paddlewheel/", "/paddlewheel/models/flights_delay", "/paddlewheel/runs/0123456789/card"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(site.url + path, timeout=10)
        assert refused.value.code == 401, path
