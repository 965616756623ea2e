"""The training loop of one rank: steps, what is told of them, and commits between them.

Rejected: a Trainer class with hooks to override. A model, a strategy and a loader are composed by plain calls; whoever
wants to look on gives handlers of events.
"""

from __future__ import annotations

import time

from paddlewheel.data.loader import Loader
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe, Training
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import Commit
from paddlewheel.training.committer import Committer
from paddlewheel.training.events import BeginEpochEvent, BeginStepEvent, CheckpointEvent, EndEpochEvent, ResumeEvent
from paddlewheel.training.monitor import Monitor
from paddlewheel.training.step import Clock, Fit, prepare, run_step, snapshot, writers
from paddlewheel.training.strategies import Strategy


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
    loss is no longer a number, and whatever the user's model and handlers raise.
    """
    fit = prepare(recipe, run, commit, store=store, loader=loader, strategy=strategy)
    committer = open_committer(fit, run, store=store, monitor=monitor, attempt=attempt)
    due = Due(recipe.training)
    who = {"attempt": attempt, "rank": strategy.world.rank}
    if commit is not None:
        monitor.tell(
            ResumeEvent(
                **who,
                epoch=commit.epoch,
                step=commit.step,
                commit=commit.key,
                from_attempt=commit.attempt,
                from_world_size=commit.world_size,
                world_size=strategy.world.size,
            )
        )
    stopped, stalled = False, 0.0
    while fit.step < fit.total_steps and not stopped:
        epoch = 1 + fit.step // loader.steps_per_epoch
        end = min(epoch * loader.steps_per_epoch, fit.total_steps)
        monitor.beat("train", epoch=epoch, step=fit.step)
        monitor.tell(BeginEpochEvent(**who, epoch=epoch, step=fit.step))
        started, loss, rows = time.monotonic(), 0.0, 0
        while fit.step < end and not stopped:
            monitor.tell(BeginStepEvent(**who, epoch=epoch, step=fit.step))
            event, exchanged = run_step(
                fit,
                epoch,
                fit.step % loader.steps_per_epoch,
                who,
                stop=monitor.stop_requested(),
                commit=strategy.world.rank == 0 and due.by_time(),
                clock=Clock(checkpoint=stalled),
            )
            loss, rows = loss + event.loss * event.rows, rows + event.rows
            monitor.tell(event)
            monitor.beat(
                "train",
                epoch=epoch,
                step=fit.step,
                loss=event.loss,
                learning_rate=event.learning_rate,
                rows_per_second=event.rows / event.seconds,
            )
            monitor.check_agent()
            committer.poll()
            if fit.step == end:
                seconds = time.monotonic() - started
                monitor.tell(EndEpochEvent(**who, epoch=epoch, step=fit.step, loss=loss / rows, seconds=seconds))
            stopped = exchanged.stop
            last = stopped or fit.step == fit.total_steps
            before = time.monotonic()
            if due.after(fit.step, asked=exchanged.commit or last) and fit.sync.settled(fit.step):
                committer.start(fit.step, snapshot(fit, epoch))
                due.done()
                if not last:
                    monitor.publish_events(store, run.key, fit.step)
            stalled = time.monotonic() - before
    monitor.beat("save")
    committer.finish()
    monitor.publish_events(store, run.key, fit.step)
    return fit.step == fit.total_steps


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
        keep=fit.recipe.training.keep_checkpoints,
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
