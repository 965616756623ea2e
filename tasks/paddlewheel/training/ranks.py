"""The rank processes of one node: started with PADDLE_* set by hand, looked at, stopped, never left behind.

Rejected: `paddle.distributed.launch`, which writes the whole environment into its logs, forgets which rank failed first
and waits for a missing peer without end.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlewheel.connections import environment_of, named_connections
from paddlewheel.recipe import Resources

# What a rank may see of the agent's environment; everything else stays out, every secret but the store's own.
ALLOWED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "VIRTUAL_ENV",
    "SSL_CERT_FILE", "TZ", "XDG_CACHE_HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
    "no_proxy",
)  # fmt: skip
AWS_PREFIX = "AWS_"  # for a store on S3 alone: keys, region, endpoint
LOG_TAIL_LINES = 40
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank's process and the files by which it speaks."""

    number: int
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / f"rank-{self.number}.log"

    def heartbeat(self) -> dict[str, Any] | None:
        """Its last heartbeat; None before the first."""
        return _read_json(self.folder / f"heartbeat-{self.number}.json")

    def error(self) -> dict[str, Any] | None:
        """The error that it left; None where it left none."""
        return _read_json(self.folder / f"error-{self.number}.json")

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines that it wrote."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def start_ranks(
    *,
    run_uri: str,
    root: str,
    attempt: int,
    folder: Path,
    resources: Resources,
    environment: Mapping[str, str],
    connections: Sequence[str] = (),
) -> list[Rank]:
    """Start every rank of this node, with the connection that the root names and these. They die with this process.

    Raises RecipeError for a connection that nobody knows.
    """
    secrets = environment_of([*named_connections([root]), *connections])
    if root.startswith("s3://"):
        secrets |= {name: value for name, value in environment.items() if name.startswith(AWS_PREFIX)}
    world_size = resources.nodes * resources.ranks_per_node
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(world_size)]
    command = [sys.executable, "-m", "paddlewheel.training.entry", "--run", run_uri, "--root", root]
    command += ["--attempt", str(attempt), "--work", str(folder), "--device", resources.device]
    ranks: list[Rank] = []
    try:
        for number in range(world_size):
            with (folder / f"rank-{number}.log").open("wb") as log:
                process = subprocess.Popen(
                    command,
                    env={**rank_environment(number, endpoints, resources, environment), **secrets},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=functools.partial(_die_with, os.getpid()),  # noqa: PLW1509 two system calls, no lock
                )
            ranks.append(Rank(number=number, process=process, folder=folder))
    except BaseException:
        kill_ranks(ranks)
        raise
    return ranks


def rank_environment(
    number: int, endpoints: Sequence[str], resources: Resources, environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment of one rank but for the way to its store: what is allowed of the agent's, and Paddle's own."""
    allowed = {name: environment[name] for name in ALLOWED if name in environment}
    gpu = {"FLAGS_selected_gpus": str(number % resources.ranks_per_node)} if resources.device == "gpu" else {}
    return {
        **allowed,
        **gpu,
        "PADDLE_TRAINER_ID": str(number),
        "PADDLE_TRAINERS_NUM": str(len(endpoints)),
        "PADDLE_CURRENT_ENDPOINT": endpoints[number],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_DISTRI_BACKEND": "nccl" if resources.device == "gpu" else "gloo",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(resources.threads_per_rank),
        "OPENBLAS_NUM_THREADS": str(resources.threads_per_rank),
        "MKL_NUM_THREADS": str(resources.threads_per_rank),
        "GLOG_minloglevel": "2",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
    }


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on now; taken anew for each attempt."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def dump_stacks(ranks: Sequence[Rank], wait_seconds: float = 1.5) -> str:
    """Ask every living rank for the stacks of its threads; what they wrote, by rank."""
    sizes = {rank.number: rank.log.stat().st_size for rank in ranks}
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.send_signal(signal.SIGUSR1)
    time.sleep(wait_seconds)
    parts = []
    for rank in ranks:
        with rank.log.open("rb") as log:
            log.seek(sizes[rank.number])
            parts.append(f"rank {rank.number}:\n{log.read().decode(errors='replace')}")
    return "\n".join(parts)


def kill_ranks(ranks: Sequence[Rank]) -> None:
    """End every rank that still lives, and reap all. By KILL: what is committed stays, what is not must not be."""
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.kill()
    for rank in ranks:
        rank.process.wait()


def _die_with(agent: int) -> None:
    """In the child before exec: the kernel kills it when the agent ends, however that ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(13)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        tree: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return tree
