"""Groups read by child processes: a reader that crashes in native code costs a file, not the task.

Rejected: multiprocessing and its pools, which pickle, fork a process with threads in it, and hang or fail as a whole
where one worker dies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from paddlewheel.data.tables.group import GroupJob, GroupResult
from paddlewheel.errors import DataError, PaddlewheelError, RecipeError, StorageError

# What native code dies of where the bytes of a file lead it astray.
CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
OUT_OF_MEMORY_WORDS: Final = ("memory allocation of", "bad_alloc", "Cannot allocate memory", "out of memory")
MAX_CRASHES: Final = 20  # of one group: each costs a new process and the group read again
TAIL_BYTES: Final = 2_000
PIPE_BYTES: Final = 1 << 16
KINDS: Final[Mapping[str, type[PaddlewheelError]]] = {
    "DataError": DataError, "UnreadableFile": DataError, "RecipeError": RecipeError, "StorageError": StorageError,
}  # fmt: skip
log = logging.getLogger(__name__)


class ReaderKilled(PaddlewheelError):
    """A reader was killed from outside, most likely for want of memory. Unlike a bad file, it may go well elsewhere."""

    exit_code = DataError.exit_code


class _Died(Exception):
    """A child ended in the middle of a group. signal: what it died of, None where it just ended."""

    def __init__(self, code: int, file: str | None, tail: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.file, self.tail = code, file, tail

    @property
    def crashed(self) -> bool:
        return -self.code in CRASHES and not self.starved

    @property
    def starved(self) -> bool:
        """For want of memory: the kernel's killer, or an allocator that gave up."""
        gave_up = self.code == -signal.SIGABRT and any(words in self.tail for words in OUT_OF_MEMORY_WORDS)
        return self.code == -signal.SIGKILL or gave_up

    @property
    def how(self) -> str:
        return signal.Signals(-self.code).name if self.code < 0 else f"exit code {self.code}"


class Readers:
    """Up to `count` child processes that share the processor's cores, each kept for many groups.

    Use as a context; `read` may be called from any number of threads, and waits for its turn.
    """

    def __init__(self, count: int, *, secrets: Mapping[str, str] | None = None) -> None:
        self._environment = _environment(count, secrets or {})
        self._count = count
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._turn = threading.Condition()
        self._running = 0
        self._alone = False
        self._closed = False

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._closed = True
            reading = self._children.difference(self._idle)
            for child in self._idle:
                child.close()
        for child in reading:
            child.kill()  # whoever reads from it meets its end, and closes it

    def read(self, job: GroupJob, folder: Path) -> GroupResult:
        """What `group.read_group` writes into the empty `folder` and returns, with files that crash it unreadable.

        Raises DataError, RecipeError or StorageError as the reader did, DataError for a fault in a reader's own code,
        ReaderKilled where it was killed, tried alone, and killed again.
        """
        crashed: dict[str, str] = {}
        alone = False
        while True:
            left = replace(job, files=tuple(file for file in job.files if file.name not in crashed))
            try:
                with self._slot(alone=alone):
                    result = self._read_once(left, folder)
            except _Died as death:
                if self._closed:
                    raise RuntimeError("the readers were closed") from None
                if death.crashed and death.file is not None and len(crashed) < MAX_CRASHES:
                    crashed[death.file] = f"its reader crashed in native code ({death.how})"
                    log.warning("ingest: %s: %s\n%s", death.file, crashed[death.file], death.tail)
                elif death.starved and not alone:
                    alone = True
                    log.warning("ingest: a reader died (%s) at %s; tried again alone", death.how, death.file)
                else:
                    raise _death_message(job, death, crashed) from None
                _empty(folder)
                continue
            return replace(result, unreadable={**result.unreadable, **crashed})

    @contextlib.contextmanager
    def _slot(self, *, alone: bool) -> Iterator[None]:
        """A turn beside others, or by itself, with no other child holding memory."""
        with self._turn:
            if not alone:
                self._turn.wait_for(lambda: not self._alone and self._running < self._count)
            else:
                self._turn.wait_for(lambda: not self._alone)
                self._alone = True
                self._turn.wait_for(lambda: self._running == 0)
                for child in self._idle:
                    self._children.discard(child)
                    child.close()
                self._idle.clear()
            self._running += 1
        try:
            yield
        finally:
            with self._turn:
                self._running -= 1
                if alone:
                    self._alone = False
                self._turn.notify_all()

    def _read_once(self, job: GroupJob, folder: Path) -> GroupResult:
        with self._turn:
            if self._closed:
                raise RuntimeError("the readers were closed")
            child = self._idle.pop() if self._idle else _Child(self._environment)
            self._children.add(child)
        try:
            result = child.read(job, folder)
        except BaseException:
            with self._turn:
                self._children.discard(child)
            child.close()
            raise
        with self._turn:
            self._idle.append(child)
        return result


