"""A run: one training of these data by this recipe, named by a key; and the job that a cluster is asked to run for it.

`resources` are no part of the key: the same work on another number of ranks is the same run, and goes on from its
commits. Nothing here imports Paddle.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from paddlewheel.data.loader import load_training_rows
from paddlewheel.data.order import sample_hash, steps_per_epoch
from paddlewheel.data.packed import split_rows
from paddlewheel.errors import DataError, StorageError
from paddlewheel.lineage import nearest
from paddlewheel.manifest import (
    MANIFEST_NAME,
    Manifest,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_manifest,
    read_manifest,
    verify,
)
from paddlewheel.recipe import Recipe, Resources, dump, dump_json
from paddlewheel.storage import Store

CODE = ("paddlewheel.training", "paddlewheel.data.order", "paddlewheel.data.loader")
# What of `resources` the agent must be told, since the run's own recipe may name others.
PASSED_RESOURCES = (
    "ranks_per_node",
    "threads_per_rank",
    "max_restarts",
    "rendezvous_seconds",
    "first_step_seconds",
    "step_stall_factor",
    "step_stall_seconds",
    "shutdown_seconds",
)
log = logging.getLogger(__name__)


def open_run(recipe: Recipe, packed_uris: Sequence[str], *, store: Store) -> str:
    """Publish runs/KEY/{recipe.json, manifest.json}; the URI of the manifest. A run that is there is verified.

    Raises DataError where the packed batches are not all there, once each, and of the same features.
    """
    packed = sorted((read_manifest(store, uri) for uri in packed_uris), key=lambda manifest: manifest.key)
    shards, features = _check_complete(store, packed)
    inputs = tuple(input_of(store, f"{manifest.key}/{MANIFEST_NAME}") for manifest in (*packed, features, shards))
    code = code_digest(*CODE)
    key = derive_key(
        "run", [entry.digest for entry in inputs], recipe.name, dump(recipe.model), dump(recipe.training), code
    )
    manifest_key = f"runs/{key}/{MANIFEST_NAME}"
    if find_done(store, manifest_key) is not None:
        return store.uri(manifest_key)
    for manifest in packed:
        verify(store, manifest)
    rows_NW, layout = load_training_rows(store, packed)
    training, per_epoch = recipe.training, steps_per_epoch(len(rows_NW), recipe.training.global_batch)
    facts = {
        "partition": shards.facts["partition"],
        "train": shards.facts["train"],
        "holdout": shards.facts["holdout"],
        "num_train_rows": len(rows_NW),
        "order_expected": str(sample_hash(split_rows(rows_NW, layout).sample_ids_B)),
        "global_batch": training.global_batch,
        "epochs": training.epochs,
        "steps_per_epoch": per_epoch,
        "total_steps": per_epoch * training.epochs,
        "id_sizes": list(features.facts["id_sizes"]),
        "num_dense": len(features.facts["dense_names"]),
    }
    if store.stat(f"runs/{key}/recipe.json") is None:
        store.publish(f"runs/{key}/recipe.json", dump_json(recipe))
    log.info("run %s: %d rows, %d epochs of %d steps", key, len(rows_NW), training.epochs, per_epoch)
    run = Manifest(
        kind="run", name=recipe.name, key=f"runs/{key}", inputs=inputs, recipe=recipe.digest, code=code, facts=facts
    )
    return publish_manifest(store, run)


def describe_job(run_uri: str, *, store: Store, recipe: Recipe) -> dict[str, Any]:
    """The job of a run as plain JSON for a launcher's operator: a command line, resources and URIs."""
    run = read_manifest(store, run_uri)
    resources = recipe.resources
    return {
        "name": f"pw-{recipe.name.replace('_', '-')}-{run.key.removeprefix('runs/')}",
        "command": [
            *(sys.executable, "-m", "paddlewheel.training.agent", run_uri, "--root", store.root),
            *agent_arguments(resources),
        ],
        "resources": {
            "nodes": resources.nodes,
            "ranks_per_node": resources.ranks_per_node,
            "cpus_per_node": resources.ranks_per_node * resources.threads_per_rank,
            "gpus_per_node": resources.ranks_per_node if resources.device == "gpu" else 0,
        },
        "launcher": resources.launcher,
        "connection": resources.connection,
        "result_uri": store.uri(f"{run.key}/result.json"),
        "verdict_folder_uri": store.uri(f"{run.key}/attempts"),
        "admission_seconds": resources.admission_seconds,
        "deadline_seconds": resources.deadline_seconds,
    }


def agent_arguments(resources: Resources) -> list[str]:
    """The agent's options for these resources."""
    told: list[str] = []
    for name in PASSED_RESOURCES:
        told += [f"--{name.replace('_', '-')}", str(getattr(resources, name))]
    return told


def result_of(store: Store, run_uri: str) -> Manifest | None:
    """The verified result of a run that is trained to its end, else None. Raises StorageError where it is damaged."""
    run = read_manifest(store, run_uri)
    return find_done(store, f"{run.key}/result.json")


def _check_complete(store: Store, packed: Sequence[Manifest]) -> tuple[Manifest, Manifest]:
    """(shards, features) behind the packed batches, whose rows must be all of the shards' rows, once."""
    if not packed:
        raise DataError("a run needs packed data; give the URIs that preprocess printed, one a batch")
    keys = [f"{manifest.key}/{MANIFEST_NAME}" for manifest in packed]
    if len(set(keys)) != len(keys):
        raise DataError(f"the same packed batch is given twice: {keys}")
    behind = [(nearest(store, key, "shards"), nearest(store, key, "features")) for key in keys]
    shards, features = behind[0]
    if any((one.key, other.key) != (shards.key, features.key) for one, other in behind):
        raise DataError("the packed batches come from different shards or features; give those of one preprocess")
    for role in ("train", "holdout"):
        wanted = sum(shard.rows or 0 for shard in shards.files if shard.facts["role"] == role)
        found = sum(shard.rows or 0 for manifest in packed for shard in manifest.files if shard.facts["role"] == role)
        if found != wanted:
            raise DataError(
                f"the packed batches hold {found} {role} rows, the shards {wanted}; give every batch of preprocess"
            )
    if any(manifest.kind != "packed" for manifest in packed):
        raise StorageError(f"not packed data: {[manifest.kind for manifest in packed]}")
    return shards, features
