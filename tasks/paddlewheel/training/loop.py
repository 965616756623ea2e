"""The training loop of one rank: steps, what is told of them, and commits between them.

Rejected: a Trainer class with hooks to override. A model, a strategy and a loader are composed by plain calls; whoever
wants to look on gives handlers of events.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from paddlewheel.data.loader import Loader
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe, Training
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import Commit, Retention
from paddlewheel.training.committer import Committer
from paddlewheel.training.events import (
    AnomalyEvent,
    BeginEpochEvent,
    BeginStepEvent,
    CheckpointEvent,
    EndEpochEvent,
    EndStepEvent,
    EvaluationEvent,
    ResumeEvent,
    stamp,
)
from paddlewheel.training.fit import Fit, prepare, snapshot, writers
from paddlewheel.training.monitor import Monitor
from paddlewheel.training.rollback import go_back
from paddlewheel.training.step import Clock, run_step
from paddlewheel.training.strategies import Strategy
from paddlewheel.training.validation import measure


@dataclass(kw_only=True)
class Loop:
    """What the loop of one rank works with, and where it is. stalled: seconds that a commit made the next step wait;
    moves: what was done that is no step, for the agent's deadlines; rollbacks: of this attempt; anomaly: the last step
    that was left out."""

    fit: Fit
    run: Manifest
    store: Store
    monitor: Monitor
    committer: Committer
    due: Due
    who: dict[str, int]
    stopped: bool = False
    stalled: float = 0.0
    moves: int = 0
    rollbacks: int = 0
    anomaly: AnomalyEvent | None = None


def train(
    recipe: Recipe,
    run: Manifest,
    commit: Commit | None,
    *,
    store: Store,
    loader: Loader,
    strategy: Strategy,
    monitor: Monitor,
    attempt: int,
) -> bool:
    """Train one rank's part from `commit` (or the start) to the end; True when done, False when asked to stop.

    Either way the last step is committed, and rank 0's COMMIT is there, when this returns.
    Raises PeerError where another rank is gone, FencedError where a newer attempt has begun, ArithmeticError where the
    guard sees no way on, and whatever the user's model and handlers raise.
    """
    fit = prepare(recipe, run, commit, store=store, loader=loader, strategy=strategy)
    loop = Loop(
        fit=fit,
        run=run,
        store=store,
        monitor=monitor,
        committer=open_committer(fit, run, store=store, monitor=monitor, attempt=attempt),
        due=Due(recipe.training),
        who={"attempt": attempt, "rank": strategy.world.rank},
    )
    if commit is not None:
        monitor.tell(
            ResumeEvent(
                **loop.who,
                epoch=commit.epoch,
                step=commit.step,
                commit=commit.key,
                from_attempt=commit.attempt,
                from_world_size=commit.world_size,
                world_size=strategy.world.size,
            )
        )
    while not (loop.fit.done or loop.stopped):
        train_epoch(loop)
    monitor.beat("save")
    loop.committer.finish()
    monitor.publish_events(store, run.key, loop.fit.step, rollbacks=loop.rollbacks)
    return loop.fit.done


def train_epoch(loop: Loop) -> None:
    """Steps to the end of the epoch at hand; fewer where the training ends in it, or the state goes back."""
    fit, monitor, who = loop.fit, loop.monitor, loop.who
    per_epoch = fit.loader.steps_per_epoch
    epoch = 1 + fit.step // per_epoch
    end = min(epoch * per_epoch, fit.total_steps)
    monitor.beat("train", epoch=epoch, step=fit.step)
    monitor.tell(BeginEpochEvent(**who, epoch=epoch, step=fit.step))
    started, loss, rows = time.monotonic(), 0.0, 0
    while fit.step < end and not (fit.done or loop.stopped):
        if fit.recipe.training.handlers:
            fit.copies.wait()  # a user's handler may change what is still to be copied
        monitor.tell(BeginStepEvent(**who, epoch=epoch, step=fit.step))
        event, exchanged = run_step(
            fit,
            epoch,
            fit.step % per_epoch,
            who,
            stop=monitor.stop_requested(),
            commit=fit.strategy.world.rank == 0 and loop.due.by_time(),
            clock=Clock(checkpoint=loop.stalled),
        )
        monitor.tell(event)
        tell_where(monitor, event)
        if isinstance(event, EndStepEvent):
            loss, rows = loss + event.loss * event.rows, rows + event.rows
        else:
            loop.anomaly = event
        monitor.check_agent()
        loop.committer.poll()
        if fit.guard.must_go_back:
            roll_back(loop)
            return
        if fit.step == end:
            seconds = time.monotonic() - started
            monitor.tell(EndEpochEvent(**who, epoch=epoch, step=fit.step, loss=loss / (rows or 1), seconds=seconds))
        best = fit.scores.due(fit.step, per_epoch, settled=fit.sync.settled(fit.step)) and validate(loop, epoch)
        loop.stopped = exchanged.stop
        if fit.done and fit.guard.row:
            fit.guard.check_end(last_bad(loop))
        commit_if_due(loop, epoch, asked=exchanged.commit, best=best)


def commit_if_due(loop: Loop, epoch: int, *, asked: bool, best: bool) -> None:
    """Begin a commit where one is due, and can be made: always at the end, and of the best measurement so far."""
    fit, before = loop.fit, time.monotonic()
    last = loop.stopped or fit.done
    # Not between steps that are left out: the state may be what is wrong with them.
    due = loop.due.after(fit.step, asked=asked) and not fit.guard.row
    if fit.sync.settled(fit.step) and (due or last or best):
        loop.committer.finish()  # it reads the memory of the copies
        loop.committer.start(fit.step, snapshot(fit, epoch))
        loop.due.done()
        if not last:
            loop.monitor.publish_events(loop.store, loop.run.key, fit.step, rollbacks=loop.rollbacks)
    loop.stalled = time.monotonic() - before


def last_bad(loop: Loop) -> AnomalyEvent:
    """The event of the last step that was left out, which under local SGD may have been so on another rank alone."""
    (epoch, batch), mine = loop.fit.guard.row[-1], loop.anomaly
    if mine is not None and (mine.epoch, mine.batch) == (epoch, batch):
        return mine
    return AnomalyEvent(
        **loop.who,
        epoch=epoch,
        step=(epoch - 1) * loop.fit.loader.steps_per_epoch + batch + 1,
        kind="loss",
        value="of another rank",
        batch=batch,
        first_ids=(),
    )


def roll_back(loop: Loop) -> None:
    """Take the last commit's state; a stop that was asked for meanwhile is heeded by the next step."""
    anomaly, begun = last_bad(loop), time.monotonic()
    loop.fit = go_back(loop.fit, loop.run, loop.committer, anomaly, store=loop.store)
    loop.due.done()
    loop.moves, loop.rollbacks, loop.stalled = loop.moves + 1, loop.rollbacks + 1, 0.0
    loop.monitor.beat("train", step=loop.fit.step, moves=loop.moves)
    step, seconds = loop.fit.step, round(time.monotonic() - begun, 6)
    loop.monitor.tell(replace(anomaly, step=step, back_to=step, at=stamp(), seconds=seconds))


