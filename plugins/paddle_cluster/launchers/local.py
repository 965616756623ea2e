"""Jobs as processes of this host. A job is a folder, and its life is a lock on a file in that folder.

    STATE_FOLDER/NAME/
      spec.json      what was asked for; of the environment the names alone
      job.lock       flock held from the start by the supervisor and by the command: held means that the job lives
      started.json   written before the command starts; a job with it is never started again
      cancel         written by `cancel`; the supervisor watches for it
      log.txt        stdout and stderr
      exit.json      how it ended; written when no process of the job is left

A lock rather than a pid: it is right in another container, after a reboot, and when a pid is used again. The folder
must therefore lie on a file system whose flock works between all who use it; those of one host do.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paddle_cluster.jobs import JobHandle, JobSpec, JobState, JobStatus, SubmitError
from paddle_cluster.launchers.local_supervisor import write_json

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
INHERITED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES",
    "XDG_CACHE_HOME", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
INHERITED_PREFIX = "AWS_"  # a store on S3 without a connection: endpoint, region, profile, keys
PREEMPTED_EXIT = 14
SUPERVISOR = Path(__file__).with_name("local_supervisor.py")
STARTING_SECONDS = 5.0
log = logging.getLogger(__name__)


class LocalLauncher:
    """Starts jobs under supervisors that outlive this process. `state_folder` holds one folder a job.

    grace_seconds: how long a job that is cancelled or past its time limit has between SIGTERM and SIGKILL.
    """

    def __init__(self, *, state_folder: str | Path, grace_seconds: float = 30.0) -> None:
        self.state_folder = Path(state_folder).absolute()
        self.grace_seconds = grace_seconds

    def render(self, spec: JobSpec) -> str:
        """The job as a shell script that does the same. Raises SubmitError where this host cannot run it."""
        check_spec(spec)
        lines = [f"# {spec.name}: {spec.resources.ranks_per_node} ranks on this host"]
        if spec.working_directory is not None:
            lines.append(f"cd {shlex.quote(spec.working_directory)}")
        lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(spec.environment.items())]
        limit = () if spec.time_limit_seconds is None else ("timeout", str(spec.time_limit_seconds))
        lines.append(shlex.join((*limit, *spec.command)))
        return "\n".join(lines) + "\n"

    def submit(self, spec: JobSpec) -> JobHandle:
        """Start the job, or adopt the one of this name, also where its submitter died before starting it.

        Raises SubmitError.
        """
        check_spec(spec)
        folder = self.state_folder / spec.name
        try:
            if not folder.is_dir():
                self._create_folder(folder, spec)
            self._start_once(folder, spec)
        except OSError as error:
            raise SubmitError(f"job {spec.name} could not be started in {folder}: {error}") from error
        return self._handle(spec.name)

    def find(self, name: str) -> JobHandle | None:
        """The job of this name in whatever state, or None where there has never been one."""
        return self._handle(name) if (self.state_folder / name).is_dir() else None

    def poll(self, handle: JobHandle) -> JobStatus:
        """How the job stands; LOST where it was started and no process of it is left to say how it ended."""
        folder = Path(handle.location)
        if not folder.is_dir():
            return JobStatus(state=JobState.LOST, native_state="absent", reason=f"{folder} does not exist")
        if (status := read_end(folder)) is not None:
            return status
        # In this order: a job that starts in between reads as PENDING, never as one that is lost.
        with try_lock(folder, fcntl.LOCK_SH) as free_fd:
            if free_fd is None:
                started = (folder / "started.json").exists()
                return JobStatus(
                    state=JobState.RUNNING if started else JobState.PENDING,
                    native_state="started" if started else "starting",
                )
            if (status := read_end(folder)) is not None:
                return status
            if (folder / "started.json").exists():
                reason = "its supervisor was killed, or the host went down; no process of it is left"
                return JobStatus(state=JobState.LOST, native_state="gone", reason=reason)
        if (folder / "cancel").exists():
            return JobStatus(state=JobState.CANCELLED, native_state="cancelled", reason="cancelled before it started")
        reason = "created but not started; the next submit starts it"
        return JobStatus(state=JobState.PENDING, native_state="created", reason=reason)

    def cancel(self, handle: JobHandle) -> None:
        """Ask the supervisor to end the job: SIGTERM, and SIGKILL after the grace."""
        folder = Path(handle.location)
        if folder.is_dir() and not (folder / "exit.json").exists():
            write_json(str(folder / "cancel"), {"asked_at": time.time()})

    def logs(self, handle: JobHandle, tail_lines: int) -> str:
        """The last lines of log.txt; empty while there is none."""
        path = Path(handle.location) / "log.txt"
        return read_tail(path, tail_lines) if path.exists() else ""

    def _handle(self, name: str) -> JobHandle:
        return JobHandle(launcher="local", name=name, native_id=name, location=str(self.state_folder / name))

    def _create_folder(self, folder: Path, spec: JobSpec) -> None:
        """Make the job's folder whole under another name and move it into place; the first of several wins."""
        self.state_folder.mkdir(parents=True, exist_ok=True)
        draft = self.state_folder / f".{spec.name}.{uuid.uuid4().hex}.new"
        draft.mkdir(mode=0o700)
        try:
            (draft / "job.lock").touch()
            tree: dict[str, Any] = {
                "name": spec.name,
                "command": list(spec.command),
                "environment_names": sorted(build_environment(spec)),
                "working_directory": spec.working_directory or str(folder),
                "time_limit_seconds": spec.time_limit_seconds,
                "grace_seconds": self.grace_seconds,
                "labels": dict(spec.labels),
            }
            write_json(str(draft / "spec.json"), tree)
            os.rename(draft, folder)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            if not folder.is_dir():
                raise

    def _start_once(self, folder: Path, spec: JobSpec) -> None:
        """Start the supervisor unless one was started; whoever holds the lock is the one who starts it."""
        give_up = time.monotonic() + STARTING_SECONDS
        while not ((folder / "started.json").exists() or (folder / "exit.json").exists()):
            with try_lock(folder, fcntl.LOCK_EX) as lock_fd:
                if lock_fd is not None:
                    if not (folder / "started.json").exists():
                        start_supervisor(folder, spec, lock_fd)
                    return
            if time.monotonic() > give_up:
                return
            # Held by another submitter, by its supervisor that is about to say so, or for an instant by a poll.
            time.sleep(0.02)


