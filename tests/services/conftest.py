"""What the tests start: the Docker engine of the container tests, and an S3 server.

An engine that already answers is used as it is. Where there is none, `containers/docker-up.sh` starts one (root,
Debian 12) that needs no registry; it keeps its images and its cache below var/ and is stopped at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddlewheel.storage import s3_errors
from paddlewheel.storage.s3 import S3Store

from .s3.proxy import Proxy, proxy_to
from .s3.server import NoServer, S3Server, running

PROJECT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "containers"


@pytest.fixture(scope="session")
def engine() -> Iterator[dict[str, str]]:
    """The environment in which `docker` reaches an engine."""
    environment = dict(os.environ)
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        yield environment
        return
    if os.geteuid() != 0:
        pytest.skip("no Docker engine answers, and starting one needs root")
    if "VERSION_CODENAME=bookworm" not in Path("/etc/os-release").read_text():
        pytest.skip("no Docker engine answers, and the one that the tests can start is for Debian 12")
    state = PROJECT / "var" / "docker-engine"
    try:
        started = subprocess.run(
            [str(SCRIPTS / "docker-up.sh"), str(state)], capture_output=True, text=True, timeout=900, check=False
        )
        assert started.returncode == 0, f"no engine: {started.stdout}\n{started.stderr}"
        words = (state / "env").read_text().removeprefix("export ").split()
        settings = dict(word.split("=", 1) for word in words)
        yield environment | settings | {"PATH": settings["PATH"].replace("$PATH", environment["PATH"])}
    finally:
        subprocess.run([str(SCRIPTS / "docker-down.sh"), str(state)], timeout=300, check=True)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, built by Go where this machine has none yet."""
    try:
        with running(tmp_path_factory.mktemp("s3")) as server:
            yield server
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def s3_bucket(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket; the connection `mine` may do all with it, and this machine's cache is an empty folder."""
    name = f"test-{os.urandom(6).hex()}"
    s3_server.client().create_bucket(Bucket=name)
    monkeypatch.setenv("AIRFLOW_CONN_MINE", s3_server.connection())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return name


@pytest.fixture
def store(s3_bucket: str) -> S3Store:
    """A root of its own in that bucket."""
    return S3Store(f"s3://mine@{s3_bucket}/root")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 80 MiB: five parts of an upload."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 20) * 80)
    return path


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any pause between tries."""
    monkeypatch.setattr(s3_errors, "PAUSES_SECONDS", (0.01,) * 6)


@pytest.fixture
def proxy(s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, hasty: None) -> Iterator[Proxy]:
    """In front of the server, for all that `mine` does."""
    with proxy_to(s3_server.port) as proxy:
        monkeypatch.setenv("AIRFLOW_CONN_MINE", s3_server.connection(endpoint_url=proxy.endpoint_url))
        yield proxy
