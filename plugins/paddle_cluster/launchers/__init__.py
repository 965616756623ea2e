"""Launchers by name. A launcher puts one job onto nodes and tells how it stands; it never reads a recipe."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from paddle_cluster.jobs import JobHandle, JobSpec, JobStatus, SubmitError

LAUNCHERS = {"local": "paddle_cluster.launchers.local:LocalLauncher"}


class Launcher(Protocol):
    """The six things that a cluster must be able to do."""

    def render(self, spec: JobSpec) -> str:
        """The text that would be submitted. Pure: no process, file or network is touched."""

    def submit(self, spec: JobSpec) -> JobHandle:
        """Start the job, or adopt the one of this name that already exists in whatever state. Raises SubmitError."""

    def find(self, name: str) -> JobHandle | None:
        """The job of this name in whatever state; None only where there has never been one, or it is forgotten."""

    def poll(self, handle: JobHandle) -> JobStatus:
        """How the job stands, without ever blocking. An unknown native state is RUNNING with a warning."""

    def cancel(self, handle: JobHandle) -> None:
        """Ask the job to end. Idempotent, and without effect on one that has ended."""

    def logs(self, handle: JobHandle, tail_lines: int) -> str:
        """The last lines that the job wrote."""


def build_launcher(name: str, **settings: Any) -> Launcher:
    """The launcher registered under `name`. Raises SubmitError naming those that exist."""
    if name not in LAUNCHERS:
        raise SubmitError(f"no launcher {name!r}; this version has {', '.join(sorted(LAUNCHERS))}")
    module, _, attribute = LAUNCHERS[name].partition(":")
    launcher: Launcher = getattr(importlib.import_module(module), attribute)(**settings)
    return launcher
