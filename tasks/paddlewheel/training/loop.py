"""The training loop of one rank: steps, what is told of them, and commits between them.

Rejected: a Trainer class with hooks to override. A model, a strategy and a loader are composed by plain calls; whoever
wants to look on gives handlers of events.
"""

from __future__ import annotations

import time

from paddlewheel.data.loader import Loader
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import Commit
from paddlewheel.training.committer import Committer
from paddlewheel.training.events import BeginEpochEvent, BeginStepEvent, CheckpointEvent, EndEpochEvent, ResumeEvent
from paddlewheel.training.monitor import Monitor
from paddlewheel.training.step import Fit, prepare, run_step, snapshot
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
    who = {"attempt": attempt, "rank": strategy.data_rank}
    if commit is not None:
        monitor.tell(
            ResumeEvent(
                **who,
                epoch=commit.epoch,
                step=commit.step,
                commit=commit.key,
                from_attempt=commit.attempt,
                from_world_size=commit.world_size,
                world_size=strategy.data_world_size,
            )
        )
    stopped = False
    while fit.step < fit.total_steps and not stopped:
        epoch = 1 + fit.step // loader.steps_per_epoch
        end = min(epoch * loader.steps_per_epoch, fit.total_steps)
        monitor.beat("train", epoch=epoch, step=fit.step)
        monitor.tell(BeginEpochEvent(**who, epoch=epoch, step=fit.step))
        started, loss, rows = time.monotonic(), 0.0, 0
        while fit.step < end and not stopped:
            monitor.tell(BeginStepEvent(**who, epoch=epoch, step=fit.step))
            event, stopped = run_step(fit, epoch, fit.step % loader.steps_per_epoch, who, stop=monitor.stop_requested())
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
            last = stopped or fit.step == fit.total_steps
            if last or fit.step % recipe.training.checkpoint_every_steps == 0:
                committer.start(fit.step, snapshot(fit, epoch))
                if not last:
                    monitor.publish_events(store, run.key, fit.step)
    monitor.beat("save")
    committer.finish()
    monitor.publish_events(store, run.key, fit.step)
    return fit.step == fit.total_steps


def open_committer(fit: Fit, run: Manifest, *, store: Store, monitor: Monitor, attempt: int) -> Committer:
    """This rank's side of the run's commits, which tells of each that is published."""
    rank = fit.strategy.data_rank

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
            "world_size": fit.strategy.data_world_size,
            "name": fit.recipe.name,
            "recipe": run.recipe,
            "facts": {"seed": fit.loader.seed},
        },
        tell=tell,
        wait=wait,
    )
