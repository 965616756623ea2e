"""How much memory this process and its children may take together, and how much is taken: the control group's, or the
host's.

What the kernel drops when memory is short (files that nobody has read lately) is not counted as taken: a group that
reads much is always full of it. The same is what Kubernetes calls the working set.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2**63 where there is no limit


def memory_and_limit(root: Path = ROOT) -> tuple[int, int]:
    """(bytes taken, bytes allowed) of the tightest level that has a limit; (0, 0) where the system tells neither."""
    host = _host(root)
    levels = [level for level in _levels(root) if level[1] < UNLIMITED and (not host[1] or level[1] <= host[1])]
    return max([host, *levels], key=lambda level: level[0] / (level[1] or 1))


def _host(root: Path) -> tuple[int, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
        return (kib["MemTotal"] - kib["MemAvailable"]) * 1024, kib["MemTotal"] * 1024
    except (OSError, ValueError, KeyError):
        return 0, 0


def _levels(root: Path) -> Iterator[tuple[int, int]]:
    """Each group from this process's own up to the root, in cgroup v2 and v1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root / "sys/fs/cgroup", ("memory.current", "memory.max", "inactive_file")
        elif "memory" in controllers.split(","):
            # In a container the path is the host's, and the group itself is mounted as the root: `top` is asked too.
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
        else:
            continue
        below = Path(path.lstrip("/"))
        for group in dict.fromkeys([top / below, *(top / parent for parent in below.parents), top]):
            try:
                taken, limit = ((group / name).read_text().strip() for name in names[:2])
                stat = dict(one.split() for one in (group / "memory.stat").read_text().splitlines())
                if limit != "max":
                    yield max(0, int(taken) - int(stat.get(names[2], 0))), int(limit)
            except (OSError, ValueError):
                continue