class _Child:
    """One process of `data.group_worker`, the first of a process group: what a reader forks ends with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process is there)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "paddlewheel.data.tables.group_worker", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=dict(environment), bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        self._death = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None

    def read(self, job: GroupJob, folder: Path) -> GroupResult:
        """The group's result. Raises _Died, or the error that the reader raised."""
        file = None
        work = json.dumps({"job": job.to_json(), "folder": str(folder)}) + "\n"
        with contextlib.suppress(BrokenPipeError):
            self._send(work.encode())
        for line in self._lines():
            entry = json.loads(line)
            if "file" in entry:
                file = entry["file"]
            elif "fault" in entry:
                raise _fault(job, entry["fault"])
            else:
                return GroupResult.from_json(entry["result"])
        self._end_group()
        raise _Died(self._process.wait(), file, self._tail())

    def _send(self, content: bytes) -> None:
        if self._process.stdin is None:
            raise RuntimeError("a reader without a pipe")
        view = memoryview(content)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _lines(self) -> Iterator[bytes]:
        """Whole lines until the process is dead, which the pipe does not tell where a reader has forked."""
        if self._process.stdout is None:
            raise RuntimeError("a reader without a pipe")
        pipe, rest = self._process.stdout.fileno(), b""
        watched = [pipe] if self._death is None else [pipe, self._death]
        with selectors.DefaultSelector() as selector:
            for one in watched:
                selector.register(one, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                chunk = os.read(pipe, PIPE_BYTES) if pipe in ready else b""
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process, whatever it does, and what it forked."""
        if self._process.returncode is None:
            self._end_group()
            self._process.wait()

    def close(self) -> None:
        """End the process, and close what leads to it."""
        self.kill()
        if self._death is not None:
            os.close(self._death)
            self._death = None
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):  # what it was never sent
                if file is not None:
                    file.close()

    def _tail(self) -> str:
        """The end of what it wrote to standard error, without Python's list of every extension that was loaded."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 10 * TAIL_BYTES))
        told = self._errors.read().decode(errors="replace").partition("\nExtension modules:")[0]
        return told[-TAIL_BYTES:].strip()


def _environment(count: int, secrets: Mapping[str, str]) -> dict[str, str]:
    """This process' own environment and import path, the cores shared out, and the secrets that readers need."""
    threads = max(1, num_cores() // count)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, **secrets, "PYTHONPATH": path, "POLARS_MAX_THREADS": str(threads)}


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fault(job: GroupJob, fault: Mapping[str, Any]) -> Exception:
    """What a child raised, as it is raised here. OSError keeps its number: the store tells a full disk by it."""
    if fault["kind"] in KINDS:
        return KINDS[fault["kind"]](fault["text"])
    if fault["errno"] is not None:
        return OSError(fault["errno"], os.strerror(fault["errno"]))
    if fault["kind"] == "MemoryError":
        return _Died(-signal.SIGKILL, None, fault["trace"])
    names = _names([file.name for file in job.files])
    return DataError(
        f"{job.source['name']}: the reader of format {job.source['format']!r} failed on {names}: {fault['kind']}: "
        f"{fault['text']}\n{fault['trace']}"
    )


def _death_message(job: GroupJob, death: _Died, crashed: Mapping[str, str]) -> PaddlewheelError:
    at = death.file or _names([file.name for file in job.files])
    tail = f"\nThe last that it wrote:\n{death.tail}" if death.tail else ""
    if death.starved:
        return ReaderKilled(
            f"{at}: the process that reads it was killed ({death.how}) twice, the second time with no other beside it: "
            f"most likely it ran out of memory; give the worker more memory, or deliver smaller files{tail}"
        )
    if crashed:
        return DataError(
            f"{_names(list(crashed))} crashed the reader, and {at} once more ({death.how}): too many{tail}"
        )
    return DataError(f"{at}: the process that reads it ended unexpectedly ({death.how}){tail}")


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more files" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _empty(folder: Path) -> None:
    """Take away what a dead reader had begun to write."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
