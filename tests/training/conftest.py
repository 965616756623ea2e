"""Small runs made by hand, and real ranks as processes: what the agent does, without the agent."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.data.encoding.fitted import Inputs
from paddlewheel.data.order import kept_aside, sample_hash
from paddlewheel.data.packed import write_packed
from paddlewheel.manifest import Manifest, input_of, publish_file, publish_manifest
from paddlewheel.recipe import dump_json
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.checkpoint import Commit, newest_commit

ID_SIZES, NUM_DENSE = (7, 4, 11), 3
RUN_KEY = "0123456789abcdef0123"
COLUMNS = [{"name": name, "type": "int64"} for name in ("a", "b")] + [
    {"name": "label", "type": "int64", "known": "after"}
]
TREE: dict[str, Any] = {
    "name": "small",
    "title": "Small",
    "data": {
        "landing": "landing",
        "rows": {"name": "rows", "path": "{partition}.csv", "columns": COLUMNS},
        "label": {"column": "label", "above": 0},
        "window": {"train_days": 1, "holdout_days": 1},
    },
    "features": [{"name": "a", "kind": "standard", "columns": ["a"]}],
    "model": {"name": "deepfm", "params": {"embedding": 4, "hidden": [8]}},
    "training": {"epochs": 2, "global_batch": 16, "seed": 5, "checkpoint_every_steps": 4},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run in a store of its own, and the way to start attempts of it. `ids`: sample ids of its training rows."""

    store: LocalStore
    uri: str
    ids: np.ndarray
    folder: Path

    def start_attempt(self, attempt: int, *, world_size: int = 1, resumed_from_step: int | None = None) -> None:
        """What the agent writes before it starts ranks."""
        if resumed_from_step is None:
            commit = newest_commit(self.store, RUN_KEY, before_attempt=attempt)
            resumed_from_step = commit.step if commit else 0
        record = {
            "attempt": attempt,
            "resumed_from_step": resumed_from_step,
            "world_size": world_size,
            "host": "node-1",
            "pid": 4711,
            "started": "2013-11-02T03:00:00+00:00",
        }
        self.store.publish(f"runs/{RUN_KEY}/attempts/{attempt}.json", json.dumps(record).encode())
        self.work(attempt).mkdir()

    def work(self, attempt: int) -> Path:
        """The attempt's folder on this host."""
        return self.folder / f"work-{attempt}"

    def launch(self, attempt: int, *, world_size: int = 1, **environment: str) -> list[subprocess.Popen[bytes]]:
        """The attempt's ranks, started; their output in rank-R.log of its folder."""
        ranks = []
        for rank, variables in enumerate(rank_variables(world_size)):
            command = [sys.executable, "-m", "paddlewheel.training.entry", "--run", self.uri, "--root", self.store.root]
            command += ["--attempt", str(attempt), "--work", str(self.work(attempt))]
            with (self.work(attempt) / f"rank-{rank}.log").open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        command,
                        env=os.environ | variables | environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        return ranks

    def train(self, attempt: int, *, world_size: int = 1, **environment: str) -> list[int]:
        """Start an attempt and wait for its ranks; their exit codes."""
        self.start_attempt(attempt, world_size=world_size)
        ranks = self.launch(attempt, world_size=world_size, **environment)
        return [rank.wait(timeout=120) for rank in ranks]

    def commit_again(self, attempt: int, strategy: str, *, world_size: int) -> list[int]:
        """The newest commit, loaded under a strategy and committed as `attempt`; bytes of each rank's optimizer."""
        return [
            int(told)
            for told in run_script("commit_again", self.store.root, self.uri, attempt, strategy, world_size=world_size)
        ]

    def logs(self, attempt: int) -> str:
        """What the ranks of an attempt said."""
        return "\n".join(path.read_text() for path in sorted(self.work(attempt).glob("rank-*.log")))

    def commit(self) -> Commit:
        """The newest commit that counts."""
        commit = newest_commit(self.store, RUN_KEY)
        if commit is None:
            raise AssertionError("no commit counts")
        return commit

    def events(self) -> list[dict[str, Any]]:
        """All published events, in the order of their files' names."""
        keys = sorted(stat.key for stat in self.store.list(f"runs/{RUN_KEY}/events"))
        return [json.loads(line) for key in keys for line in self.store.read(key).splitlines()]


