"""Opening a run: which data it needs, what its key depends on, and the job that is asked for."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.data.encoding.fitted import Inputs
from paddlewheel.data.loader import open_loader
from paddlewheel.data.packed import write_packed
from paddlewheel.errors import DataError, StorageError
from paddlewheel.manifest import Manifest, Shard, code_digest, input_of, publish_file, publish_manifest, read_manifest
from paddlewheel.recipe import Recipe, dump_json
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.agent import main
from paddlewheel.training.run import describe_job, open_run, result_of

DAYS = {"2013-10-29": "train", "2013-10-30": "train", "2013-10-31": "train", "2013-11-01": "holdout"}
ROWS_A_DAY = 30
WINDOW = {"partition": "2013-11-01", "train": list(DAYS)[:3], "holdout": list(DAYS)[3:]}
COLUMNS = [
    {"name": "a", "type": "int64"},
    {"name": "label", "type": "int64", "known": "after"},
]
TREE: dict[str, Any] = {
    "name": "late_flights",
    "title": "Small",
    "data": {
        "landing": "landing",
        "rows": {"name": "rows", "path": "{partition}.csv", "key": ["a"], "columns": COLUMNS},
        "label": {"column": "label", "above": 0},
        "window": {"train_days": 3, "holdout_days": 1},
    },
    "features": [{"name": "a", "kind": "standard", "columns": ["a"]}],
    "model": {"name": "deepfm", "params": {"embedding": 4, "hidden": [8]}},
    "training": {"epochs": 2, "global_batch": 16, "seed": 5},
}


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe(TREE)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def publish_data(store: LocalStore, *, way: str = "one", batches: int = 2, features: bytes = b"fitted") -> list[str]:
    """A window's shards, features and packed batches; the packed URIs by batch.

    `way` goes into every manifest's place, as a plan with another recipe would: rows and files are the same.
    """
    numbers = itertools.count()
    shards, packed = [], []
    with store.staging() as staging:
        for day, role in DAYS.items():
            path = staging / day
            path.write_bytes(f"rows of {day}".encode())
            key = f"datasets/small.samples/{day}/rows.parquet"
            shards.append(publish_file(store, key, path, rows=ROWS_A_DAY, facts={"role": role, "day": day}))
            path = staging / f"{day}.packed"
            ids_B = np.array([next(numbers) for _ in range(ROWS_A_DAY)], np.uint64)
            inputs = Inputs(ids_BF=np.ones((ROWS_A_DAY, 2), np.int32), dense_BD=np.zeros((ROWS_A_DAY, 1), np.float32))
            write_packed(path, ids_B, np.zeros(ROWS_A_DAY, np.float32), inputs)
            facts = {"role": role, "day": day, "shard_key": key}
            packed.append((path, facts))
        shards_key = f"datasets/small.shards/{way}"
        publish_manifest(
            store, Manifest(kind="shards", name="small", key=shards_key, files=tuple(shards), facts=WINDOW)
        )
        source = input_of(store, f"{shards_key}/manifest.json")
        (staging / "features.json").write_bytes(features)
        features_key = f"datasets/small.features/{way}"
        fitted = publish_file(store, f"{features_key}/features.json", staging / "features.json")
        told = {"id_sizes": [7, 4], "dense_names": ["a"]}
        publish_manifest(
            store,
            Manifest(kind="features", name="small", key=features_key, files=(fitted,), inputs=(source,), facts=told),
        )
        inputs_of_packed = (source, input_of(store, f"{features_key}/manifest.json"))
        uris = []
        for batch in range(batches):
            # The names fall where the numbers rise, so that sorting by name would turn the rows' order round.
            folder = f"datasets/small.packed/{way}-{batches}-{chr(ord('z') - batch)}"
            files: list[Shard] = []
            for number, (path, facts) in enumerate(packed[len(packed) * batch // batches :][: len(packed) // batches]):
                files.append(publish_file(store, f"{folder}/{number}.parquet", path, rows=ROWS_A_DAY, facts=facts))
            manifest = Manifest(
                kind="packed",
                name="small",
                key=folder,
                files=tuple(files),
                inputs=inputs_of_packed,
                facts={"batch": batch, "batches": batches},
            )
            uris.append(publish_manifest(store, manifest))
    return uris


def order_of_rows(store: LocalStore, run_uri: str) -> list[int]:
    """Sample ids of a run's training rows as its ranks read them."""
    loader = open_loader(store, read_manifest(store, run_uri), seed=0, global_batch=ROWS_A_DAY * 3)
    ids = loader.rows_NW[:, :8].copy().view("<u8")[:, 0]
    return [int(one) for one in ids]


