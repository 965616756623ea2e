"""Two data parallel ranks against one, a thread each, ResNet-18 on pictures of 32x32: weak scaling, and the exchanges.

Each rank has as many rows a step as the one alone. The ratio is (rows a second of two) / (2 * rows a second of one), by
the median step after the first two, in interleaved runs of the agent with its ranks; 1.0 would be no cost at all. Then
two ranks take the same steps under each exchange of gradients: bytes that a rank gave in a step, and the loss after.
Use: python benchmarks/data_parallel.py [--rows 32] [--steps 6] [--pairs 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paddlewheel.data.encoding.fitted import Inputs
from paddlewheel.data.order import sample_hash
from paddlewheel.data.packed import write_packed
from paddlewheel.manifest import Manifest, input_of, publish_file, publish_manifest
from paddlewheel.recipe import dump, dump_json
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.curve import read_curve
from paddlewheel.training.events import StepRecord

PROJECT = Path(__file__).parents[1]
GOAL = 0.95
WARM = 2
EXCHANGES: dict[str, dict[str, Any]] = {
    "dense": {},
    "bf16": {"sync": "bf16"},
    "topk, 1 %": {"sync": "topk", "exchange": {"ratio": 0.01}},
    "local_sgd, 3 steps": {"sync": "local_sgd", "exchange": {"steps": 3}},
}


def train(ranks: int, rows: int, steps: int, settings: dict[str, Any]) -> list[StepRecord]:
    """The steps of a training of ResNet-18 over drawn pictures, `rows` a rank and step."""
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        tree = dump(load_recipe(PROJECT / "recipes/flights_delay.yaml"))
        tree["model"] = {"name": "resnet18", "params": {"image": [3, 32, 32], "classes": 10}}
        tree["training"] = {"epochs": 1, "global_batch": ranks * rows, "seed": 1, **settings}
        tree["training"]["optimizer"] = {"name": "momentum", "learning_rate": 0.02}
        tree["resources"] = {"launcher": "local", "ranks_per_node": ranks}
        recipe = load_recipe(tree)
        count = ranks * rows * steps
        generator = np.random.default_rng(0)
        sample_ids_B = np.arange(count, dtype=np.uint64)
        labels_B = (sample_ids_B % 10).astype(np.float32)
        dense_BD = generator.normal(size=(count, 3 * 32 * 32)).astype(np.float32) + 0.3 * labels_B[:, None]
        with store.staging() as staging:
            path, key = staging / "rows.parquet", "datasets/pictures.packed/0"
            write_packed(path, sample_ids_B, labels_B, Inputs(ids_BF=np.zeros((count, 0), np.int32), dense_BD=dense_BD))
            shard = publish_file(store, f"{key}/rows.parquet", path, rows=count, facts={"role": "train"})
        packed = publish_manifest(store, Manifest(kind="packed", name="pictures", key=key, files=(shard,)))
        facts = {
            "partition": "2013-11-01",
            "id_sizes": [],
            "num_dense": 3 * 32 * 32,
            "order_expected": str(sample_hash(sample_ids_B)),
            "epochs": 1,
            "steps_per_epoch": steps,
            "total_steps": steps,
        }
        run = Manifest(kind="run", name="pictures", key="runs/pictures", inputs=(input_of(store, packed),), facts=facts)
        store.publish("runs/pictures/recipe.json", dump_json(recipe))
        uri = publish_manifest(store, run)
        command = [sys.executable, "-m", "paddlewheel.training.agent", uri, "--root", store.root]
        subprocess.run(
            [*command, "--ranks-per-node", str(ranks)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return list(read_curve(store, "pictures"))


def main() -> int:
    """Print a line a pair and an exchange, then the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    ratios = []
    for _ in range(options.pairs):
        one, two = (
            statistics.median(step.seconds for step in train(ranks, options.rows, options.steps, {})[WARM:])
            for ranks in (1, 2)
        )
        ratios.append(one / two)
        print(f"a step of one rank {one:.3f} s, of two {two:.3f} s: {ratios[-1]:.3f}", flush=True)
    for name, settings in EXCHANGES.items():
        steps = train(2, options.rows, options.steps, settings)
        sent = statistics.mean(step.sent_bytes for step in steps) / 1e6
        print(f"{name}: {sent:.2f} MB a rank and step, loss {steps[-1].loss:.4f} after {len(steps)} steps", flush=True)
    ratio = statistics.median(ratios)
    print(f"data_parallel ratio={ratio:.3f} goal={GOAL} {'ok' if ratio >= GOAL else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