def validate(loop: Loop, epoch: int) -> bool:
    """Measure on the rows kept aside, and tell; whether that is the best so far. All ranks must call."""
    fit, begun, training = loop.fit, time.monotonic(), loop.fit.recipe.training

    def beat() -> None:
        loop.moves += 1
        loop.monitor.beat("validate", step=fit.step, moves=loop.moves)
        loop.monitor.check_agent()

    metrics = measure(
        fit.model,
        fit.average,
        fit.loader,
        fit.strategy,
        metric=training.validation.metric,
        micro_batch=training.micro_batch,
        beat=beat,
    )
    best = fit.scores.take(metrics[training.validation.metric], fit.step)
    loop.monitor.tell(
        EvaluationEvent(
            **loop.who,
            epoch=epoch,
            step=fit.step,
            metrics={name: value for name, value in metrics.items() if not math.isnan(value)},  # JSON has none
            rows=fit.loader.num_aside,
            best=best,
            seconds=time.monotonic() - begun,
        )
    )
    loop.monitor.beat("train", step=fit.step)
    return best


def tell_where(monitor: Monitor, event: EndStepEvent | AnomalyEvent) -> None:
    """The heartbeat after a step."""
    figures: dict[str, float] = {}
    if isinstance(event, EndStepEvent):
        figures = {
            "loss": event.loss,
            "learning_rate": event.learning_rate,
            "rows_per_second": event.rows / event.seconds,
        }
    monitor.beat("train", epoch=event.epoch, step=event.step, **figures)


class Due:
    """Whether a commit is due: by steps, which all ranks count alike, or by rank 0's clock, whose word they all get."""

    def __init__(self, training: Training) -> None:
        self.steps, self.seconds = training.checkpoint_every_steps, training.checkpoint_every_seconds
        self.pending, self.last = False, time.monotonic()

    def by_time(self) -> bool:
        """Whether so many seconds have passed since the last commit began."""
        return self.seconds is not None and time.monotonic() - self.last >= self.seconds

    def after(self, step: int, *, asked: bool) -> bool:
        """Whether a commit is to be made after `step` global steps, or was and could not be made yet."""
        self.pending = self.pending or asked or (self.steps is not None and step % self.steps == 0)
        return self.pending

    def done(self) -> None:
        """A commit has begun."""
        self.pending, self.last = False, time.monotonic()


def open_committer(fit: Fit, run: Manifest, *, store: Store, monitor: Monitor, attempt: int) -> Committer:
    """This rank's side of the run's commits, which tells of each that is published."""
    rank = fit.strategy.world.rank

    def tell(commit: Commit, seconds: float) -> None:
        monitor.tell(
            CheckpointEvent(
                attempt=attempt,
                rank=rank,
                epoch=commit.epoch,
                step=commit.step,
                commit=commit.key,
                bytes=sum(shard.bytes for shard in commit.manifest.files),
                seconds=seconds,
            )
        )

    def wait() -> None:
        monitor.beat("save")
        monitor.check_agent()

    return Committer(
        store=store,
        run_key=run.key.removeprefix("runs/"),
        attempt=attempt,
        rank=rank,
        retention=Retention(
            last=fit.recipe.training.keep_checkpoints,
            best=fit.recipe.training.keep_best,
            every_hours=fit.recipe.training.keep_every_hours,
        ),
        publish={
            "world_size": fit.strategy.world.size,
            "writers": writers(fit),
            "name": fit.recipe.name,
            "recipe": run.recipe,
            "facts": {"seed": fit.loader.seed},
        },
        tell=tell,
        wait=wait,
    )
