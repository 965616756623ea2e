"""A step of the training loop against the loop that one would write by hand with Paddle, on the same rows and model.

By hand: batch, forward, backward, Paddle's ClipGradByGlobalNorm, optimizer and LR schedule, the running average, the
loss read as a number each step, paddle.save at the end. Ours adds what it is for: the order's proof, guards, events,
monitor with its heartbeat and machine figures, and commits, all at their defaults (one every 200 steps). Two works: the
flights network on a real window, and ResNet-18 on pictures of 32x32. CPU-seconds of whole processes on one core each,
less their imports and the loading of rows, in interleaved pairs; the ratio is the worse work's median of pairs.
Use: python benchmarks/trainer_step.py [--pairs 5] [--work flights resnet]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from paddlewheel.data.demos.flights import write_flights
from paddlewheel.data.encoding.fitted import Inputs
from paddlewheel.data.features import fit_features
from paddlewheel.data.ingest import ingest, plan_ingest
from paddlewheel.data.order import sample_hash
from paddlewheel.data.packed import write_packed
from paddlewheel.data.plan import plan
from paddlewheel.data.preprocess import plan_batches, preprocess
from paddlewheel.data.shard import shard
from paddlewheel.data.validate import validate
from paddlewheel.manifest import Manifest, input_of, publish_file, publish_manifest
from paddlewheel.recipe import dump, dump_json
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.run import open_run

PROJECT = Path(__file__).parents[1]
GOAL = 1.02
PICTURES, PICTURE_BATCH, PICTURE_EPOCHS = 1280, 32, 1
CHILD = r"""
import json, os, sys, time
os.sched_setaffinity(0, {int(sys.argv[4])})
how, root, run_uri = sys.argv[1:4]
from paddlewheel.training.entry import import_paddle
import_paddle()
import numpy as np, paddle
from paddlewheel.data.loader import open_loader, to_tensors
from paddlewheel.manifest import read_manifest
from paddlewheel.storage import open_store
from paddlewheel.training.models import InputSpec, build_model
from paddlewheel.training.run import read_recipe
store = open_store(root)
run = read_manifest(store, run_uri)
recipe = read_recipe(store, run)
training = recipe.training
loader = open_loader(store, run, seed=training.seed, global_batch=training.global_batch)

def ours():
    from pathlib import Path
    from tempfile import TemporaryDirectory
    from paddlewheel.training.loop import train
    from paddlewheel.training.monitor import Monitor
    from paddlewheel.training.strategies import build_strategy
    key = run.key.removeprefix("runs/")
    attempt = 1 + len(list(store.list(f"runs/{key}/attempts")))
    record = {"attempt": attempt, "resumed_from_step": 0, "world_size": 1}
    store.publish(f"runs/{key}/attempts/{attempt}.json", json.dumps(record).encode())
    with TemporaryDirectory() as folder:
        monitor = Monitor(Path(folder), rank=0, attempt=attempt)
        strategy = build_strategy(training, 0, 1)
        strategy.setup()
        begin = time.process_time()
        train(recipe, run, None, store=store, loader=loader, strategy=strategy, monitor=monitor, attempt=attempt)
        return time.process_time() - begin

def by_hand():
    begin = time.process_time()
    paddle.seed(training.seed)
    spec = InputSpec(id_sizes=tuple(run.facts["id_sizes"]), num_dense=int(run.facts["num_dense"]))
    model = build_model(recipe.model.name, spec, recipe.model.params)
    steps = training.epochs * loader.steps_per_epoch
    rate = training.optimizer.learning_rate
    if training.schedule.name == "cosine":
        warmup = training.schedule.warmup_steps
        cosine = paddle.optimizer.lr.CosineAnnealingDecay(rate, T_max=steps - warmup)
        rate = paddle.optimizer.lr.LinearWarmup(cosine, warmup_steps=warmup, start_lr=0.0, end_lr=rate)
    clip_norm = training.optimizer.clip_norm
    clip = paddle.nn.ClipGradByGlobalNorm(clip_norm) if clip_norm else None
    decayed = {one.name for one in model.parameters() if len(one.shape) > 1}
    optimizer = paddle.optimizer.AdamW(
        rate, parameters=model.parameters(), weight_decay=training.optimizer.weight_decay, grad_clip=clip,
        apply_decay_param_fun=lambda name: name in decayed,
    )
    averages = [one.detach().clone() for one in model.parameters()] if training.average_decay else []
    model.train()
    losses = []
    for epoch in range(1, training.epochs + 1):
        for step in range(loader.steps_per_epoch):
            batch = to_tensors(loader.batch(epoch, step, 0, 1))
            loss = model.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            if not isinstance(rate, float):
                rate.step()
            if averages:
                with paddle.no_grad():
                    for average, parameter in zip(averages, model.parameters()):
                        average.scale_(training.average_decay)
                        average.add_(parameter * (1 - training.average_decay))
            losses.append(float(loss))
    paddle.save(model.state_dict(), os.path.join(root.removeprefix("file://"), f"hand-{os.getpid()}.pdparams"))
    return time.process_time() - begin

