"""How a node stands while it trains, as the agent sees it from outside: every few seconds, never by step.

Rejected: a thread in each rank. It takes the interpreter's lock from the step that it measures, and of a node's disks
and network a rank knows no more than the agent.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from paddlewheel.errors import StorageError
from paddlewheel.manifest import Manifest
from paddlewheel.storage import Store
from paddlewheel.training.attempts import Attempt
from paddlewheel.training.events import MachineEvent, RankFigures, to_line
from paddlewheel.training.gpu import open_gpus
from paddlewheel.training.memory_limit import memory_and_limit
from paddlewheel.training.ranks import Rank

LOOK_SECONDS = 2.0
PUBLISH_SECONDS = 60.0
log = logging.getLogger(__name__)


class Machine:
    """Looks at this node every LOOK_SECONDS; publishes what it saw every PUBLISH_SECONDS, and at the end.

    A look costs about a millisecond of the agent's own process.
    """

    def __init__(self, store: Store, run: Manifest, attempt: Attempt, ranks: Sequence[Rank], *, device: str) -> None:
        import psutil

        self.store, self.attempt, self.ranks = store, attempt, ranks
        self.folder = f"{run.key}/events/attempt-{attempt.number}/node-0"
        self.read_gpus = open_gpus(device)
        self.num_processors = psutil.cpu_count() or 1
        self.processes: dict[int, Any] = {}
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                self.processes[rank.number] = psutil.Process(rank.process.pid)
        self.lines: list[bytes] = []
        self.last: MachineEvent | None = None
        self.chunks = 0
        self.looked = self.published = time.monotonic()
        self.before = self._counters()
        self._figures()  # the first call of cpu_percent begins to count

    def poll(self, step: int) -> None:
        """Look, or publish, where it is time. A store that refuses costs figures, not the training."""
        now = time.monotonic()
        if now - self.looked >= LOOK_SECONDS:
            self.last = self.look(step)
            self.lines.append(to_line(self.last))
        if now - self.published >= PUBLISH_SECONDS:
            self.publish()

    def look(self, step: int) -> MachineEvent:
        """The node's figures since the last look."""
        import psutil

        now, counters = time.monotonic(), self._counters()
        seconds = max(now - self.looked, 1e-3)
        moved = [max(0, new - old) / seconds for new, old in zip(counters, self.before, strict=True)]
        self.looked, self.before = now, counters
        taken, limit = memory_and_limit()
        return MachineEvent(
            attempt=self.attempt.number,
            node=0,
            step=step,
            seconds=round(seconds, 3),
            processors=round(psutil.cpu_percent() * self.num_processors / 100, 3),
            num_processors=self.num_processors,
            memory_bytes=taken,
            memory_limit_bytes=limit,
            read_bytes=round(moved[0]),
            written_bytes=round(moved[1]),
            received_bytes=round(moved[2]),
            sent_bytes=round(moved[3]),
            disk_free_bytes=psutil.disk_usage(str(self.ranks[0].folder)).free,
            ranks=self._figures(),
            gpus=self.read_gpus(),
        )

    def publish(self) -> None:
        """Move what was seen into the run, as an immutable chunk."""
        self.published = time.monotonic()
        if not self.lines:
            return
        try:
            self.store.publish(f"{self.folder}/part-{self.chunks}.jsonl", b"".join(self.lines))
        except StorageError as error:
            log.warning("figures of the node are not kept: %s", error)
        self.lines, self.chunks = [], self.chunks + 1

    def _figures(self) -> list[RankFigures]:
        """Of the ranks that live."""
        import psutil

        found = []
        for number, process in self.processes.items():
            with contextlib.suppress(psutil.Error), process.oneshot():
                busy, memory = process.cpu_percent(), process.memory_info().rss
                found.append(RankFigures(rank=number, processors=round(busy / 100, 3), rss_bytes=memory))
        return found

    def _counters(self) -> tuple[int, int, int, int]:
        """Bytes since the node's start: read and written by its disks, received and sent by its network."""
        import psutil

        disk, network = None, None
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # not every container shows them
            disk = psutil.disk_io_counters()
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            network = psutil.net_io_counters()
        return (
            disk.read_bytes if disk else 0,
            disk.write_bytes if disk else 0,
            network.bytes_recv if network else 0,
            network.bytes_sent if network else 0,
        )
