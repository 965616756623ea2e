"""A night of the DAG with its root and its landing folder in two buckets of a real server that checks signatures.

The connection is in Airflow's own database alone: what reads or writes the buckets got it from there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from fastapi.testclient import TestClient

from paddlewheel.data.demos.flights import write_flights
from paddlewheel.storage import Store, open_store
from paddlewheel_dashboard.app import build_app

from .s3.server import S3Server

PROJECT = Path(__file__).resolve().parents[2]
DAY = "2013-11-01"
SMALL = {
    "data.window.train_days": 8,
    "data.window.holdout_days": 2,
    "training.epochs": 2,
    "gate.min_auc": 0,
}
WAIT_SECONDS = 420
pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]


@dataclass(kw_only=True)
class Night:
    """What a night left: its output, where its files are, and the environments that its ranks were seen with."""

    code: int
    output: str
    folder: Path
    root: str
    landing: str
    ranks: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture(scope="module")
def buckets(s3_server: S3Server) -> tuple[str, str]:
    """(of the root, of the landing folder)."""
    names = tuple(f"{kind}-{os.urandom(4).hex()}" for kind in ("root", "landing"))
    for name in names:
        s3_server.client().create_bucket(Bucket=name)
    return names[0], names[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The landing files of the night's window."""
    whole, needed = tmp_path_factory.mktemp("flights"), tmp_path_factory.mktemp("needed")
    write_flights(whole)
    days = [(date.fromisoformat(DAY) - timedelta(days=back)).isoformat() for back in range(12)]
    for path in sorted(whole.rglob("*.csv.gz")):
        if path.parent == whole or path.name.removesuffix(".csv.gz") in days:
            target = needed / path.relative_to(whole)
            target.parent.mkdir(exist_ok=True)
            path.rename(target)
    return needed


