"""Figures on their way to another tool, held back until their step is committed.

No tool takes a point back, and a training does take steps back. So a point is given away only once a commit has its
step: whatever an attempt loses, it had not told. What a dead attempt had committed and not told any more is read from
the run's own events when the next one begins. A thread gives the points away, so that no step waits for a server; a
tool that fails costs its points and a warning, never the training.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from paddlewheel.storage import Store
from paddlewheel.training.curve import read_counted
from paddlewheel.training.events import AnomalyEvent, CheckpointEvent, EndStepEvent, EvaluationEvent, Event

CLOSE_SECONDS = 60.0
MOST_POINTS = 1000  # MLflow refuses more metrics in one request
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One figure at a global step; `at` as in events."""

    name: str
    value: float
    step: int
    at: float


class Sink(Protocol):
    """One run in another tool's store."""

    def last_step(self) -> int:
        """The last step that it was told of; 0 where it is new."""
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Take the points of whole steps, in their order; MOST_POINTS at most. Raises whatever the tool raises."""
        ...

    def close(self, *, done: bool) -> None:
        """The training is over, or goes on in another attempt."""
        ...


class Held:
    """A handler of events that gives the figures of committed steps to a sink, opened in the thread that writes."""

    def __init__(self, name: str, open_sink: Callable[[], Sink], store: Store, run_key: str, *, step: int) -> None:
        self.name, self.open_sink, self.store, self.run_key, self.resumed = name, open_sink, store, run_key, step
        self.held: list[Point] = []
        self.queue: queue.Queue[list[Point] | None] = queue.Queue()
        self.waiting: list[Point] = []
        self.sink: Sink | None = None
        self.done = False
        self.warned = False
        self.thread = threading.Thread(target=self._run, name=f"writer-{name}", daemon=True)
        self.thread.start()

    def __call__(self, event: Event) -> None:
        if isinstance(event, CheckpointEvent):
            ready = [point for point in self.held if point.step <= event.step]
            self.held = [point for point in self.held if point.step > event.step]
            self.queue.put(ready)
        elif isinstance(event, AnomalyEvent) and event.back_to is not None:
            self.held = [point for point in self.held if point.step <= event.back_to]
        elif isinstance(event, (EndStepEvent, EvaluationEvent)):
            self.held += points_of({"event": type(event).__name__, **asdict(event)})

    def close(self, *, done: bool) -> None:
        """Give away what is committed; waits a minute at most."""
        self.done = done
        self.queue.put(None)
        self.thread.join(CLOSE_SECONDS)
        if self.thread.is_alive() or self.waiting:
            log.warning("%s did not take the figures of the last steps; they are in the run's events", self.name)

    def _run(self) -> None:
        while (points := self.queue.get()) is not None:
            self.waiting += points
            self._guarded(self._write)
        self._guarded(self._end)

    def _write(self) -> None:
        """Write what waits, a chunk after the other; what fails goes on waiting."""
        if self.sink is None:
            sink = self.open_sink()
            self.waiting = [*self._missed(sink.last_step()), *self.waiting]
            self.sink = sink
        while self.waiting:
            chunk = first_steps(self.waiting, MOST_POINTS)
            self.sink.write(chunk)
            self.waiting = self.waiting[len(chunk) :]

    def _end(self) -> None:
        if self.waiting:
            self._write()
        if self.sink is not None:
            self.sink.close(done=self.done)

    def _missed(self, told: int) -> list[Point]:
        """Figures of committed steps of earlier attempts that were not told any more."""
        if told >= self.resumed:
            return []
        events = read_counted(self.store, self.run_key)
        points = (point for event in events for point in points_of(event))
        return [point for point in points if told < point.step <= self.resumed]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever a foreign tool raises must not end a training
            if not self.warned:
                log.warning("%s takes no figures for now, the training goes on: %s", self.name, error)
            self.warned = True


def first_steps(points: Sequence[Point], most: int) -> Sequence[Point]:
    """The first of these points that are whole steps, `most` at most; the first step's in any case."""
    end = last = 0
    for position, point in enumerate(points, 1):
        if position == len(points) or points[position].step != point.step:
            if position > most and last:
                break
            end = last = position
    return points[:end]


def points_of(event: Mapping[str, Any]) -> Iterable[Point]:
    """The figures that an event has for a curve; none for most events."""
    values: dict[str, float] = {}
    if event["event"] == "EndStepEvent":
        values = {"loss": event["loss"], "learning_rate": event["learning_rate"], "gradient_norm": event["norm"]}
        if event["seconds"]:
            values["rows_per_second"] = event["rows"] / event["seconds"]
        values |= {f"seconds/{name}": seconds for name, seconds in event["parts"].items()}
    elif event["event"] == "EvaluationEvent":
        values = {f"validation/{name}": value for name, value in event["metrics"].items()}
    return [Point(name=name, value=value, step=event["step"], at=event["at"]) for name, value in values.items()]
