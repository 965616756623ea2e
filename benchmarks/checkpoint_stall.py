"""What commits cost a training: the share of its time at a commit every 60 s, and against a save that blocks.

A network of 25 million parameters under AdamW (100 MB and 200 MB of state) is trained by the loop itself, one rank of
one thread, with a commit every few seconds. A commit costs what steps waited for it (the part `checkpoint`: host copy,
and an older commit that is still written), which is held against a save that blocks; and the steps beside its writing
are slower than the others, which is in the share. The
first commit, whose memory is new, is not counted. The blocking save is the same copy and the same files, with nothing
going on beside it, in the same process; safetensors, digests and fsync are in both.
Use: python benchmarks/checkpoint_stall.py [--commits 6] [--seconds 4]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from paddlewheel.data.encoding.fitted import Inputs
from paddlewheel.data.order import sample_hash
from paddlewheel.data.packed import write_packed
from paddlewheel.manifest import Manifest, input_of, publish_file, publish_manifest
from paddlewheel.recipe import dump, dump_json
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore

PROJECT = Path(__file__).parents[1]
ROWS, BATCH, IDS = 6400, 64, 3_000_000
GOAL, BLOCKING_GOAL, EVERY_SECONDS = 0.01, 0.1, 60
CHILD = r"""
import json, sys, time
root, run_uri, seconds, commits = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
from paddlewheel.training.entry import import_paddle, read_recipe
import_paddle()
from pathlib import Path
from tempfile import TemporaryDirectory
from paddlewheel.data.loader import open_loader
from paddlewheel.manifest import read_manifest
from paddlewheel.storage import open_store
from paddlewheel.training import loop as loops
from paddlewheel.training.commit_writer import publish_commit
from paddlewheel.training.fit import snapshot
from paddlewheel.training.monitor import Monitor
from paddlewheel.training.strategies import build_strategy
store = open_store(root)
run = read_manifest(store, run_uri)
recipe = read_recipe(store, run)
store.publish("runs/wide/attempts/1.json", json.dumps({"attempt": 1, "resumed_from_step": 0}).encode())
begin, last, steps, spans, held = time.monotonic(), None, [], [], {}
opened = loops.open_committer
def open_and_keep(fit, *given, **named):
    held["fit"] = fit
    return opened(fit, *given, **named)
loops.open_committer = open_and_keep
def handle(event):
    now, kind = time.monotonic(), type(event).__name__
    if kind == "EndStepEvent":
        steps.append((now - event.seconds, now, event.seconds, event.parts.get("checkpoint", 0.0)))
        if len(spans) > commits:
            Path(monitor.folder, "stop").touch()
    elif kind == "CheckpointEvent":
        spans.append((now - event.seconds, now))
with TemporaryDirectory() as folder:
    monitor = Monitor(Path(folder), rank=0, attempt=1)
    monitor.handlers = [handle]
    strategy = build_strategy(recipe.training, 0, 1)
    strategy.setup()
    loader = open_loader(store, run, seed=1, global_batch=recipe.training.global_batch)
    loops.train(recipe, run, None, store=store, loader=loader, strategy=strategy, monitor=monitor, attempt=1)
blocking = []
for again in range(3):
    fit = held["fit"]
    fit.step += 1
    before = time.monotonic()
    publish_commit(store, "wide", snapshot(fit, 1), attempt=1, world_size=1, name="wide")
    blocking.append(time.monotonic() - before)
print(json.dumps({"steps": steps, "spans": spans, "blocking": blocking}))
"""


def wide_run(store: LocalStore, seconds: float) -> str:
    """A run of a wide network over drawn ids."""
    tree = dump(load_recipe(PROJECT / "recipes/flights_delay.yaml"))
    tree["model"] = {"name": "wide_deep", "params": {"embedding": 7, "hidden": [512, 256]}}
    tree["training"] = {"epochs": 1000, "global_batch": BATCH, "strategy": "single", "checkpoint_every_steps": None}
    tree["training"] |= {"checkpoint_every_seconds": max(1, round(seconds)), "keep_checkpoints": 1}
    tree["training"]["optimizer"] = {"name": "adamw", "learning_rate": 1e-4}
    tree["resources"] = {"launcher": "local"}
    recipe = load_recipe(tree)
    generator = np.random.default_rng(0)
    sample_ids_B = np.arange(ROWS, dtype=np.uint64)
    inputs = Inputs(
        ids_BF=generator.integers(0, IDS, (ROWS, 1)).astype(np.int32),
        dense_BD=generator.normal(size=(ROWS, 8)).astype(np.float32),
    )
    key = "datasets/wide.packed/0"
    with store.staging() as staging:
        write_packed(staging / "rows.parquet", sample_ids_B, (sample_ids_B % 2).astype(np.float32), inputs)
        rows = publish_file(store, f"{key}/rows.parquet", staging / "rows.parquet", rows=ROWS, facts={"role": "train"})
    packed = publish_manifest(store, Manifest(kind="packed", name="wide", key=key, files=(rows,)))
    facts = {
        "id_sizes": [IDS],
        "num_dense": 8,
        "order_expected": str(sample_hash(sample_ids_B)),
        "epochs": 1000,
        "steps_per_epoch": ROWS // BATCH,
        "total_steps": 1000 * ROWS // BATCH,
    }
    run = Manifest(kind="run", name="wide", key="runs/wide", inputs=(input_of(store, packed),), facts=facts)
    store.publish("runs/wide/recipe.json", dump_json(recipe))
    return publish_manifest(store, run)


def main() -> int:
    """Print what a commit costs, then both ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commits", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        run = wide_run(store, options.seconds)
        child = subprocess.run(
            [sys.executable, "-c", CHILD, store.root, run, str(options.seconds), str(options.commits)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
    told = json.loads(child.stdout.splitlines()[-1])
    spans = told["spans"][1 : options.commits + 1]
    steps = [step for step in told["steps"] if step[0] > told["spans"][0][1]]
    beside = [step for step in steps if any(step[0] < end and step[1] > begin for begin, end in spans)]
    quiet = statistics.median(step[2] for step in steps if step not in beside)
    slower = sum(max(0.0, step[2] - quiet) for step in beside) / len(spans)
    stall, blocking = sum(step[3] for step in steps) / len(spans), statistics.median(told["blocking"])
    writing = statistics.median(end - begin for begin, end in spans)
    print(
        f"{len(spans)} commits: steps waited {stall:.3f} s for each and lost {slower:.3f} s beside its {writing:.2f} s "
        f"of writing; a step {quiet:.3f} s; a save that blocks {blocking:.2f} s"
    )
    ratio = stall / blocking
    verdict = "ok" if ratio <= BLOCKING_GOAL else "short"
    print(f"checkpoint_stall_blocking ratio={ratio:.3f} goal={BLOCKING_GOAL} {verdict}")
    share = (stall + slower) / (EVERY_SECONDS + stall + slower)
    print(f"checkpoint_stall ratio={share:.4f} goal={GOAL} {'ok' if share < GOAL else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
