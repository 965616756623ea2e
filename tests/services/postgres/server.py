"""A PostgreSQL of the tests' own: Debian's package, a database in a temporary folder, loopback and a free port.

PostgreSQL refuses to run as root; then its processes are the user `postgres` of the package. It dies with its starter.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

OWNER = "owner"
PASSWORD = "it's a s3cret/@%"  # what a URL, a connection string and a message could each get wrong
DATABASE = "warehouse"
PATIENCE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A server that answers."""

    port: int
    binaries: Path
    process: subprocess.Popen[bytes]

    def url(self, *, user: str = OWNER, password: str = PASSWORD, database: str = DATABASE) -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def run(self, statements: str, *, database: str = DATABASE) -> str:
        """What psql prints of these statements, each in its own transaction. Raises where one fails."""
        command = [
            self.binaries / "psql",
            "-X",
            "-q",
            "-At",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            self.url(database=database),
        ]
        done = subprocess.run(command, input=statements, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def kill(self) -> None:
        """End it as a crash of its host would: no session is told (SIGQUIT; after SIGKILL its children would live)."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(PATIENCE_SECONDS)


def find_binaries() -> Path | None:
    """The newest PostgreSQL's own folder of commands, as Debian installs it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def install() -> None:
    """Debian's package, for root on a machine that lacks it."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = "apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql"
    subprocess.run(["sh", "-c", command], check=True, env=environment, timeout=600, capture_output=True)


@contextlib.contextmanager
def run_server(binaries: Path) -> Iterator[Postgres]:
    """A server from an empty folder to an empty folder."""
    folder = Path(tempfile.mkdtemp(prefix="paddlewheel-postgres-"))
    as_user = []
    if os.geteuid() == 0:
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=INT"]
        shutil.chown(folder, "postgres", "postgres")
    data, secret = folder / "data", folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    try:
        command = [*as_user, binaries / "initdb", "-D", data, "-U", OWNER, f"--pwfile={secret}"]
        command += ["--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        port = _free_port()
        with (folder / "log.txt").open("wb") as log:
            settings = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"]
            command = [*as_user, binaries / "postgres", "-D", data, *(word for one in settings for word in ("-c", one))]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        server = Postgres(port=port, binaries=binaries, process=process)
        try:
            _wait_for(server, process, folder / "log.txt")
            server.run(f"CREATE DATABASE {DATABASE}", database="postgres")
            yield server
        finally:
            stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server: SIGINT drops its sessions and shuts it down."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGQUIT)
        process.wait(PATIENCE_SECONDS)


def _wait_for(server: Postgres, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended: {log.read_text(errors='replace')}")
        try:
            server.run("SELECT 1", database="postgres")
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
