"""One rank: it loads the newest commit under a strategy, and commits again without a step.

It tells the bytes of its optimizer's state on its standard output.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from paddlewheel.data.loader import open_loader
from paddlewheel.manifest import read_manifest
from paddlewheel.storage import open_store
from paddlewheel.training.checkpoint import newest_commit
from paddlewheel.training.commit_writer import publish_commit, publish_part
from paddlewheel.training.entry import read_recipe
from paddlewheel.training.fit import prepare, snapshot, tensors_of, writers
from paddlewheel.training.strategies import build_strategy
from paddlewheel.training.sync.flat import bytes_of


def main(root: str, run_uri: str, attempt: int, strategy_name: str) -> None:
    """Commit as `attempt` what the newest commit holds."""
    rank, world_size = int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"])
    store = open_store(root)
    run = read_manifest(store, run_uri)
    recipe = read_recipe(store, run)
    training = replace(recipe.training, strategy=strategy_name)
    recipe, run_key = replace(recipe, training=training), run.key.removeprefix("runs/")
    strategy = build_strategy(training, rank, world_size)
    strategy.setup()
    commit = newest_commit(store, run_key, before_attempt=attempt)
    if commit is None:
        raise FileNotFoundError(f"no commit of {run_key}")
    loader = open_loader(store, run, seed=training.seed, global_batch=training.global_batch)
    fit = prepare(recipe, run, commit, store=store, loader=loader, strategy=strategy)
    print(bytes_of(*tensors_of(fit)[1].values()))
    taken = snapshot(fit, commit.epoch)
    if taken is not None and rank != 0:
        publish_part(store, run_key, taken, attempt=attempt, rank=rank)
    elif taken is not None:
        publish_commit(
            store, run_key, taken, attempt=attempt, world_size=world_size, name=recipe.name, writers=writers(fit)
        )
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
