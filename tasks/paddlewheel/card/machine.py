"""What the card says of the nodes while they trained: processors, memory, disks, network, GPUs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def machine_facts(looks: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """A line a node and one a GPU, from MachineEvents: means over the looks, and the most memory of any."""
    facts = []
    for node in sorted({look["node"] for look in looks}):
        its = [look for look in looks if look["node"] == node]
        facts.append((f"Node {node}", _node(its)))
        for index in sorted({gpu["index"] for look in its for gpu in look["gpus"]}):
            figures = [gpu for look in its for gpu in look["gpus"] if gpu["index"] == index]
            facts.append((f"GPU {index} of node {node}", _gpu(figures)))
    return facts


def told_bytes(count: float) -> str:
    """`1.5 MiB`."""
    for unit, size in UNITS:
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} B"


def _node(looks: Sequence[Mapping[str, Any]]) -> str:
    def mean(name: str) -> float:
        return statistics.fmean(look[name] for look in looks)

    most = max(looks, key=lambda look: look["memory_bytes"])
    told = [f"{mean('processors'):.1f} of {looks[0]['num_processors']} processors busy"]
    if most["memory_limit_bytes"]:
        told.append(f"at most {told_bytes(most['memory_bytes'])} of {told_bytes(most['memory_limit_bytes'])} memory")
    told.append(f"disks {told_bytes(mean('read_bytes'))} read and {told_bytes(mean('written_bytes'))} written a second")
    network = f"network {told_bytes(mean('received_bytes'))} in and {told_bytes(mean('sent_bytes'))} out a second"
    return ", ".join([*told, network])


def _gpu(figures: Sequence[Mapping[str, Any]]) -> str:
    """Of what NVML gave."""

    def given(name: str) -> list[float]:
        return [gpu[name] for gpu in figures if gpu[name] is not None]

    told = []
    if busy := given("busy"):
        told.append(f"busy {statistics.fmean(busy):.0%} of the time")
    if (taken := given("memory_bytes")) and (limit := given("memory_limit_bytes")):
        told.append(f"at most {told_bytes(max(taken))} of {told_bytes(limit[0])} memory")
    if celsius := given("celsius"):
        told.append(f"at most {max(celsius):.0f} °C")
    if watts := given("watts"):
        told.append(f"{statistics.fmean(watts):.0f} W")
    return ", ".join(told) or "no figures"