def test_run_says_what_ranks_and_card_need(store: LocalStore, recipe: Recipe) -> None:
    uri = open_run(recipe, publish_data(store), store=store)
    run = read_manifest(store, uri)
    assert run.kind == "run"
    assert run.key.startswith("runs/")
    kinds = [read_manifest(store, entry.key).kind for entry in run.inputs]
    assert kinds == ["packed", "packed", "features", "shards"]
    facts = dict(run.facts)
    # sum over ids 0 to 89 of splitmix64's finaliser, modulo 2**64
    assert facts.pop("order_expected") == str(sum(mix(number) for number in range(90)) % 2**64)
    assert facts == {
        "partition": "2013-11-01",
        "train": ["2013-10-29", "2013-10-30", "2013-10-31"],
        "holdout": ["2013-11-01"],
        "num_train_rows": 90,
        "num_validation_rows": 0,
        "best_is_result": False,
        "global_batch": 16,
        "epochs": 2,
        "steps_per_epoch": 6,
        "total_steps": 12,
        "id_sizes": [7, 4],
        "num_dense": 1,
    }
    assert store.read(f"{run.key}/recipe.json") == dump_json(recipe)
    assert result_of(store, uri) is None


@pytest.mark.parametrize("field", ["model.name", "training.loss"])
def test_run_is_another_when_the_code_of_the_users_own_model_or_loss_changes(
    store: LocalStore, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    packed, runs = publish_data(store), []
    for source in ("a = 1", "a = 2", "a = 1"):
        (tmp_path / "own_model.py").write_text(source)
        code_digest.cache_clear()  # a process reads its sources once
        runs.append(open_run(load_recipe(TREE, {field: "own_model:build"}), packed, store=store))
    assert runs[0] != runs[1]
    assert runs[0] == runs[2]


def mix(number: int) -> int:
    """splitmix64's finaliser of one number (Steele, Lea, Flood 2014), in Python's integers."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31


def test_opening_again_is_the_same_run_whatever_the_order_of_batches(store: LocalStore, recipe: Recipe) -> None:
    packed = publish_data(store, batches=4)
    uri = open_run(recipe, packed, store=store)
    before = store.read(store.key(uri))
    assert open_run(recipe, packed[::-1], store=store) == uri
    assert store.read(store.key(uri)) == before
    assert order_of_rows(store, uri) == list(range(90))


def test_rows_keep_the_shards_order_when_batches_are_given_backwards(store: LocalStore, recipe: Recipe) -> None:
    uri = open_run(recipe, publish_data(store, batches=4)[::-1], store=store)
    assert order_of_rows(store, uri) == list(range(90))


def test_key_is_the_same_when_only_the_way_of_the_data_or_resources_differ(store: LocalStore, recipe: Recipe) -> None:
    uri = open_run(recipe, publish_data(store, way="one", batches=2), store=store)
    wider = load_recipe(TREE, {"resources.ranks_per_node": 4, "gate.min_auc": 0.7})
    assert open_run(wider, publish_data(store, way="two", batches=4), store=store) == uri
    run = read_manifest(store, uri)
    assert store.read(f"{run.key}/recipe.json") == dump_json(recipe)


@pytest.mark.parametrize(
    "change",
    [
        {"training.seed": 6},
        {"training.global_batch": 32},
        {"training.optimizer.learning_rate": 0.5},
        {"model.params.hidden": [9]},
        {"name": "other"},
    ],
)
def test_key_differs_when_what_is_trained_differs(store: LocalStore, recipe: Recipe, change: dict[str, Any]) -> None:
    packed = publish_data(store)
    assert open_run(recipe, packed, store=store) != open_run(load_recipe(TREE, change), packed, store=store)


def test_key_differs_when_the_features_differ(store: LocalStore, recipe: Recipe) -> None:
    one = open_run(recipe, publish_data(store, way="one"), store=store)
    assert open_run(recipe, publish_data(store, way="two", features=b"fitted anew"), store=store) != one


def test_an_opening_that_died_before_its_manifest_is_finished(store: LocalStore, recipe: Recipe) -> None:
    uri = open_run(recipe, publish_data(store, way="one"), store=store)
    store.remove(store.key(uri))
    wider = load_recipe(TREE, {"resources.ranks_per_node": 4})
    assert open_run(wider, publish_data(store, way="two"), store=store) == uri
    run = read_manifest(store, uri)
    assert run.recipe == recipe.digest  # the recipe that lies beside it, not the one it was opened with now


def wrong_batches(store: LocalStore) -> dict[str, Sequence[str]]:
    one, two = publish_data(store, way="one"), publish_data(store, way="two", features=b"fitted anew")
    return {
        "needs packed data": [],
        "2 of the 4 shards are in no packed batch, datasets/small.samples/2013-10-31/rows.parquet for one; "
        "give all 2 batches": one[:1],
        "2 shards are packed twice, datasets/small.samples/2013-10-29/rows.parquet": [*one, one[0]],
        "was packed from the shards datasets/small.shards/two": [one[0], two[1]],
        "shards/manifest.json (shards)": [one[0], store.uri("datasets/shards/manifest.json")],
    }


@pytest.mark.parametrize("index", range(5))
def test_batches_are_refused_when_they_are_not_all_of_one_preprocess(
    store: LocalStore, recipe: Recipe, index: int
) -> None:
    publish_manifest(store, Manifest(kind="shards", name="small", key="datasets/shards"))
    message, uris = list(wrong_batches(store).items())[index]
    with pytest.raises(DataError) as caught:
        open_run(recipe, uris, store=store)
    assert message in str(caught.value)
    assert not store.children("runs")


def test_damaged_packed_data_are_refused_before_a_run_is_published(store: LocalStore, recipe: Recipe) -> None:
    packed = publish_data(store)
    path = store.local_path(read_manifest(store, packed[1]).files[0].key)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StorageError, match="has the digest"):
        open_run(recipe, packed, store=store)
    assert not store.children("runs")


def test_a_damaged_recipe_of_an_open_run_is_an_error(store: LocalStore, recipe: Recipe) -> None:
    packed = publish_data(store)
    run = read_manifest(store, open_run(recipe, packed, store=store))
    path = store.local_path(f"{run.key}/recipe.json")
    path.write_bytes(path.read_bytes().replace(b'"seed":5', b'"seed":6'))
    with pytest.raises(StorageError, match=r"recipe\.json has the digest"):
        open_run(recipe, packed, store=store)


def test_job_asks_for_what_the_resources_say(store: LocalStore, recipe: Recipe) -> None:
    uri = open_run(recipe, publish_data(store), store=store)
    key = read_manifest(store, uri).key.removeprefix("runs/")
    asked = dataclasses.replace(
        recipe.resources, ranks_per_node=3, threads_per_rank=2, max_restarts=7, deadline_seconds=99
    )
    job = describe_job(uri, store=store, recipe=dataclasses.replace(recipe, resources=asked))
    assert json.loads(json.dumps(job)) == job
    assert job["name"] == f"pw-late-flights-{key}"
    assert job["resources"] == {"nodes": 1, "ranks_per_node": 3, "cpus_per_node": 6, "gpus_per_node": 0}
    assert (job["launcher"], job["connection"], job["deadline_seconds"]) == ("local", None, 99)
    assert job["result_uri"] == f"{store.root}/runs/{key}/result.json"
    assert job["verdict_folder_uri"] == f"{store.root}/runs/{key}/attempts"
    command = job["command"]
    assert command[1:6] == ["-m", "paddlewheel.training.agent", uri, "--root", store.root]
    options = dict(zip(command[6::2], command[7::2], strict=True))
    assert (options["--ranks-per-node"], options["--threads-per-rank"], options["--max-restarts"]) == ("3", "2", "7")


def test_the_agent_reads_the_options_that_a_job_gives_it(
    store: LocalStore, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dataclasses.replace(recipe.resources, ranks_per_node=3, step_stall_factor=7.5, shutdown_seconds=11)
    uri = open_run(recipe, publish_data(store), store=store)
    job = describe_job(uri, store=store, recipe=dataclasses.replace(recipe, resources=asked))
    seen: list[Any] = []

    def take(run_uri: str, *, store: LocalStore, resources: Any, on_progress: Callable[..., None]) -> int:
        seen.append((run_uri, resources))
        return 0

    monkeypatch.setattr("paddlewheel.training.agent.run_agent", take)  # ranks are test_agent's; here the options alone
    assert main(job["command"][3:]) == 0
    assert seen == [(uri, asked)]
