"""What a rank writes into its attempt's folder: heartbeat, error, events; and the stop that it reads there.

The agent on the same host reads these files. Plain files beside the process rather than a socket: they outlive a rank
that dies, and a rank that hangs leaves its last words.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from paddlewheel.storage import Store
from paddlewheel.training.events import BeginStepEvent, Event, to_line
from paddlewheel.training.peers import PeerError

HEARTBEAT_SECONDS = 0.2
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Monitor:
    """One rank's files. `beat` is cheap enough for every step: it writes at most five times a second."""

    def __init__(self, folder: Path, *, rank: int, attempt: int) -> None:
        self.folder, self.rank, self.attempt = folder, rank, attempt
        self.handlers: Sequence[Callable[[Event], Any]] = ()
        self._state: dict[str, Any] = {"rank": rank, "pid": os.getpid(), "phase": "start"}
        self._written = -1e9
        self._stepped = False  # whether a step was told since the last change of phase
        self._agent = os.getppid()
        self._lines: BinaryIO | None = None

    def beat(self, phase: str, **fields: Any) -> None:
        """Say that this rank lives, and where it is. A change of phase and the first step after it are always written.

        Else a rank that hangs in its second step, soon after the first, would never have told of the first.
        """
        now = time.monotonic()
        changed = phase != self._state["phase"] or self._written < 0
        moved = fields.get("step") not in (None, self._state.get("step"))
        first_step = moved and not changed and not self._stepped
        self._stepped = first_step or (self._stepped and not changed)
        self._state.update(fields, phase=phase, monotonic=now)
        if changed or first_step or now - self._written >= HEARTBEAT_SECONDS:
            write_atomically(self.folder / f"heartbeat-{self.rank}.json", json.dumps(self._state).encode())
            self._written = now

    def stop_requested(self) -> bool:
        """Whether the agent asks all ranks to commit and leave."""
        return (self.folder / "stop").exists()

    def check_agent(self) -> None:
        """Raises PeerError where the process that started this rank is gone: nobody would read its files any more."""
        if os.getppid() != self._agent:
            raise PeerError("the agent that started this rank is gone")

    def tell(self, event: Event) -> None:
        """Hand an event to the handlers, and append it to the events that are not published yet."""
        if not isinstance(event, BeginStepEvent):
            if self._lines is None:
                self._lines = self._path.open("ab", buffering=0)
            self._lines.write(to_line(event))
        for handler in self.handlers:
            handler(event)

    def publish_events(self, store: Store, run_folder: str, step: int, *, rollbacks: int = 0) -> None:
        """Move the events so far into the run, as an immutable chunk named by the last step in it.

        rollbacks: how often the attempt took steps back itself, and so may come to a step again.
        """
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        if not self._path.exists() or not self._path.stat().st_size:
            return
        name = f"step-{step}-back-{rollbacks}.jsonl" if rollbacks else f"step-{step}.jsonl"
        store.publish(f"{run_folder}/events/attempt-{self.attempt}/rank-{self.rank}/{name}", self._path.read_bytes())
        self._path.write_bytes(b"")

    def write_error(self, kind: str, error: BaseException) -> None:
        """Leave the reason of death for the agent: error-R.json."""
        tree = {
            "kind": kind,
            "type": type(error).__name__,
            "message": str(error),
            "trace": "".join(traceback.format_exception(error)),
        }
        with contextlib.suppress(OSError):
            write_atomically(self.folder / f"error-{self.rank}.json", json.dumps(tree).encode())

    @property
    def _path(self) -> Path:
        return self.folder / f"rank-{self.rank}.jsonl"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a local file whole; not made durable, since only this boot's agent reads it."""
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        return int(os.pread(_statm(), 128, 0).split()[1]) * PAGE_BYTES
    except OSError:
        return 0


@functools.cache
def _statm() -> int:
    """The system's file on this process, opened once: each step reads it."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
