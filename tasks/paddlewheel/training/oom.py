"""Whether the kernel's out-of-memory killer struck: its count of kills, read before and after.

A process that it killed ends by SIGKILL and cannot say why. The kernel's log would name it, but few may read that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def count_oom_kills(root: Path = ROOT) -> int | None:
    """Kills so far in this process's control group, or on the whole host where no group counts; None if nobody does."""
    for path in _counters(root):
        try:
            fields = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
            return int(fields["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return None


def _counters(root: Path) -> Iterator[Path]:
    """Files that may hold the count, the most telling first: cgroup v2, v1, the host."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    groups = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield groups / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            yield groups / "memory" / path.lstrip("/") / "memory.oom_control"
            # In a container the path is the host's, and the group itself is mounted as the root.
            yield groups / "memory" / "memory.oom_control"
    yield root / "proc/vmstat"
