"""Committing in the background: the step goes on while ranks write the host copies taken between two steps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paddlewheel.errors import StorageError
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import (
    COMMIT_NAME,
    Commit,
    Retention,
    check_fence,
    commit_folder,
    remove_old_commits,
)
from paddlewheel.training.commit_writer import (
    MOST_POLL_SECONDS,
    POLL_SECONDS,
    Snapshot,
    publish_commit,
    publish_part,
)

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Committer:
    """One rank's side of commits. `publish` is given to publish_commit; `tell` hears of each commit of this rank,
    with its seconds; `wait` is called again and again while a commit is waited for.

    Other ranks than 0 write their pieces, or nothing, and wait for COMMIT.json where rank 0 waits, so that nobody waits
    for rank 0 in a collective, which would give up after 30 seconds.
    """

    store: Store
    run_key: str
    attempt: int
    rank: int
    retention: Retention
    publish: dict[str, Any]
    tell: Callable[[Commit, float], None]
    wait: Callable[[], None]
    _thread: threading.Thread | None = field(default=None, init=False)
    _step: int | None = field(default=None, init=False)
    _done: tuple[Commit, float] | None = field(default=None, init=False)
    _error: BaseException | None = field(default=None, init=False)

    def start(self, step: int, snapshot: Snapshot | None) -> None:
        """Begin the commit of `step`, the last one having ended; ranks that write give the snapshot."""
        self._step = step
        if snapshot is not None:
            self._thread = threading.Thread(target=self._write, args=(snapshot,), name=f"commit-{step}")
            self._thread.start()

    def poll(self) -> None:
        """Tell of a commit that has ended meanwhile. Raises what went wrong with it."""
        if self._thread is not None and not self._thread.is_alive() and (self._error or self._done):
            self.finish()

    def finish(self) -> None:
        """Wait for the commit under way. Raises what went wrong with it, FencedError on every rank."""
        if self._step is None:
            return
        key = f"{commit_folder(self.run_key, self._step, self.attempt)}/{COMMIT_NAME}"
        pause = POLL_SECONDS
        while self._thread is not None and self._thread.is_alive():
            self.wait()
            self._thread.join(POLL_SECONDS)
        while self._error is None and self._done is None and self.store.stat(key) is None:
            self.wait()
            check_fence(self.store, self.run_key, self.attempt)
            time.sleep(pause)
            pause = min(2 * pause, MOST_POLL_SECONDS)
        self._thread, self._step = None, None
        error, done, self._error, self._done = self._error, self._done, None, None
        if error is not None:
            raise error
        if done is not None:
            self.tell(*done)

    def _write(self, snapshot: Snapshot) -> None:
        started = time.monotonic()
        try:
            if self.rank != 0:
                publish_part(self.store, self.run_key, snapshot, attempt=self.attempt, rank=self.rank)
                return
            commit = publish_commit(self.store, self.run_key, snapshot, attempt=self.attempt, **self.publish)
            self._done = (commit, time.monotonic() - started)
        except BaseException as error:
            self._error = error
            return
        try:
            remove_old_commits(self.store, self.run_key, retention=self.retention, attempt=self.attempt)
        except StorageError as error:  # costs space, not the training
            log.warning("old commits of run %s stay: %s", self.run_key, error)
