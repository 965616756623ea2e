"""A real S3 server for tests: the Versity gateway over a plain folder, with its IAM, on free loopback ports.

It checks signatures, rights, checksums and conditions; a race for one key has one winner. Built once a machine from a
Go module (about 90 seconds, Go 1.25 or newer) into the user's cache folder. The object KEY of BUCKET is the file
`data/BUCKET/KEY` of its folder. Unlike AWS: `a` and `a/b` cannot both be keys, a path element has 255 bytes at most,
and an upload without any checksum that is cut off is stored. Every answer closes its connection: with keep-alive some
of pyarrow's writes fail. Rejected: moto and other stand-ins, which check no signature.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODULE, VERSION, REGION = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0", "us-east-1"
READ_ONLY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}],
}


class NoServer(Exception):
    """This machine can neither find nor build the server."""


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Keys:
    """A key id and its secret."""

    key_id: str
    secret: str = field(repr=False)


@dataclass(kw_only=True)
class S3Server:
    """A gateway and its IAM over one folder. `admin` may do all, `reader` may read and list every bucket."""

    folder: Path
    binary: Path
    admin: Keys = field(
        default_factory=lambda: Keys(key_id=f"TEST{secrets.token_hex(8).upper()}", secret=secrets.token_urlsafe(30))
    )
    reader: Keys | None = None
    port: int = field(default_factory=free_port)
    iam_port: int = field(default_factory=free_port)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def endpoint_url(self) -> str:
        """Where S3 answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start what does not run: the same ports, keys and objects as before."""
        link = f"@paddlewheel-s3-{self.iam_port}"  # an abstract socket: leaves no file
        for name in ("iam", "data", "versions"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._spawn("iam", self.iam_port, "iam", "--dir", self.folder / "iam", "--private-ports", link)
        self._spawn(
            *("gateway", self.port, "--iam-standalone-endpoint", link),
            *("posix", "--versioning-dir", self.folder / "versions", self.folder / "data"),
        )
        if self.reader is None:
            self.reader = self._add_user("reader", READ_ONLY)

    def kill(self) -> None:
        """kill -9 of the gateway, in the middle of whatever it does."""
        process = self._processes.pop("gateway")
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End both processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()

    def client(self, keys: Keys | None = None, *, service: str = "s3") -> Any:
        """A plain boto3 client, by which tests look past the store."""
        import boto3
        from botocore.config import Config

        keys, port = keys or self.admin, self.iam_port if service == "iam" else self.port
        return boto3.client(
            service,
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name=REGION,
            aws_access_key_id=keys.key_id,
            aws_secret_access_key=keys.secret,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )

    def connection(self, keys: Keys | None = None, **extra: Any) -> str:
        """An Airflow connection to it, as JSON."""
        keys = keys or self.admin
        tree = {"conn_type": "aws", "login": keys.key_id, "password": keys.secret}
        return json.dumps(tree | {"extra": {"endpoint_url": self.endpoint_url, "region_name": REGION, **extra}})

    def object_path(self, bucket: str, name: str) -> Path:
        """The file in which the server keeps an object."""
        return self.folder / "data" / bucket / name

    def _spawn(self, name: str, port: int, *arguments: object) -> None:
        if name in self._processes and self._processes[name].poll() is None:
            return
        environment = {
            **os.environ,
            "ROOT_ACCESS_KEY": self.admin.key_id,
            "ROOT_SECRET_KEY": self.admin.secret,
            "VGW_REGION": REGION,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.binary), "--port", f"127.0.0.1:{port}", "--quiet", *map(str, arguments)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[name] = process
        deadline = time.monotonic() + 30
        while not self._answers(name):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoServer(f"{name} does not answer: {(self.folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def _answers(self, name: str) -> bool:
        try:
            if name == "iam":
                self.client(service="iam").list_users()
            else:
                self.client().list_buckets()
        except Exception:
            return False
        return True

    def _add_user(self, name: str, policy: dict[str, Any]) -> Keys:
        iam = self.client(service="iam")
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName=name, PolicyDocument=json.dumps(policy))
        made = iam.create_access_key(UserName=name)["AccessKey"]
        return Keys(key_id=made["AccessKeyId"], secret=made["SecretAccessKey"])


def build_server() -> Path:
    """The server's binary, built if it is not in the cache yet. Raises NoServer where there is no Go to build it."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "paddlewheel-tests"
    binary = folder / f"versitygw-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two test runs the second finds what the first one built
        if not binary.exists():
            go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
            if go is None:
                raise NoServer("the S3 server is built with Go 1.25 or newer, and there is no `go` on the path")
            built = subprocess.run(
                [go, "install", "-trimpath", "-ldflags=-s -w", f"{MODULE}@{VERSION}"],
                env={**os.environ, "GOBIN": str(folder / "build")},
                capture_output=True,
                text=True,
                check=False,
            )
            if built.returncode:
                raise NoServer(f"go install {MODULE}@{VERSION} failed: {built.stderr[-2000:]}")
            os.replace(folder / "build" / "versitygw", binary)
    return binary


@contextlib.contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    """A started server, ended with the block."""
    server = S3Server(folder=folder, binary=build_server())
    try:
        server.start()
        yield server
    finally:
        server.stop()
