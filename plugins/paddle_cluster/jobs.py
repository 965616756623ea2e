"""Nouns of a job: what is asked for, what was started, how it stands. Plain data, JSON between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class SubmitError(Exception):
    """A launcher could not start a job; the message names what was refused and the way out."""


class JobFailed(Exception):
    """A job ended without a result; the message carries the cause, the verdict and where the logs are."""


class JobState(StrEnum):
    """States of a job on every launcher. The last five are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether a job in this state can still change."""
        return self not in (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a job takes. Devices and memory are per node; `gpus_per_node` 0 means CPU ranks."""

    nodes: int = 1
    ranks_per_node: int = 1
    cpus_per_node: int = 1
    gpus_per_node: int = 0
    memory_mib_per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job: an agent's command, run once on each node. `name` is deterministic and makes `submit` idempotent.

    options: of the launcher's own kind (a queue's partition, a pod's template); one that it does not know is refused.
    secrets: more of the environment, which a launcher hands to the job's processes and to nothing else: never rendered,
    never in a file or a log.
    """

    name: str
    command: tuple[str, ...]
    resources: Resources = field(default_factory=Resources)
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    working_directory: str | None = None
    time_limit_seconds: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobHandle:
    """Where a submitted job can be found again. Survives the process that submitted it, as JSON."""

    launcher: str
    name: str
    native_id: str
    location: str = ""

    def to_json(self) -> dict[str, str]:
        """Plain JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> JobHandle:
        """The handle that `to_json` gave."""
        return JobHandle(**tree)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """How a job stands: our state, the launcher's own word and reason, and the exit code once there is one."""

    state: JobState
    native_state: str = ""
    reason: str = ""
    exit_code: int | None = None
