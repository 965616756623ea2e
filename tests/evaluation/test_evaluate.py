"""Evaluation of real, tiny runs: shards, fitted features, packed rows, a commit of a real DeepFM, Paddle Inference.

Only the training itself is left out: the weights of a run are drawn, not trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import sklearn.metrics

from paddlewheel import export
from paddlewheel.card.page import report, summary_lines
from paddlewheel.data.encoding.fitted import FittedFeatures, Inputs
from paddlewheel.data.features import fit
from paddlewheel.data.order import sample_hash
from paddlewheel.data.packed import write_packed
from paddlewheel.errors import CheckpointError, DataError, StorageError
from paddlewheel.evaluation.evaluate import evaluate
from paddlewheel.evaluation.gate import gate
from paddlewheel.export import load_bundle
from paddlewheel.manifest import Manifest, Shard, input_of, publish_file, publish_manifest, read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.registry import champion, promote
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.commit_writer import Snapshot, publish_commit
from paddlewheel.training.host_copies import HostCopies
from paddlewheel.training.models import InputSpec, build_model
from paddlewheel.training.run import open_run
from paddlewheel.training.state import model_tensors

NIGHT = {"partition": "2013-11-02", "train": ["2013-10-29", "2013-10-30"], "holdout": ["2013-11-01", "2013-11-02"]}
NEXT = {"partition": "2013-11-03", "train": ["2013-10-30", "2013-11-01"], "holdout": ["2013-11-02", "2013-11-03"]}


def draw_rows(day: str, rows: int = 150) -> pl.DataFrame:
    """Flights of a day: label, and columns that say something about it."""
    seed = int(day.replace("-", ""))
    generator = np.random.default_rng(seed)
    distance = generator.uniform(100, 2500, rows)
    carrier = generator.choice(["UA", "AA", "B6"], rows)
    late = generator.random(rows) < 0.15 + 0.3 * (carrier == "UA") + 0.2 * (distance > 1500)
    return pl.DataFrame(
        {
            "sample_id": np.arange(rows, dtype=np.uint64) + np.uint64(seed * 1000),
            "label": late.astype(np.float32),
            "carrier": carrier,
            "distance": distance,
        }
    )


def publish_data(store: LocalStore, recipe: Recipe, night: dict[str, Any]) -> str:
    """Shards, features and one packed batch of a night; the key of the packed manifest."""
    folder = f"datasets/{recipe.name}.shards/{night['partition']}"
    frames = {day: draw_rows(day) for day in night["train"] + night["holdout"]}
    files: list[Shard] = []
    packed: list[Shard] = []
    trained = pl.concat([frames[day] for day in night["train"]])
    features = fit(trained.drop("sample_id", "label"), recipe.features)
    packed_folder = f"datasets/{recipe.name}.packed/{night['partition']}"
    with store.staging() as staging:
        for day, frame in frames.items():
            facts = {"role": "train" if day in night["train"] else "holdout", "day": day, "shard": 0}
            frame.write_parquet(staging / f"{day}.parquet")
            key = f"{folder}/{day}.parquet"
            files.append(publish_file(store, key, staging / f"{day}.parquet", rows=len(frame), facts=facts))
            path = staging / f"{day}.packed"
            write_packed(path, frame["sample_id"].to_numpy(), frame["label"].to_numpy(), features.apply(frame))
            key = f"{packed_folder}/{day}.parquet"
            packed.append(publish_file(store, key, path, rows=len(frame), facts=facts | {"shard_key": files[-1].key}))
        (staging / "features.json").write_bytes(features.to_json())
        features_folder = f"datasets/{recipe.name}.features/{night['partition']}"
        fitted = publish_file(store, f"{features_folder}/features.json", staging / "features.json")
    validated = Manifest(
        kind="validated", name=recipe.name, key=f"v/{night['partition']}", facts={"rows": 604, "refused": 2}
    )
    publish_manifest(store, validated)
    shards = Manifest(
        kind="shards",
        name=recipe.name,
        key=folder,
        files=tuple(files),
        inputs=(input_of(store, f"{validated.key}/manifest.json"),),
        facts=night | {"without_label": 4, "join_misses": {}},
    )
    publish_manifest(store, shards)
    source = input_of(store, f"{folder}/manifest.json")
    facts = night | {"id_sizes": features.id_sizes, "dense_names": features.dense_names}
    publish_manifest(
        store,
        Manifest(
            kind="features", name=recipe.name, key=features_folder, files=(fitted,), inputs=(source,), facts=facts
        ),
    )
    publish_manifest(
        store,
        Manifest(
            kind="packed",
            name=recipe.name,
            key=packed_folder,
            files=tuple(packed),
            inputs=(source, input_of(store, f"{features_folder}/manifest.json")),
            facts=night | {"batch": 0, "batches": 1},
        ),
    )
    return f"{packed_folder}/manifest.json"


def publish_trained(store: LocalStore, recipe: Recipe, night: dict[str, Any], *, seed: int = 1) -> str:
    """A run of a night with weights drawn from `seed`, committed at its last step, and its result; the run's URI."""
    paddle = export.import_paddle()
    run_uri = open_run(recipe, [publish_data(store, recipe, night)], store=store)
    run = read_manifest(store, run_uri)
    spec = InputSpec(id_sizes=tuple(run.facts["id_sizes"]), num_dense=run.facts["num_dense"])
    paddle.seed(seed)
    model = build_model(recipe.model.name, spec, recipe.model.params)
    ids = np.concatenate([draw_rows(day)["sample_id"].to_numpy() for day in night["train"]])
    snapshot = Snapshot(
        step=run.facts["total_steps"],
        epoch=1,
        step_in_epoch=run.facts["steps_per_epoch"],
        order={1: sample_hash(ids)},
        model=HostCopies().copy("model", model_tensors(model)),
        optimizer={},
    )
    run_key = run.key.removeprefix("runs/")
    commit = publish_commit(store, run_key, snapshot, attempt=1, world_size=1, name=recipe.name)
    facts = {"steps": snapshot.step, "commit": f"{commit.key}/COMMIT.json"}
    result = Manifest(kind="result", name=recipe.name, key=run.key, facts=facts)
    publish_manifest(store, result, manifest_key=f"{run.key}/result.json")
    return run_uri


