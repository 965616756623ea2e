"""What stands between the local launcher and one job: runs its command, enforces its limits, records its end.

Started as `python -I -S local_supervisor.py FOLDER LOCK_FD` with the job's environment, and the job's lock already
held on LOCK_FD. Three processes come of it, none with a thread, all in a session of their own:

    keeper       outlives the supervisor; when that dies it ends whatever the job left, then lets go of the lock
    supervisor   starts the command, watches for `cancel` and the time limit, writes exit.json last
    command      with LOCK_FD inherited, so that the lock is held for as long as it lives

Only the standard library, and of it only what starts fast. The pids in started.json are for people; nothing decides by
them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCH_SECONDS = 0.2
CANNOT_START = 127
WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def main(folder: str, lock_fd: int) -> None:
    """Become keeper and supervisor; the first process returns at once, so that the submitter can go on."""
    if os.fork():
        os._exit(0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.fork()
    if not supervisor:
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        supervise(folder, lock_fd)
        os._exit(0)
    # A terminated group must not lose the process that cleans up; the supervisor takes the signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.waitpid(supervisor, 0)
    end_descendants()
    os._exit(0)


def supervise(folder: str, lock_fd: int) -> None:
    """Run the command to its end and write exit.json when no process of the job is left."""
    spec = read_json(os.path.join(folder, "spec.json"))
    started = {"supervisor_pid": os.getpid(), "host": os.uname().nodename, "started_at": time.time()}
    write_json(os.path.join(folder, "started.json"), started)
    if os.path.exists(os.path.join(folder, "cancel")):
        write_exit(folder, exit_code=None, cancelled=True, reason="cancelled before it started")
        return
    try:
        command = subprocess.Popen(
            spec["command"],
            cwd=spec["working_directory"],
            stdin=subprocess.DEVNULL,
            pass_fds=(lock_fd,),
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 (this process has no threads)
        )
    except OSError as error:
        reason = f"{spec['command'][0]!r} could not be started in {spec['working_directory']}: {error}"
        print(reason, file=sys.stderr, flush=True)
        write_exit(folder, exit_code=CANNOT_START, cancelled=False, reason=reason)
        return
    write_json(os.path.join(folder, "started.json"), {**started, "command_pid": command.pid})
    cancelled, reason = watch(command, folder, spec)
    code = command.returncode
    end_descendants()
    if code < 0:
        reason = reason or f"killed by {signal.Signals(-code).name}"
        code = 128 - code
    write_exit(folder, exit_code=code, cancelled=cancelled, reason=reason)


def watch(command: subprocess.Popen[bytes], folder: str, spec: dict[str, Any]) -> tuple[bool, str]:
    """Wait for the command; end it when asked or due. Returns (whether a cancel ended it, why it was ended)."""
    limit = spec["time_limit_seconds"]
    due = None if limit is None else time.monotonic() + limit
    kill_at: float | None = None
    cancelled, reason = False, ""
    while command.poll() is None:
        caught = signal.sigtimedwait(WATCHED, WATCH_SECONDS)
        now = time.monotonic()
        if caught is not None and caught.si_signo == signal.SIGTERM and kill_at is None:
            # The host is going down or the job is pre-empted: the agent commits and says so by its exit code.
            signal_group(command.pid, signal.SIGTERM)
            reason = "the supervisor was told to stop"
            kill_at = now + spec["grace_seconds"]
        if not cancelled and os.path.exists(os.path.join(folder, "cancel")):
            signal_group(command.pid, signal.SIGTERM)
            cancelled, reason = True, "cancelled"
            kill_at = now + spec["grace_seconds"]
        if due is not None and now >= due and kill_at is None:
            signal_group(command.pid, signal.SIGTERM)
            reason = f"passed its time limit of {limit} s"
            kill_at = now + spec["grace_seconds"]
        if kill_at is not None and now >= kill_at:
            signal_group(command.pid, signal.SIGKILL)
            kill_at = now + WATCH_SECONDS
    return cancelled, reason


def die_with(parent: int) -> Any:
    """A function for the new process: it dies by SIGKILL when the process `parent` ends, however that ends."""

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(CANNOT_START)

    return prepare


def end_descendants() -> None:
    """Kill every process that descends from this one and reap it; returns when none is left.

    This process is a subreaper: whatever the job started and abandoned has become its child.
    """
    while True:
        for pid in children_of(os.getpid()):
            kill_tree(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill_tree(pid: int) -> None:
    """SIGKILL a process and, before it, all that descend from it."""
    for child in children_of(pid):
        kill_tree(child)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Pids of the direct children of all threads of `pid`."""
    found = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    return found


def signal_group(group: int, number: int) -> None:
    """Signal the command's process group, if there still is one."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def prctl(option: int, value: int) -> None:
    """The Linux call of this name. Raises OSError."""
    if LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def write_exit(folder: str, *, exit_code: int | None, cancelled: bool, reason: str) -> None:
    """Record the end of the job."""
    tree = {"exit_code": exit_code, "cancelled": cancelled, "reason": reason, "ended_at": time.time()}
    write_json(os.path.join(folder, "exit.json"), tree)


def write_json(path: str, tree: dict[str, Any]) -> None:
    """Write a file that others find whole or not at all."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(tree, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: str) -> dict[str, Any]:
    """A file that `write_json` wrote."""
    with open(path, encoding="utf-8") as file:
        tree: dict[str, Any] = json.load(file)
    return tree


LIBC = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
