"""A run: one training of these data by this recipe, named by a key; and the job that a cluster is asked to run for it.

`resources` are no part of the key: the same work on another number of ranks is the same run, and goes on from its
commits. Nor is the way by which the data came: the key is made of the packed files' digests, not of manifests, which
descend from a plan with the whole recipe in it. Nothing here imports Paddle.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import xxhash

from paddlewheel.data.loader import iter_training_rows
from paddlewheel.data.order import MASK, kept_aside, sample_hash, steps_per_epoch
from paddlewheel.errors import DataError, StorageError
from paddlewheel.lineage import nearest
from paddlewheel.manifest import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_manifest,
    read_manifest,
    verify,
)
from paddlewheel.recipe import Recipe, Resources, dump, dump_json
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage import Store

WINDOW = ("partition", "train", "holdout")
CODE = ("paddlewheel.training", "paddlewheel.data.order", "paddlewheel.data.loader", "paddlewheel.evaluation.metrics")
# What of `resources` the agent must be told, since the run's own recipe may name others.
PASSED_RESOURCES = (
    "device",
    "nodes",
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
    """Publish runs/KEY/{recipe.json, manifest.json}; the URI of the manifest. A run that is there is left as it is.

    The order in which the batches are given does not matter, nor how many there are: the rows keep the shards' order.
    Raises DataError where the packed batches are not all there, once each, and of the same features.
    """
    packed = [read_manifest(store, uri) for uri in packed_uris]
    foreign = [f"{uri} ({one.kind})" for uri, one in zip(packed_uris, packed, strict=True) if one.kind != "packed"]
    if foreign:
        raise DataError(f"not packed data: {', '.join(foreign)}; give the URIs that preprocess printed, one a batch")
    packed.sort(key=lambda manifest: int(manifest.facts["batch"]))
    shards, features = _check_complete(store, packed)
    code = code_digest(*CODE, *_own_modules(recipe))
    folder = f"runs/{_run_key(recipe, packed, features, shards, code)}"
    manifest_key = f"{folder}/{MANIFEST_NAME}"
    if store.stat(manifest_key) is not None:
        verify(store, read_manifest(store, manifest_key))
        log.info("%s is open already: the same data, model, training and code", folder)
        return store.uri(manifest_key)
    for manifest in (*packed, features):
        verify(store, manifest)
    stored = _publish_recipe(store, f"{folder}/recipe.json", recipe)
    run = Manifest(
        kind="run",
        name=recipe.name,
        key=folder,
        files=(stored,),
        inputs=tuple(input_of(store, f"{manifest.key}/{MANIFEST_NAME}") for manifest in (*packed, features, shards)),
        recipe=stored.digest,
        code=code,
        facts=_run_facts(store, recipe, packed, features, shards),
    )
    try:
        uri = publish_manifest(store, run)
    except StorageError:
        if store.stat(manifest_key) is None:
            raise
        return store.uri(manifest_key)  # somebody else opened the same run meanwhile, by way of other manifests
    facts = run.facts
    log.info("%s: %d rows, %d epochs, %d steps", folder, facts["num_train_rows"], facts["epochs"], facts["total_steps"])
    return uri


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


def read_recipe(store: Store, run: Manifest) -> Recipe:
    """The recipe that the run was opened with."""
    raw = store.read(f"{run.key}/recipe.json")
    try:
        tree = json.loads(raw)
    except ValueError as error:
        raise StorageError(f"{store.uri(run.key)}/recipe.json is damaged: {error}") from error
    return load_recipe(tree)


def result_of(store: Store, run_uri: str) -> Manifest | None:
    """The verified result of a run that is trained to its end, else None. Raises StorageError where it is damaged."""
    run = read_manifest(store, run_uri)
    return find_done(store, f"{run.key}/result.json")


def _check_complete(store: Store, packed: Sequence[Manifest]) -> tuple[Manifest, Manifest]:
    """(shards, features) behind the packed batches, which must hold each of the shards once."""
    if not packed:
        raise DataError("a run needs packed data; give the URIs that preprocess printed, one a batch")
    behind = []
    for manifest in packed:
        key = f"{manifest.key}/{MANIFEST_NAME}"
        behind.append((nearest(store, key, "shards"), nearest(store, key, "features")))
    shards, features = behind[0]
    for manifest, (its_shards, its_features) in zip(packed, behind, strict=True):
        for kind, one, other in (("shards", its_shards, shards), ("features", its_features, features)):
            if one.key != other.key:
                raise DataError(
                    f"{manifest.key} was packed from the {kind} {one.key}, {packed[0].key} from {other.key}; "
                    "give the batches of one preprocess"
                )
    found = Counter(str(shard.facts["shard_key"]) for manifest in packed for shard in manifest.files)
    missing = [shard.key for shard in shards.files if shard.key not in found]
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(shards.files)} shards are in no packed batch, {missing[0]} for one; "
            f"give all {packed[0].facts['batches']} batches of preprocess"
        )
    twice = [key for key, count in found.items() if count > 1]
    if twice:
        raise DataError(f"{len(twice)} shards are packed twice, {twice[0]} for one; give each batch of preprocess once")
    return shards, features


def _own_modules(recipe: Recipe) -> list[str]:
    """Modules of the user's own that train with the project's: a change in one is another training."""
    training = recipe.training
    names = (recipe.model.name, training.strategy, training.sync, training.loss or "", *training.handlers)
    return sorted({name.partition(":")[0] for name in names if ":" in name})


def _run_key(recipe: Recipe, packed: Sequence[Manifest], features: Manifest, shards: Manifest, code: str) -> str:
    return derive_key(
        "run",
        [[shard.facts["role"], shard.digest] for manifest in packed for shard in manifest.files],
        [shard.digest for shard in features.files],
        [shards.facts[name] for name in WINDOW],
        recipe.name,
        dump(recipe.model),
        dump(recipe.training),
        code,
    )


def _run_facts(
    store: Store, recipe: Recipe, packed: Sequence[Manifest], features: Manifest, shards: Manifest
) -> dict[str, Any]:
    """What the ranks, the result and the card need of a run, `order_expected` among it: the proof's other side."""
    training, fraction = recipe.training, recipe.training.validation.fraction
    num_rows = num_aside = hashes = 0
    for rows in iter_training_rows(store, packed):
        aside_B = kept_aside(training.seed, rows.sample_ids_B, fraction)
        num_aside += int(aside_B.sum())
        num_rows += int((~aside_B).sum())
        hashes = (hashes + sample_hash(rows.sample_ids_B[~aside_B])) & MASK
    check_rows(fraction, num_rows=num_rows, num_aside=num_aside)
    per_epoch = steps_per_epoch(num_rows, training.global_batch)
    return {
        **{name: shards.facts[name] for name in WINDOW},
        "num_train_rows": num_rows,
        "num_validation_rows": num_aside,
        "best_is_result": training.validation.patience is not None,
        "order_expected": str(hashes),
        "global_batch": training.global_batch,
        "epochs": training.epochs,
        "steps_per_epoch": per_epoch,
        "total_steps": per_epoch * training.epochs,
        "id_sizes": list(features.facts["id_sizes"]),
        "num_dense": len(features.facts["dense_names"]),
    }


def check_rows(fraction: float, *, num_rows: int, num_aside: int) -> None:
    """Raises DataError where nothing is left to train on, or nothing is there to measure."""
    if not num_rows or (fraction and not num_aside):
        raise DataError(
            f"training.validation.fraction {fraction:g} keeps {num_aside} of {num_rows + num_aside} rows aside, and "
            f"{num_rows} are left to train on; both need some: change the fraction, or widen data.window"
        )


def _publish_recipe(store: Store, key: str, recipe: Recipe) -> Shard:
    """The run's recipe.json; one that is there, of a run that was begun with other resources, stands."""
    try:
        if store.stat(key) is None:
            store.publish(key, dump_json(recipe))
    except StorageError:
        if store.stat(key) is None:
            raise
    raw = store.read(key)
    return Shard(key=key, bytes=len(raw), digest=xxhash.xxh3_128_hexdigest(raw))