def facts_of(store: LocalStore, uri: str) -> dict[str, Any]:
    return dict(read_manifest(store, uri).facts)


def run_gate_to_promotion(store: LocalStore, recipe: Recipe, evaluation: str) -> str:
    return promote(recipe, gate(recipe, evaluation, store=store), store=store)


@pytest.fixture
def lenient(make_recipe: Callable[..., Recipe]) -> Recipe:
    """Drawn weights know nothing: the gate lets everything pass."""
    return make_recipe(**{"gate.min_auc": 0.0, "gate.max_loss": 1.0, "gate.max_slice_loss": None})


def test_first_evaluation_measures_the_holdout_rows_and_nothing_else(store: LocalStore, lenient: Recipe) -> None:
    run = publish_trained(store, lenient, NIGHT)
    uri = evaluate(lenient, run, store=store)
    facts = facts_of(store, uri)
    assert facts["champion"] is None
    assert (facts["rows"], facts["holdout"]) == (300, ["2013-11-01", "2013-11-02"])
    predictions = pl.read_parquet(store.local_path(read_manifest(store, uri).files[0].key))
    assert predictions.columns == ["sample_id", "label", "challenger", "champion"]
    rows = pl.concat([draw_rows(day) for day in NIGHT["holdout"]])
    assert predictions["sample_id"].to_list() == rows["sample_id"].to_list()
    assert predictions["champion"].null_count() == 300
    expected = sklearn.metrics.roc_auc_score(rows["label"], predictions["challenger"])
    assert facts["metrics"]["auc"]["value"] == pytest.approx(expected, abs=1e-12)
    assert facts["metrics"]["auc"]["low"] < expected < facts["metrics"]["auc"]["high"]
    assert facts["skew"]["rows"] == 300
    assert facts["skew"]["largest_difference"] <= 1e-6
    assert [part["rows"] for part in facts["slices"][0]["slices"]] == sorted(
        rows["carrier"].value_counts()["count"].to_list(), reverse=True
    )


def test_evaluation_is_found_again_until_the_champion_changes(store: LocalStore, lenient: Recipe) -> None:
    first, second = publish_trained(store, lenient, NIGHT), publish_trained(store, lenient, NEXT, seed=2)
    before = evaluate(lenient, second, store=store)
    assert evaluate(lenient, second, store=store) == before
    run_gate_to_promotion(store, lenient, evaluate(lenient, first, store=store))
    after = evaluate(lenient, second, store=store)
    assert after != before
    facts = facts_of(store, after)["champion"]
    assert (facts["version"], facts["partition"], facts["comparable"]) == (1, "2013-11-02", True)