def rank_variables(world_size: int) -> list[dict[str, str]]:
    """The environment of each of so many ranks on this host."""
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(world_size)]
    return [
        {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(world_size),
            "PADDLE_CURRENT_ENDPOINT": endpoint,
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_DISTRI_BACKEND": "gloo",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        for rank, endpoint in enumerate(endpoints)
    ]


def run_script(name: str, *arguments: object, world_size: int) -> list[str]:
    """The last word that each of so many ranks of a script beside this file says; all of them must end well."""
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *map(str, arguments)]
    ranks = [
        subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for variables in rank_variables(world_size)
    ]
    told = [rank.communicate(timeout=120) for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise AssertionError(told)
    return [out.split()[-1] for out, _ in told]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def make_run(
    folder: Path,
    *,
    rows: int,
    overrides: dict[str, Any] | None = None,
    poisoned: Sequence[int] = (),
    id_sizes: Sequence[int] = ID_SIZES,
    num_dense: int = NUM_DENSE,
) -> Run:
    """A run over rows with a learnable label in two packed files, and a holdout file that training must not see.

    poisoned: training rows whose first number is none, so that the loss of their batch is none either.
    """
    recipe = load_recipe(TREE, overrides or {})
    store = LocalStore(folder / "root")
    generator = np.random.default_rng(11)
    parts, ids = [], []
    with store.staging() as staging:
        for name, role, count in (("a", "train", rows // 2), ("b", "train", rows - rows // 2), ("c", "holdout", 9)):
            ids_BF = np.stack([generator.integers(0, size, count) for size in id_sizes], 1).astype(np.int32)
            dense_BD = generator.normal(size=(count, num_dense)).astype(np.float32)
            first_B = dense_BD[:, 0] if num_dense else ids_BF[:, 1] % 2
            labels_B = (ids_BF[:, 0] % 2 + first_B + 0.5 * generator.normal(size=count) > 0.5).astype(np.float32)
            if role == "train":
                first = sum(len(one) for one in ids)
                dense_BD[[row - first for row in poisoned if first <= row < first + count], :1] = np.nan
            sample_ids_B = generator.integers(0, 2**63, count).astype(np.uint64)
            path = staging / f"{name}.parquet"
            write_packed(path, sample_ids_B, labels_B, Inputs(ids_BF=ids_BF, dense_BD=dense_BD))
            key = f"datasets/small.packed/{name}"
            shard = publish_file(store, f"{key}/rows.parquet", path, rows=count, facts={"role": role})
            parts.append(publish_manifest(store, Manifest(kind="packed", name="small", key=key, files=(shard,))))
            ids += [sample_ids_B] if role == "train" else []
    training = recipe.training
    sample_ids_N = np.concatenate(ids)
    trained_N = sample_ids_N[~kept_aside(training.seed, sample_ids_N, training.validation.fraction)]
    per_epoch = -(-len(trained_N) // training.global_batch)
    facts = {
        "partition": "2013-11-01",
        "id_sizes": list(id_sizes),
        "num_dense": num_dense,
        "order_expected": str(sample_hash(trained_N)),
        "epochs": training.epochs,
        "steps_per_epoch": per_epoch,
        "total_steps": per_epoch * training.epochs,
        "best_is_result": training.validation.patience is not None,
    }
    run = Manifest(
        kind="run",
        name="small",
        key=f"runs/{RUN_KEY}",
        inputs=tuple(input_of(store, part) for part in parts),
        recipe=recipe.digest,
        facts=facts,
    )
    store.publish(f"runs/{RUN_KEY}/recipe.json", dump_json(recipe))
    return Run(store=store, uri=publish_manifest(store, run), ids=trained_N, folder=folder)


@pytest.fixture
def new_run(tmp_path: Path) -> Any:
    """make_run in a folder of its own: new_run(name, rows=…, overrides=…)."""

    def build(name: str, **settings: Any) -> Run:
        (tmp_path / name).mkdir()
        return make_run(tmp_path / name, **settings)

    return build
