"""Where a launcher's commands run: a shell on this host, or on another one by SSH.

A command is a POSIX shell script, so that what must happen together (look whether a job exists, submit it, write its
number down) is one request, and a connection lost in the middle leaves no half of it.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Protocol


class ShellError(Exception):
    """A shell could not be reached, or did not answer in time; it says nothing about what was asked."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a script left: its exit code and both streams."""

    code: int
    stdout: str
    stderr: str


class Shell(Protocol):
    """Runs scripts somewhere."""

    def run(self, script: str, *, stdin: str = "", timeout_seconds: float = 60.0) -> Answer:
        """Run the script by bash. Raises ShellError where it cannot be known what became of it."""


@dataclass(frozen=True, kw_only=True)
class LocalShell:
    """A shell on this host."""

    def run(self, script: str, *, stdin: str = "", timeout_seconds: float = 60.0) -> Answer:
        try:
            done = subprocess.run(
                ["bash", "-c", script],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ShellError(f"a command on this host did not answer: {error}") from error
        return Answer(code=done.returncode, stdout=done.stdout, stderr=done.stderr)