def test_run_that_became_a_version_keeps_its_evaluation_verdict_and_promotion(
    store: LocalStore, lenient: Recipe
) -> None:
    first = publish_trained(store, lenient, NIGHT)
    evaluation = evaluate(lenient, first, store=store)
    verdict = gate(lenient, evaluation, store=store)
    promotion = promote(lenient, verdict, store=store)
    second = publish_trained(store, lenient, NEXT, seed=2)
    run_gate_to_promotion(store, lenient, evaluate(lenient, second, store=store))
    assert champion(store, "late").version == 2  # type: ignore[union-attr]
    assert evaluate(lenient, first, store=store) == evaluation
    assert gate(lenient, evaluation, store=store) == verdict
    assert promote(lenient, verdict, store=store) == promotion


def test_champion_predicts_by_its_own_features_on_the_same_rows(store: LocalStore, lenient: Recipe) -> None:
    run_gate_to_promotion(store, lenient, evaluate(lenient, publish_trained(store, lenient, NIGHT), store=store))
    uri = evaluate(lenient, publish_trained(store, lenient, NEXT, seed=2), store=store)
    predictions = pl.read_parquet(store.local_path(read_manifest(store, uri).files[0].key))
    rows = pl.concat([draw_rows(day) for day in NEXT["holdout"]])
    champion_says = load_bundle(store, "models/late/versions/1/manifest.json").predict(rows)
    np.testing.assert_allclose(predictions["champion"].to_numpy(), champion_says, atol=1e-7, rtol=0)
    facts = facts_of(store, uri)
    difference = facts["champion"]["difference"]["auc"]
    expected = sklearn.metrics.roc_auc_score(rows["label"], predictions["challenger"])
    expected -= sklearn.metrics.roc_auc_score(rows["label"], predictions["champion"])
    assert difference["value"] == pytest.approx(expected, abs=1e-12)
    assert difference["low"] < expected < difference["high"]


def test_days_that_the_champion_trained_on_are_counted_when_an_older_night_is_judged(
    store: LocalStore, lenient: Recipe
) -> None:
    run_gate_to_promotion(store, lenient, evaluate(lenient, publish_trained(store, lenient, NEXT, seed=2), store=store))
    facts = facts_of(store, evaluate(lenient, publish_trained(store, lenient, NIGHT), store=store))
    assert facts["champion"]["seen_days"] == ["2013-11-01"]
    assert facts["champion"]["seen_rows"] == 150


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"column": "distance"}, "column 'distance' (float64) is missing"),
        ({"above": 30}, "it answers another question (delay above 15, not delay above 30)"),
    ],
)
def test_champion_is_told_apart_when_it_cannot_be_compared(
    make_recipe: Callable[..., Recipe],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: dict[str, Any],
    reason: str,
) -> None:
    store, lenient = LocalStore(tmp_path), make_recipe(**{"gate.min_auc": 0.0})
    run_gate_to_promotion(store, lenient, evaluate(lenient, publish_trained(store, lenient, NIGHT), store=store))
    if "above" in change:
        changed = make_recipe(**{"data.label.above": 30, "gate.min_auc": 0.0})
    else:
        features = [{"name": "carrier", "kind": "category", "columns": ["carrier"]}]
        changed = make_recipe(**{"features": features, "gate.min_auc": 0.0})
        draw = draw_rows
        monkeypatch.setitem(globals(), "draw_rows", lambda day: draw(day).drop("distance"))
    evaluation = evaluate(changed, publish_trained(store, changed, NEXT), store=store)
    told = facts_of(store, evaluation)["champion"]
    assert told["comparable"] is False
    assert reason in told["why_not"]
    verdict = facts_of(store, gate(changed, evaluation, store=store))
    assert verdict["accepted"] is False
    assert any(reason in text for text in verdict["reasons"])