def start_supervisor(folder: Path, spec: JobSpec, lock_fd: int) -> None:
    """Start a supervisor in a session of its own that keeps the lock of `lock_fd` when this process ends."""
    with open(folder / "log.txt", "ab") as output:
        starter = subprocess.run(
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(folder), str(lock_fd)],
            env=build_environment(spec),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(lock_fd,),
            start_new_session=True,
            check=False,
        )
    if starter.returncode != 0:
        raise SubmitError(f"job {spec.name}: its supervisor did not start; see {folder / 'log.txt'}")


def check_spec(spec: JobSpec) -> None:
    """Raises SubmitError for a job that one host cannot run or whose name cannot be a folder."""
    if not NAME.fullmatch(spec.name):
        raise SubmitError(f"job name {spec.name!r}: letters, digits, '.', '_' and '-' only, 200 at most")
    if not spec.command:
        raise SubmitError(f"job {spec.name}: its command is empty")
    if spec.resources.nodes != 1:
        raise SubmitError(
            f"job {spec.name}: resources.nodes is {spec.resources.nodes}, and the local launcher has this host alone; "
            "set it to 1 or choose another launcher"
        )


def build_environment(spec: JobSpec) -> dict[str, str]:
    """What the job finds in its environment: an allow-list of this process's own, then what the spec says."""
    inherited = {
        name: value for name, value in os.environ.items() if name in INHERITED or name.startswith(INHERITED_PREFIX)
    }
    if "PYTHONPATH" in inherited:
        # The job's working directory is another one.
        parts = [os.path.abspath(part) for part in inherited["PYTHONPATH"].split(os.pathsep) if part]
        inherited["PYTHONPATH"] = os.pathsep.join(parts)
    return {**inherited, **spec.environment, **spec.secrets}


def read_end(folder: Path) -> JobStatus | None:
    """The final state that exit.json tells; None where there is none yet."""
    try:
        end = json.loads((folder / "exit.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    code = end["exit_code"]
    if end["cancelled"]:
        state = JobState.CANCELLED
    elif code == 0:
        state = JobState.SUCCEEDED
    elif code == PREEMPTED_EXIT:
        state = JobState.PREEMPTED
    else:
        state = JobState.FAILED
    return JobStatus(state=state, native_state="ended", reason=end["reason"], exit_code=code)


@contextmanager
def try_lock(folder: Path, kind: int) -> Iterator[int | None]:
    """A descriptor that holds the job's lock, let go of when the block ends; None where another holds it.

    Never LOCK_UN: a supervisor that inherited the descriptor keeps the lock when this one is closed.
    """
    descriptor = os.open(folder / "job.lock", os.O_RDWR)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        os.close(descriptor)


def read_tail(path: Path, lines: int, *, block_bytes: int = 65536) -> str:
    """The last `lines` lines of a text file, read from its end."""
    if lines <= 0:
        return ""
    with open(path, "rb") as file:
        position = file.seek(0, os.SEEK_END)
        raw = b""
        while position > 0 and raw.count(b"\n") <= lines:
            step = min(block_bytes, position)
            position = file.seek(position - step)
            raw = file.read(step) + raw
    return "\n".join(raw.decode("utf-8", errors="replace").splitlines()[-lines:])
