"""How a training shows while it runs: a progress bar on a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

PLAIN_LINE_SECONDS = 5.0


class TrainingProgress:
    """Receives the agent's progress: {phase, attempt, epoch, epochs, step, total_steps, loss, rows_per_second}."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def say(self, line: str) -> None:
        """A line between steps."""
        self._close()
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def update(self, progress: dict[str, Any]) -> None:
        """Show where the training stands. Called by the agent a few times a second at the most."""
        if self.quiet:
            return
        if not self.console.is_terminal:
            print(f"  {progress['line']}", file=sys.stderr, flush=True)
            return
        if not progress.get("phase"):  # an event of the training, which stays on the screen above the bar
            self.console.print(f"  {progress['line']}", markup=False, highlight=False)
            return
        if self.bar is None:
            self.bar = Progress(
                TextColumn("  {task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("training", total=1)
        if self.task is not None:
            self.bar.update(
                self.task,
                description=progress["line"],
                completed=progress.get("step") or 0,
                total=progress.get("total_steps") or 1,
            )

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