def test_skew_is_an_error_when_the_packed_rows_say_something_else(
    store: LocalStore, lenient: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = publish_trained(store, lenient, NIGHT)
    apply = export.trained_probabilities

    def skewed(layer: Any, ids_BF: np.ndarray, dense_BD: np.ndarray) -> np.ndarray:
        return apply(layer, ids_BF, dense_BD + np.float32(0.01))

    monkeypatch.setattr(export, "trained_probabilities", skewed)
    with pytest.raises(StorageError, match=r"does not serve what was trained: on the sample 2013110\d+ it says 0\.\d+"):
        evaluate(lenient, run, store=store)
    assert not list(store.list(f"{read_manifest(store, run).key}/evaluations"))


def test_skew_is_an_error_when_an_input_differs_by_one_bit(
    store: LocalStore, lenient: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = publish_trained(store, lenient, NIGHT)
    apply = FittedFeatures.apply

    def nudged(features: FittedFeatures, frame: pl.DataFrame) -> Inputs:
        inputs = apply(features, frame)
        inputs.dense_BD[7, 0] = np.nextafter(inputs.dense_BD[7, 0], np.float32(9))
        return inputs

    monkeypatch.setattr(FittedFeatures, "apply", nudged)
    with pytest.raises(StorageError, match=r"distance of the sample 2013110\d+ is .*packed as 1\.4.*; 1 of 150 rows"):
        evaluate(lenient, run, store=store)


def test_skew_is_an_error_when_shards_and_packed_rows_are_of_other_days(store: LocalStore, lenient: Recipe) -> None:
    from paddlewheel.evaluation.skew import check_skew

    ids_B, nothing = np.array([7, 8], np.uint64), FittedFeatures(features=(), column_types={})
    inputs = Inputs(ids_BF=np.zeros((2, 0), np.int32), dense_BD=np.zeros((2, 0), np.float32))
    with pytest.raises(StorageError, match="2 of 2 holdout rows are not among the packed rows"):
        check_skew(None, [], ids_B, np.array([0.1, 0.2]), features=nothing, inputs=inputs, store=store)


def test_error_says_so_when_the_run_is_not_trained_to_its_end(store: LocalStore, lenient: Recipe) -> None:
    run = publish_trained(store, lenient, NIGHT)
    Path(store.local_path(f"{read_manifest(store, run).key}/result.json")).unlink()
    with pytest.raises(StorageError, match="is not trained to its end; run train again"):
        evaluate(lenient, run, store=store)


def test_error_tells_every_weight_when_the_commit_is_of_another_network(
    store: LocalStore, make_recipe: Callable[..., Recipe]
) -> None:
    run = publish_trained(store, make_recipe(), NIGHT)
    with pytest.raises(CheckpointError, match=r"has the shape .*, not "):
        evaluate(make_recipe(**{"model.params.hidden": [16]}), run, store=store)


def test_error_names_the_days_when_no_holdout_row_has_a_label(
    store: LocalStore, lenient: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = draw_rows
    monkeypatch.setitem(globals(), "draw_rows", lambda day: draw(day, 0 if day in NIGHT["holdout"] else 150))
    run = publish_trained(store, lenient, NIGHT)
    with pytest.raises(DataError, match="holdout days 2013-11-01, 2013-11-02 have no rows with a label"):
        evaluate(lenient, run, store=store)


def test_report_and_summary_tell_the_night(store: LocalStore, lenient: Recipe) -> None:
    evaluation = evaluate(lenient, publish_trained(store, lenient, NIGHT), store=store)
    promotion = run_gate_to_promotion(store, lenient, evaluation)
    card = report(lenient, promotion, store=store)
    assert report(lenient, promotion, store=store) == card
    html = store.read(read_manifest(store, card).files[0].key).decode()
    assert "Promoted: version 1 is in service" in html
    assert "exactly once in the epoch" in html
    lines = summary_lines(store, promotion)
    told = {line.split()[0]: line for line in lines if not line.startswith(" ")}
    assert "606 rows; 300 to train on (2 days), 300 held out (2 days), 4 without a label" in told["ingested"]
    auc = facts_of(store, evaluation)["metrics"]["auc"]
    assert f"AUC {auc['value']:.4f} ({auc['low']:.4f} to {auc['high']:.4f}), log loss 0." in told["holdout"]
    assert told["gate"].split() == ["gate", "accepted"]
    assert told["champion"].endswith("version 1 (this run)")
    assert told["report"].split()[1] == str(store.local_path(read_manifest(store, card).files[0].key))