@pytest.fixture(scope="module")
def night(
    s3_server: S3Server, buckets: tuple[str, str], files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Night:
    """The DAG nightly_retrain by `airflow dags test`, to its end."""
    folder = tmp_path_factory.mktemp("night")
    for path in files.rglob("*.csv.gz"):
        s3_server.client().upload_file(str(path), buckets[1], f"flights/{path.relative_to(files).as_posix()}")
    root, landing = f"s3://store@{buckets[0]}/a root", f"s3://store@{buckets[1]}/flights"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_"))}
    environment |= {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "PADDLEWHEEL_ROOT": root,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "AIRFLOW_CONN_JOBS": json.dumps({"conn_type": "generic", "extra": {"state_folder": str(folder / "jobs")}}),
        "AIRFLOW_CONN_UNRELATED": "aws://nobody:unrelated-secret@/",
    }
    airflow = [str(PROJECT / "bin/airflow")]
    for command in (["db", "migrate"], ["connections", "add", "store", "--conn-json", s3_server.connection()]):
        done = subprocess.run([*airflow, *command], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    conf = {"partition": DAY, "data.landing": landing, "resources.connection": "jobs", **SMALL}
    told = folder / "night.log"
    with told.open("w") as log, subprocess.Popen(
        [*airflow, "dags", "test", "nightly_retrain", "--conf", json.dumps(conf)],
        env=environment, stdout=log, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        ranks: dict[int, dict[str, str]] = {}
        give_up = time.monotonic() + WAIT_SECONDS
        while process.poll() is None and time.monotonic() < give_up:
            ranks |= environments_of("paddlewheel.training.entry", buckets[0])
            time.sleep(0.2)
        process.kill()
    made = Night(code=process.returncode, output=told.read_text(), folder=folder, root=root, landing=landing)
    made.ranks = list(ranks.values())
    return made


@pytest.fixture
def store(night: Night, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The night's root, with the connection in this process's environment."""
    monkeypatch.setenv("AIRFLOW_CONN_STORE", s3_server.connection())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return open_store(night.root)


def environments_of(module: str, bucket: str) -> dict[int, dict[str, str]]:
    """Environments of the processes that run a module for this bucket, by pid."""
    found = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if module in words and any(bucket in word for word in words):
                found[process.pid] = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def paddlewheel(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paddlewheel.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def test_a_night_ends_with_a_model_and_a_card_in_the_bucket(night: Night, store: Store) -> None:
    assert night.code == 0, night.output[-6000:]
    (run,) = json.loads(paddlewheel("runs", "list", "--root", night.root, "--json").stdout)
    assert (run["partition"], run["state"], run["version"]) == (DAY, "trained", 1)
    shown = paddlewheel("runs", "show", "--root", night.root, "--partition", DAY, "--recipe", "flights_delay").stdout
    assert "champion  version 1 (this run)" in shown
    assert "every file verified" in paddlewheel("runs", "verify", run["key"], "--root", night.root).stdout


def test_jobs_live_in_the_folder_that_the_launchers_connection_names(night: Night) -> None:
    (job,) = (night.folder / "jobs").iterdir()
    spec = json.loads((job / "spec.json").read_text())
    assert json.loads((job / "exit.json").read_text())["exit_code"] == 0
    assert "AIRFLOW_CONN_STORE" in spec["environment_names"]
    assert not [name for name in spec["environment_names"] if name.startswith("AIRFLOW") and "STORE" not in name]


def test_ranks_have_the_stores_connection_and_no_other_secret(night: Night, s3_server: S3Server) -> None:
    assert len(night.ranks) >= 2
    for environment in night.ranks:
        named = [name for name in environment if name.startswith(("AIRFLOW", "AWS"))]
        assert named == ["AIRFLOW_CONN_STORE"]
        assert json.loads(environment["AIRFLOW_CONN_STORE"])["password"] == s3_server.admin.secret


def test_no_file_or_object_of_the_night_holds_the_secret(
    night: Night, s3_server: S3Server, buckets: tuple[str, str]
) -> None:
    secret = s3_server.admin.secret.encode()
    folders = [night.folder, *(s3_server.folder / "data" / name for name in buckets)]
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(paths) > 100
    assert [path for path in paths if secret in path.read_bytes()] == []
    assert "unrelated-secret" not in night.output


def test_everything_made_has_the_names_that_it_has_locally(
    night: Night, store: Store, files: Path, tmp_path: Path
) -> None:
    local = tmp_path / "root"
    changes = [f"{path}={value}" for path, value in {**SMALL, "data.landing": files}.items()]
    paddlewheel("run", str(PROJECT / "recipes/flights_delay.yaml"), "--partition", DAY, "--root", str(local), "--set",
                *changes)  # fmt: skip
    there, here = keys_of(store), keys_of(open_store(str(local)))
    assert there == here
    assert {name.partition(".")[2] for name in there["datasets"]} >= {"flights", "samples", "rows", "fitted"}


def keys_of(store: Store) -> dict[str, dict[str, Any]]:
    """Names and digests of what is made of rows alone, and the run's key."""
    datasets = [name for name in store.children("datasets") if name.rpartition(".")[2] in KINDS_OF_ROWS]
    digests = {
        f"{name}/{key}": store.digest(f"datasets/{name}/{key}/manifest.json")
        for name in datasets
        for key in store.children(f"datasets/{name}")
    }
    return {"datasets": dict.fromkeys(datasets), "digests": digests, "runs": dict.fromkeys(store.children("runs"))}


KINDS_OF_ROWS = ("flights", "weather", "planes", "airports", "samples", "fitted", "rows")


def test_the_dashboard_shows_runs_and_cards_of_the_bucket(
    night: Night, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLEWHEEL_ROOT", night.root)
    app = build_app()
    for route in app.routes:
        for dependency in route.dependant.dependencies:  # type: ignore[attr-defined]
            app.dependency_overrides[dependency.call] = lambda: None
    client = TestClient(app, raise_server_exceptions=False)
    page = client.get("/")
    (key,) = store.children("runs")
    assert page.status_code == 200
    assert f'<a href="runs/{key}/card">card</a>' in page.text
    card = client.get(f"/runs/{key}/card")
    assert card.status_code == 200
    assert "flights_delay" in card.text
    assert client.get("/models/flights_delay").status_code == 200


def test_the_dashboard_tells_what_the_store_refused(
    night: Night, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = json.loads(s3_server.connection()) | {"password": "wrong"}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(tree))
    monkeypatch.setenv("PADDLEWHEEL_ROOT", night.root)
    app = build_app()
    for route in app.routes:
        for dependency in route.dependant.dependencies:  # type: ignore[attr-defined]
            app.dependency_overrides[dependency.call] = lambda: None
    answer = TestClient(app, raise_server_exceptions=False).get("/")
    assert answer.status_code == 503
    assert "SignatureDoesNotMatch" in answer.text