seconds = ours() if how == "ours" else by_hand()
print(json.dumps({"seconds": seconds, "steps": training.epochs * loader.steps_per_epoch}))
"""


def flights_run(store: LocalStore) -> str:
    """The run of a real window of the flights recipe, made by the chain's own steps."""
    recipe = load_recipe(PROJECT / "recipes/flights_delay.yaml", {"training.checkpoint_every_steps": 200})
    write_flights(Path(store.root.removeprefix("file://")) / "landing/flights")
    planned = plan(recipe, "2013-11-01", store=store)
    ingested = [ingest(recipe, planned, batch, store=store) for batch in plan_ingest(recipe, planned, store=store)]
    shards = shard(recipe, validate(recipe, ingested, store=store), store=store)
    features = fit_features(recipe, shards, store=store)
    batches = plan_batches(recipe, shards, store=store)
    packed = [preprocess(recipe, shards, features, batch, store=store) for batch in batches]
    return open_run(recipe, packed, store=store)


def resnet_run(store: LocalStore) -> str:
    """A run of ResNet-18 over drawn pictures."""
    tree = dump(load_recipe(PROJECT / "recipes/flights_delay.yaml"))
    tree["model"] = {"name": "resnet18", "params": {"image": [3, 32, 32], "classes": 10, "stem": "large"}}
    tree["training"] = {"epochs": PICTURE_EPOCHS, "global_batch": PICTURE_BATCH, "strategy": "single"}
    tree["resources"] = {"launcher": "local"}
    recipe = load_recipe(tree)
    generator = np.random.default_rng(0)
    sample_ids_B = np.arange(PICTURES, dtype=np.uint64)
    inputs = Inputs(
        ids_BF=np.zeros((PICTURES, 0), np.int32),
        dense_BD=generator.normal(size=(PICTURES, 3 * 32 * 32)).astype(np.float32),
    )
    with store.staging() as staging:
        write_packed(staging / "rows.parquet", sample_ids_B, (sample_ids_B % 10).astype(np.float32), inputs)
        key = "datasets/pictures.packed/0"
        path = staging / "rows.parquet"
        rows = publish_file(store, f"{key}/rows.parquet", path, rows=PICTURES, facts={"role": "train"})
    packed = publish_manifest(store, Manifest(kind="packed", name="pictures", key=key, files=(rows,)))
    steps = -(-PICTURES // PICTURE_BATCH)
    facts = {
        "id_sizes": [],
        "num_dense": 3 * 32 * 32,
        "order_expected": str(sample_hash(sample_ids_B)),
        "epochs": PICTURE_EPOCHS,
        "steps_per_epoch": steps,
        "total_steps": steps * PICTURE_EPOCHS,
    }
    run = Manifest(kind="run", name="pictures", key="runs/pictures", inputs=(input_of(store, packed),), facts=facts)
    store.publish("runs/pictures/recipe.json", dump_json(recipe))
    return publish_manifest(store, run)


def measure(how: str, store: LocalStore, run: str, core: int) -> tuple[float, int]:
    """CPU-seconds of one training, and its steps."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, how, store.root, run, str(core)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    told = json.loads(child.stdout.splitlines()[-1])
    return told["seconds"], told["steps"]


def main() -> int:
    """Print a line a work, then the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--work", nargs="+", choices=["flights", "resnet"], default=["flights", "resnet"])
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    core = min(os.sched_getaffinity(0))
    ratios = []
    for work in options.work:
        with tempfile.TemporaryDirectory() as folder:
            store = LocalStore(Path(folder))
            run = {"flights": flights_run, "resnet": resnet_run}[work](store)
            pairs = []
            for _ in range(options.pairs):
                (ours, steps), (hand, _) = measure("ours", store, run, core), measure("hand", store, run, core)
                pairs.append((ours, hand))
        ratios.append(statistics.median(ours / hand for ours, hand in pairs))
        ours, hand = (1000 * statistics.median(pair[place] for pair in pairs) / steps for place in (0, 1))
        print(f"{work}: {ours:.3f} ms a step, by hand {hand:.3f} ms, ratio {ratios[-1]:.3f}", flush=True)
    ratio = max(ratios)
    print(f"trainer_step ratio={ratio:.3f} goal={GOAL} {'ok' if ratio <= GOAL else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
