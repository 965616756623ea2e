"""Measuring on rows kept aside: exact on any number of ranks, without a trace in the training; ending early by it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from paddlewheel.data.loader import Loader, open_loader
from paddlewheel.data.order import sample_hash
from paddlewheel.errors import DataError, StorageError
from paddlewheel.manifest import read_manifest
from paddlewheel.recipe import Validation
from paddlewheel.training.checkpoint import load_weights
from paddlewheel.training.result import publish_result, result_commit
from paddlewheel.training.run import read_recipe
from paddlewheel.training.validation import Scores, chunks_of

HERE = str(Path(__file__).parent)
RUN_KEY = "0123456789abcdef0123"
# Of these 62 rows the hash keeps ten aside; four steps of 16 an epoch.
ROWS, ASIDE = 62, 10
LIVELY = {"model.params": {"embedding": 4, "hidden": [8], "dropout": 0.3}, "training.average_decay": 0.9}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def taken(settings: Validation, *values: float) -> list[tuple[bool, bool]]:
    """(best, stopped) after each value, one every ten steps."""
    scores = Scores(settings)
    return [(scores.take(value, 10 * place), scores.stopped) for place, value in enumerate(values, 1)]


def test_training_stops_when_patience_many_measurements_in_a_row_were_no_better() -> None:
    settings = Validation(fraction=0.1, patience=2)
    told = taken(settings, 0.5, 0.4, 0.4, 0.3, 0.31, 0.3)
    assert told == [(True, False), (True, False), (False, False), (True, False), (False, False), (False, True)]
    assert all(not stopped for _, stopped in taken(Validation(fraction=0.1), *[0.5] * 50))


def test_more_is_better_when_the_metric_is_the_auc_and_nothing_is_when_it_is_not_defined() -> None:
    settings = Validation(fraction=0.1, metric="auc", patience=3)
    assert [best for best, _ in taken(settings, math.nan, 0.5, 0.4, 0.6, math.nan)] == [False, True, False, True, False]


def test_scores_go_on_as_a_commit_tells_them() -> None:
    settings = Validation(fraction=0.1, patience=2)
    scores = Scores(settings)
    assert scores.to_json() == {}
    for step, value in ((5, 0.5), (10, 0.4), (15, 0.6)):
        scores.take(value, step)
    told = {"metric": "log_loss", "value": 0.6, "step": 15, "best_step": 10, "best_value": 0.4, "bad": 1}
    assert scores.to_json() == {**told, "stopped": False}
    again = Scores(settings)
    again.load(json.loads(json.dumps(scores.to_json())))
    assert vars(again) == vars(scores)
    again.take(0.45, 20)
    assert again.stopped


def test_measuring_waits_for_equal_parameters_when_an_epoch_ends_within_a_round() -> None:
    scores = Scores(Validation(fraction=0.1, every_epochs=2))
    due = [scores.due(step, 3, settled=step % 4 == 0) for step in range(1, 9)]
    assert due == [False] * 7 + [True]
    scores.take(0.5, 8)
    assert not scores.due(9, 3, settled=True)


@pytest.mark.parametrize(
    ("rows", "most", "sizes"),
    [
        (10, None, {1}),
        (640, None, {10}),
        (1_000_000, None, {1024, 1_000_000 % 1024}),
        (640, 4, {4}),
        (65, None, {2, 1}),
    ],
)
def test_chunks_are_cut_by_the_number_of_rows_alone(rows: int, most: int | None, sizes: set[int]) -> None:
    chunks = chunks_of(rows, most)
    assert {stop - start for start, stop in chunks} == sizes
    assert [start for start, _ in chunks[1:]] == [stop for _, stop in chunks[:-1]]
    assert (chunks[0][0], chunks[-1][1]) == (0, rows)


def loader_of(run: Any, fraction: float = 0.2) -> Loader:
    return open_loader(run.store, read_manifest(run.store, run.uri), seed=5, global_batch=16, aside=fraction)


def evaluations(run: Any, rank: int = 0) -> list[dict[str, Any]]:
    told = [one for one in run.events() if one["event"] == "EvaluationEvent" and one["rank"] == rank]
    return sorted(told, key=lambda one: (one["step"], one["attempt"]))


def said_by_hand(weights: dict[str, np.ndarray], params: dict[str, Any], loader: Loader) -> tuple[Any, Any]:
    """(labels, logits) of all rows kept aside by a network with these weights, in one go."""
    import paddle

    from paddlewheel.training.models import InputSpec, build_model

    model = build_model("deepfm", InputSpec(id_sizes=(7, 4, 11), num_dense=3), params)
    model.set_state_dict(weights)
    model.eval()
    batch = loader.aside(0, loader.num_aside)
    logits_B = model(paddle.to_tensor(batch.ids_BF), paddle.to_tensor(batch.dense_BD)).numpy().astype(np.float64)
    return batch.labels_B, logits_B


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["log_loss", "loss"])
def test_ten_samples_on_four_ranks_are_measured_as_by_one_process_to_the_last_bit(
    new_run: Callable[..., Any], metric: str
) -> None:
    # A rate so small that no weight changes, whatever order gradients are added in: all measure the same network.
    settings = {
        "model.params": LIVELY["model.params"],
        "training.optimizer": {"name": "sgd", "learning_rate": 1e-38},
        "training.validation": {"fraction": 0.2, "metric": metric},
    }
    told = {}
    for world_size in (1, 2, 4):
        run = new_run(str(world_size), rows=ROWS, overrides=settings)
        assert run.train(1, world_size=world_size) == [0] * world_size, run.logs(1)
        assert all(
            [one["metrics"] for one in evaluations(run, rank)] == [one["metrics"] for one in evaluations(run)]
            for rank in range(world_size)
        )
        told[world_size] = [(one["step"], one["rows"], one["metrics"]) for one in evaluations(run)]
    assert told[1] == told[2] == told[4]
    assert [(step, rows) for step, rows, _ in told[1]] == [(4, ASIDE), (8, ASIDE)]
    labels, logits = said_by_hand(load_weights(run.store, run.commit()), LIVELY["model.params"], loader_of(run))
    probabilities = 1 / (1 + np.exp(-logits))
    metrics = told[1][-1][2]
    assert metrics[metric] == pytest.approx(log_loss(labels, probabilities), rel=1e-5)
    if metric == "log_loss":
        assert metrics["auc"] == roc_auc_score(labels, probabilities)


@pytest.mark.slow
def test_training_is_the_same_to_the_last_bit_whether_it_is_measured_often_or_seldom(
    new_run: Callable[..., Any],
) -> None:
    runs = []
    for every_epochs in (1, 2):
        settings = {**LIVELY, "training.validation": {"fraction": 0.2, "every_epochs": every_epochs}}
        run = new_run(str(every_epochs), rows=ROWS, overrides=settings)
        assert run.train(1, world_size=2) == [0, 0], run.logs(1)
        runs.append(run)
    often, seldom = runs
    assert [one["step"] for one in evaluations(often)] == [4, 8]
    assert [one["step"] for one in evaluations(seldom)] == [8]
    assert evaluations(often)[1]["metrics"] == evaluations(seldom)[0]["metrics"]
    digests = [[one.digest for one in run.commit().manifest.files] for run in runs]
    assert digests[0] == digests[1]
    loader = loader_of(often)
    trained = loader.rows_NW[loader.train_N][:, :8].copy().view(np.uint64)[:, 0]
    assert len(trained) == ROWS - ASIDE
    assert often.commit().order == {1: sample_hash(trained), 2: sample_hash(trained)}
    # What was measured is the running average, with which the model is served, and without dropout.
    averaged, plain = (load_weights(often.store, often.commit(), averaged=one) for one in (True, False))
    by_hand = {}
    for name, weights in (("averaged", averaged), ("plain", plain)):
        labels, logits = said_by_hand(weights, LIVELY["model.params"], loader)
        by_hand[name] = log_loss(labels, 1 / (1 + np.exp(-logits)))
    assert evaluations(often)[1]["metrics"]["log_loss"] == pytest.approx(by_hand["averaged"], rel=1e-6)
    assert abs(by_hand["plain"] - by_hand["averaged"]) > 1e-4


EARLY = {
    "training.epochs": 40,
    "training.optimizer": {"name": "adamw", "learning_rate": 0.05},
    "training.validation": {"fraction": 0.2, "patience": 3},
    "training.handlers": ["observer:kill"],
}


def train_by_agent(run: Any) -> str:
    """What the agent of two ranks said; it must have ended well."""
    command = [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root]
    ended = subprocess.run(
        [*command, "--ranks-per-node", "2"],
        env={**os.environ, "PYTHONPATH": HERE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.slow
def test_the_best_commit_is_the_result_when_the_rows_kept_aside_say_that_nothing_is_gained_any_more(
    new_run: Callable[..., Any],
) -> None:
    run = new_run("run", rows=ROWS, overrides=EARLY)
    output = train_by_agent(run)
    values = [one["metrics"]["log_loss"] for one in evaluations(run)]
    best = int(np.argmin(values))
    assert len(values) == best + 4 < 40
    assert [one["best"] for one in evaluations(run)] == [
        value < min(values[:place], default=math.inf) for place, value in enumerate(values)
    ]
    result = read_manifest(run.store, f"runs/{RUN_KEY}/result.json")
    facts = result.facts
    last_step, best_step = 4 * len(values), 4 * (best + 1)
    assert (facts["steps"], facts["epochs"], facts["order_ok"]) == (last_step, len(values), True)
    assert facts["validation"]["best_step"] == facts["validation"]["result_step"] == best_step
    assert facts["validation"]["best_value"] == min(values)
    assert facts["commit"] == f"runs/{RUN_KEY}/checkpoints/step-{best_step}-attempt-1/COMMIT.json"
    assert all(f"step-{best_step}-" in shard.key for shard in result.files)
    commit = result_commit(run.store, read_manifest(run.store, run.uri))
    labels, logits = said_by_hand(load_weights(run.store, commit), {"embedding": 4, "hidden": [8]}, loader_of(run))
    assert log_loss(labels, 1 / (1 + np.exp(-logits))) == pytest.approx(min(values), rel=1e-6)
    assert f"the result is step {best_step}, with the best log_loss {min(values):.4f}" in output

    # Killed after the best measurement, the same ranks come to the same end.
    killed = new_run("killed", rows=ROWS, overrides=EARLY)
    assert killed.train(1, world_size=2, KILL_AT=f"1:{best_step + 5}") == [13, -9], killed.logs(1)
    assert killed.train(2, world_size=2) == [0, 0], killed.logs(2)
    assert killed.commit().progress == run.commit().progress
    assert (killed.commit().step, run.commit().step) == (last_step, last_step)
    assert killed.train(3, world_size=2) == [0, 0], killed.logs(3)  # an end that is reached is not gone beyond
    assert killed.commit().attempt == 2


@pytest.mark.slow
def test_the_last_commit_is_the_result_when_the_best_one_is_damaged_or_there_is_no_patience(
    new_run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run("run", rows=ROWS, overrides=EARLY)
    assert run.train(1, world_size=1) == [0], run.logs(1)
    best = run.commit().progress["validation"]["best_step"]
    path = run.folder / f"root/runs/{RUN_KEY}/checkpoints/step-{best}-attempt-1/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    manifest = read_manifest(run.store, run.uri)
    publish_result(run.store, manifest, [], read_recipe(run.store, manifest).training)
    facts = read_manifest(run.store, f"runs/{RUN_KEY}/result.json").facts
    assert facts["validation"]["result_step"] == facts["steps"] > best
    assert f"no whole commit of its best step {best}" in caplog.text

    settings = {**EARLY, "training.epochs": 12, "training.validation": {"fraction": 0.2}}
    patient = new_run("patient", rows=ROWS, overrides=settings)
    assert patient.train(1, world_size=1) == [0], patient.logs(1)
    manifest = read_manifest(patient.store, patient.uri)
    publish_result(patient.store, manifest, [], read_recipe(patient.store, manifest).training)
    facts = read_manifest(patient.store, f"runs/{RUN_KEY}/result.json").facts
    assert facts["validation"]["best_step"] < facts["validation"]["result_step"] == facts["steps"] == 48


@pytest.mark.slow
def test_local_sgd_is_measured_where_its_ranks_are_equal_again(new_run: Callable[..., Any]) -> None:
    settings = {
        "training.sync": "local_sgd",
        "training.exchange": {"steps": 3},
        "training.validation": {"fraction": 0.2},
    }
    run = new_run("run", rows=ROWS, overrides=settings)
    assert run.train(1, world_size=2) == [0, 0], run.logs(1)
    assert [one["step"] for one in evaluations(run)] == [6, 8]
    assert [one["metrics"] for one in evaluations(run, 1)] == [one["metrics"] for one in evaluations(run, 0)]


def test_a_commit_that_is_no_end_gives_no_result(new_run: Callable[..., Any]) -> None:
    run = new_run("run", rows=ROWS)
    with pytest.raises(StorageError, match="not trained to its end"):
        result_commit(run.store, read_manifest(run.store, run.uri))


def test_a_fraction_that_keeps_no_row_is_told(new_run: Callable[..., Any]) -> None:
    from paddlewheel.training.run import check_rows

    check_rows(0.2, num_rows=52, num_aside=10)
    check_rows(0.0, num_rows=62, num_aside=0)
    with pytest.raises(DataError, match="keeps 0 of 62 rows aside, and 62 are left to train on"):
        check_rows(0.01, num_rows=62, num_aside=0)
