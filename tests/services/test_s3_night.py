"""A night by the command line with landing folder and root in buckets: the same keys and bytes as from local files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import pytest

from paddlewheel.data.demos.flights import write_flights
from paddlewheel.manifest import Manifest, read_manifest
from paddlewheel.storage import Store, open_store

from .s3.server import S3Server

RECIPE = Path(__file__).resolve().parents[2] / "recipes/flights_delay.yaml"
DAY, DAYS = "2013-11-01", 12
SMALL = (
    "data.window.train_days=8",
    "data.window.holdout_days=2",
    "training.epochs=2",
    "training.checkpoint_every_steps=20",
    "evaluation.resamples=200",
    "gate.min_auc=0",
)
# Of these kinds neither key nor manifest says where the rows lay: they descend from the rows' own bytes.
BY_CONTENT = ("table", "samples", "fitted", "rows")
pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]


@dataclass(kw_only=True)
class World:
    """Two roots, a landing folder each, and an environment with the connection `mine` to the server."""

    local: str
    remote: str
    landings: dict[str, str]
    environment: dict[str, str] = field(repr=False)

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """`paddlewheel ARGUMENTS`, which must end with this code."""
        done = subprocess.run(
            [sys.executable, "-m", "paddlewheel.cli", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done

    def night(self, root: str, *more: str) -> dict[str, str]:
        """URIs of what a whole night of the small recipe made."""
        settings = (f"data.landing={self.landings[root]}", *SMALL)
        done = self.run("run", str(RECIPE), "--partition", DAY, "--root", root, "--json", "--set", *settings, *more)
        found: dict[str, str] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def world(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Both roots empty, both landing folders with the same files of twelve days."""
    whole, folder = tmp_path_factory.mktemp("flights"), tmp_path_factory.mktemp("night")
    write_flights(whole)
    buckets = [f"{kind}-{os.urandom(4).hex()}" for kind in ("root", "landing")]
    for bucket in buckets:
        s3_server.client().create_bucket(Bucket=bucket)
    environment = {"AIRFLOW_CONN_MINE": s3_server.connection(), "XDG_CACHE_HOME": str(folder / "cache")}
    world = World(
        local=str(folder / "root"),
        remote=f"s3://mine@{buckets[0]}/the%20root",
        landings={},
        environment={**os.environ, **environment},
    )
    world.landings = {world.local: str(folder / "landing"), world.remote: f"s3://mine@{buckets[1]}/in/flights"}
    days = [(date.fromisoformat(DAY) - timedelta(days=back)).isoformat() for back in range(DAYS)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        stores = [open_store(landing) for landing in world.landings.values()]
        for path in sorted(whole.rglob("*.csv.gz")):
            if path.parent == whole or path.name.removesuffix(".csv.gz") in days:
                for store in stores:
                    store.publish(path.relative_to(whole).as_posix(), path)
        yield world


def manifests(store: Store, *kinds: str) -> dict[str, Manifest]:
    """Manifests of these kinds by key."""
    found = {}
    for stat in store.list(""):
        if stat.key.endswith("manifest.json"):
            manifest = read_manifest(store, stat.key)
            if manifest.kind in kinds:
                found[manifest.key] = manifest
    return found


def files_of(manifest: Manifest) -> list[tuple[str, int, str]]:
    """(name, bytes, digest) of each file."""
    return [(shard.key.rpartition("/")[2], shard.bytes, shard.digest) for shard in manifest.files]


def test_a_night_on_s3_makes_the_same_keys_and_bytes_as_one_on_a_disk(world: World) -> None:
    remote, local = world.night(world.remote), world.night(world.local)
    there, here = open_store(world.remote), open_store(world.local)
    made, expected = manifests(there, *BY_CONTENT), manifests(here, *BY_CONTENT)
    assert {manifest.kind for manifest in expected.values()} == set(BY_CONTENT)
    assert made == expected
    assert there.key(remote["run"]) == here.key(local["run"])
    kinds = ("shards", "packed", "features", "result")
    for kind in kinds:
        ours = sorted(files_of(manifest) for manifest in manifests(there, kind).values())
        assert ours == sorted(files_of(manifest) for manifest in manifests(here, kind).values()), kind
    # The weights alone: the curve's events say how long things took.
    key = here.key(local["run"]).rpartition("/")[0]
    bundle = f"{key}/bundle/manifest.json"
    assert files_of(read_manifest(there, bundle)) == files_of(read_manifest(here, bundle))


def test_a_night_on_s3_is_found_done_and_verified(world: World) -> None:
    first = world.night(world.remote)
    keys = [stat for stat in open_store(world.remote).list("")]
    assert world.night(world.remote) == first
    assert [stat for stat in open_store(world.remote).list("")] == keys
    told = world.run("runs", "verify", "--root", world.remote).stdout
    assert told.strip().endswith(": every file verified")
    shown = world.run("runs", "show", "--root", world.remote).stdout
    card = next(line for line in shown.splitlines() if line.startswith("report"))
    found = card.split()
    assert found[1].startswith(f"{world.remote}/runs/")
    copy = Path(card.partition("(a copy: ")[2].rstrip(")"))
    assert copy.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert world.run("models", "list", "--root", world.remote, "--json").stdout.count('"champion": 1') == 1


def test_a_night_survives_that_the_server_is_killed_and_comes_back(world: World, s3_server: S3Server) -> None:
    root = f"{world.remote}-killed"
    settings = (f"data.landing={world.landings[world.remote]}", *SMALL)
    command = [sys.executable, "-m", "paddlewheel.cli", "run", str(RECIPE), "--partition", DAY, "--root", root]
    night = subprocess.Popen(
        [*command, "--set", *settings],
        env=world.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert night.stderr is not None
    deaths = ["shard: labels", "epoch 1/2", "export: "]
    told = []
    for line in night.stderr:
        told.append(line)
        if deaths and deaths[0] in line:
            deaths.pop(0)
            s3_server.kill()
            time.sleep(2)
            s3_server.start()
    assert night.wait() == 0, "".join(told)
    assert deaths == []
    ours, theirs = open_store(root), open_store(world.remote)
    for kind in (*BY_CONTENT, "result"):
        found = sorted(files_of(manifest) for manifest in manifests(ours, kind).values())
        assert found == sorted(files_of(manifest) for manifest in manifests(theirs, kind).values()), kind


def test_the_same_night_elsewhere_needs_no_more_than_the_bucket(world: World, tmp_path: Path) -> None:
    """Another machine: an empty cache."""
    first = world.night(world.remote)
    world.environment["XDG_CACHE_HOME"] = str(tmp_path / "other")
    assert world.night(world.remote) == first


def test_a_damaged_object_stops_the_night_and_is_told(world: World, s3_server: S3Server, tmp_path: Path) -> None:
    world.night(world.remote)
    store = open_store(world.remote)
    packed = next(key for key in manifests(store, "rows") if key)
    key = manifests(store, "rows")[packed].files[0].key
    bucket, _, prefix = world.remote.removeprefix("s3://mine@").partition("/")
    path = s3_server.object_path(bucket, f"{prefix.replace('%20', ' ')}/{key}")
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        problems = world.run("runs", "verify", "--root", world.remote, code=5).stdout
        assert f"{store.uri(key)} is damaged on the server" in problems
        world.environment["XDG_CACHE_HOME"] = str(tmp_path / "empty")
        settings = (f"data.landing={world.landings[world.remote]}", *SMALL)
        night = ("run", str(RECIPE), "--partition", DAY, "--root", world.remote, "--set", *settings)
        told = world.run(*night, code=5).stderr
        assert f"{store.uri(key)} is damaged on the server" in told
        assert f"remove {store.uri(packed)} so that the step makes them again" in told
    finally:
        path.write_bytes(whole)
