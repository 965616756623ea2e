"""One rank as a process: `python -m paddlewheel.training.entry --run RUN_URI --root ROOT --attempt N --work FOLDER`.

Its rank and the others' addresses stand in the PADDLE_* environment, set by the agent. The exit code says what kind of
end it was (docs/architecture.md); an error leaves error-R.json in FOLDER before.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddlewheel.errors import CheckpointError, DataError, RecipeError, StorageError
from paddlewheel.manifest import Manifest, read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store, open_store
from paddlewheel.training.checkpoint import Commit, FencedError, newest_commit
from paddlewheel.training.monitor import Monitor
from paddlewheel.training.peers import PeerError
from paddlewheel.training.run import read_recipe
from paddlewheel.training.writers import check_writers, open_writers

EXIT_CODES = {"done": 0, "user": 10, "data": 11, "memory": 12, "node": 13, "stopped": 14, "fenced": 17, "storage": 18}
KINDS: Sequence[tuple[type[BaseException], str]] = (
    (FencedError, "fenced"),
    (StorageError, "storage"),
    (DataError, "data"),
    (RecipeError, "data"),
    (PeerError, "node"),
    (MemoryError, "memory"),
)
OUT_OF_MEMORY = ("ResourceExhausted", "Out of memory", "out of memory", "Cannot allocate memory")
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank to its end; the exit code."""
    parser = argparse.ArgumentParser(prog="paddlewheel.training.entry", description="One rank of a training.")
    parser.add_argument("--run", required=True, help="URI of the run's manifest")
    parser.add_argument("--root", required=True, help="URI of the store")
    parser.add_argument("--attempt", required=True, type=int)
    parser.add_argument("--work", required=True, type=Path, help="the attempt's folder on this host")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    options = parser.parse_args(argv)
    rank, world_size = int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    heed_signals(options.work)
    monitor = Monitor(options.work, rank=rank, attempt=options.attempt)
    try:
        monitor.beat("start")
        store = open_store(options.root)
        done = run_rank(store, options.run, monitor, device=options.device, rank=rank, world_size=world_size)
    except (Exception, SystemExit) as error:  # a user's sys.exit() is no end of the training
        kind = kind_of(error)
        log.exception("rank %d ends: %s", rank, kind)
        monitor.write_error(kind, error)
        return EXIT_CODES[kind]
    monitor.beat("done")
    return EXIT_CODES["done" if done else "stopped"]


def run_rank(store: Store, run_uri: str, monitor: Monitor, *, device: str, rank: int, world_size: int) -> bool:
    """Join the others, load, train; True when the run is trained to its end."""
    run = read_manifest(store, run_uri)
    recipe = with_micro_batch(read_recipe(store, run), store, run, monitor.attempt)
    check_writers(recipe.training.writers, store)
    import_paddle()
    heed_signals(monitor.folder)  # Paddle sets handlers of its own when it is imported
    import paddle

    from paddlewheel.data.loader import open_loader
    from paddlewheel.training.loop import train
    from paddlewheel.training.strategies import build_strategy

    paddle.set_device(device)
    monitor.beat("rendezvous", epochs=recipe.training.epochs)
    strategy = build_strategy(recipe.training, rank, world_size)
    strategy.setup()
    monitor.beat("load")
    training = recipe.training
    loader = open_loader(
        store, run, seed=training.seed, global_batch=training.global_batch, aside=training.validation.fraction
    )
    commit = find_start(store, run, monitor.attempt)
    monitor.beat("load", total_steps=recipe.training.epochs * loader.steps_per_epoch, step=commit.step if commit else 0)
    kept = open_writers(recipe, store, run, step=commit.step if commit else 0) if rank == 0 else []
    monitor.handlers = [*kept, *load_handlers(recipe)]
    done = train(
        recipe, run, commit, store=store, loader=loader, strategy=strategy, monitor=monitor, attempt=monitor.attempt
    )
    for writer in kept:
        writer.close(done=done)
    strategy.close()
    return done


def heed_signals(work: Path) -> None:
    """Turn a SIGTERM into a stop that all ranks heed at the end of their step; leave SIGINT to the agent.

    A terminal's Ctrl-C and a scheduler's notice reach every process of a group, not the agent alone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: (work / "stop").touch())


def read_record(store: Store, run: Manifest, attempt: int) -> dict[str, Any]:
    """What the agent wrote of this attempt when it began."""
    record: dict[str, Any] = json.loads(store.read(f"{run.key}/attempts/{attempt}.json"))
    return record


def with_micro_batch(recipe: Recipe, store: Store, run: Manifest, attempt: int) -> Recipe:
    """The recipe with the micro-batch of this attempt, which is smaller after one that ran out of memory."""
    rows = read_record(store, run, attempt).get("micro_batch")
    return recipe if rows is None else replace(recipe, training=replace(recipe.training, micro_batch=int(rows)))


def find_start(store: Store, run: Manifest, attempt: int) -> Commit | None:
    """The commit that attempts/N.json says this attempt goes on from; None for the start.

    Raises CheckpointError where that commit cannot be read any more.
    """
    step = int(read_record(store, run, attempt)["resumed_from_step"])
    if step == 0:
        return None
    commit = newest_commit(store, run.key.removeprefix("runs/"), before_attempt=attempt + 1)
    if commit is None or commit.step != step:
        found = "none" if commit is None else f"the newest is of step {commit.step}"
        raise CheckpointError(
            f"attempt {attempt} of {run.key} goes on from a commit at step {step}, which is not there whole ({found})"
        )
    return commit


def load_handlers(recipe: Recipe) -> list[Callable[[Any], Any]]:
    """The user's handlers, `package.module:name`."""
    from paddlewheel.training.models import import_name

    return [import_name(name, f"training.handlers.{index}") for index, name in enumerate(recipe.training.handlers)]


def kind_of(error: BaseException) -> str:
    """Which kind of end an error is; what nobody here raises is the user's model's or handler's."""
    for kind, name in KINDS:
        if isinstance(error, kind):
            return name
    if isinstance(error, OSError) and error.errno in DISK_FAULTS:
        return "storage"
    return "memory" if any(sign in str(error) for sign in OUT_OF_MEMORY) else "user"


def import_paddle() -> None:
    """Import Paddle without its notes on ccache."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
