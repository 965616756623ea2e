"""Evaluation: the exported challenger and the champion on the same raw holdout rows, each with its own features."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import polars as pl

from paddlewheel.errors import DataError
from paddlewheel.evaluation.compare import Comparison, Scored, compare, seed_of
from paddlewheel.evaluation.own_metrics import with_own_metrics
from paddlewheel.evaluation.skew import check_skew, packed_of
from paddlewheel.evaluation.slices import cut_by
from paddlewheel.export import build_trained, export_bundle, load_bundle, read_fitted
from paddlewheel.lineage import nearest
from paddlewheel.manifest import (
    Manifest,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_file,
    publish_manifest,
    read_manifest,
    verify,
)
from paddlewheel.recipe import Recipe, dump
from paddlewheel.registry import Champion, champion, version_of_run
from paddlewheel.storage import Store

PREDICTIONS = "predictions.parquet"
CODE = (
    "paddlewheel.evaluation.evaluate",
    *(f"paddlewheel.evaluation.{name}" for name in ("compare", "metrics", "own_metrics", "slices")),
)
log = logging.getLogger(__name__)


def evaluate(recipe: Recipe, run_uri: str, *, store: Store) -> str:
    """Measure a finished run on its holdout days, against the champion of this moment; the URI of the `evaluation`.

    A run that already is a version returns the evaluation that the version records. Raises StorageError where the
    exported bundle says something else than the trained network (see `skew`), DataError for an empty holdout.
    """
    run = read_manifest(store, run_uri)
    run_key = run.key.removeprefix("runs/")
    became = version_of_run(store, recipe.name, run_key)
    if became is not None:
        for key in (became.evaluation, became.manifest):
            verify(store, read_manifest(store, key))
        log.info("evaluate: the run is version %d already, its files verified, its evaluation stands", became.version)
        return store.uri(became.evaluation)
    bundle_uri = export_bundle(recipe, run_uri, store=store)
    current = champion(store, recipe.name)
    inputs = [input_of(store, run_uri), input_of(store, bundle_uri)]
    if current is not None:
        inputs.append(input_of(store, current.manifest))
    made_of = [[entry.key, entry.digest] for entry in inputs]
    code = code_digest(*CODE, *sorted({name.partition(":")[0] for name in recipe.evaluation.metrics}))
    folder = f"{run.key}/evaluations/{derive_key('evaluation', made_of, dump(recipe.evaluation), code)}"
    if find_done(store, f"{folder}/manifest.json"):
        return store.uri(f"{folder}/manifest.json")

    shards = nearest(store, run_uri, "shards")
    frame = read_holdout(store, shards)
    bundle = load_bundle(store, bundle_uri)
    served = bundle.features.apply(frame)
    challenger_B = bundle.predict_inputs(served.ids_BF, served.dense_BD)
    layer = build_trained(recipe, run, read_fitted(store, nearest(store, run_uri, "features")), store)
    sample_ids_B = frame["sample_id"].to_numpy()
    skew = check_skew(
        layer,
        packed_of(store, run_uri),
        sample_ids_B,
        challenger_B,
        features=bundle.features,
        inputs=served,
        store=store,
    )
    champion_B, why_not = score_champion(store, current, frame, bundle.signature["label"])
    scored = Scored(
        labels_B=frame["label"].cast(pl.Float64).to_numpy(), challenger_B=challenger_B, champion_B=champion_B
    )
    whole = compare(scored, recipe.evaluation, seed=seed_of(run_key))
    whole = with_own_metrics(whole, scored, recipe.evaluation.metrics)
    cuts = cut_by(frame, scored, recipe.evaluation, run_key=run_key)
    with store.staging() as staging:
        predictions = frame.select("sample_id", "label").with_columns(
            challenger=pl.Series(challenger_B, dtype=pl.Float64),
            champion=pl.Series(champion_B, dtype=pl.Float64) if champion_B is not None else pl.lit(None, pl.Float64),
        )
        predictions.write_parquet(staging / PREDICTIONS, compression="zstd")
        file = publish_file(store, f"{folder}/{PREDICTIONS}", staging / PREDICTIONS, rows=len(frame))
    facts = {
        "run": run_key,
        "partition": shards.facts["partition"],
        "train": shards.facts["train"],
        "holdout": shards.facts["holdout"],
        "rows": len(frame),
        "positives": int(np.sum(scored.labels_B > 0.5)),
        "settings": dump(recipe.evaluation),
        "metrics": whole.to_json()["challenger"],
        "champion": _champion_facts(store, current, whole, why_not, shards),
        "slices": [cut.to_json() for cut in cuts],
        "skew": skew,
    }
    _log(facts)
    evaluation = Manifest(
        kind="evaluation",
        name=recipe.name,
        key=folder,
        files=(file,),
        inputs=tuple(inputs),
        recipe=recipe.digest,
        code=code,
        facts=facts,
    )
    return publish_manifest(store, evaluation)


def read_holdout(store: Store, shards: Manifest) -> pl.DataFrame:
    """The raw rows of the holdout shards in their order, digests verified. Raises DataError where there is none."""
    files = [shard for shard in shards.files if shard.facts["role"] == "holdout"]
    verify(store, shards)
    frames = [pl.read_parquet(store.local_path(shard.key)) for shard in files]
    frame = pl.concat(frames) if frames else pl.DataFrame()
    if frame.is_empty():
        days = ", ".join(shards.facts["holdout"])
        raise DataError(f"the holdout days {days} have no rows with a label; widen data.window.holdout_days")
    return frame


def score_champion(
    store: Store, current: Champion | None, frame: pl.DataFrame, label: dict[str, Any]
) -> tuple[np.ndarray | None, str]:
    """The champion's probabilities by its own features, or None and why it cannot be compared on these rows."""
    if current is None:
        return None, ""
    bundle = load_bundle(store, current.manifest)
    asked, now = bundle.signature["label"], label
    if asked != now:
        return None, (
            f"it answers another question ({asked['column']} above {asked['above']:g}, "
            f"not {now['column']} above {now['above']:g})"
        )
    try:
        return bundle.predict(frame), ""
    except DataError as error:
        return None, str(error)


def _champion_facts(
    store: Store, current: Champion | None, whole: Comparison, why_not: str, shards: Manifest
) -> dict[str, Any] | None:
    """Who the champion is, how it compares, and which of these holdout days it was trained on."""
    if current is None:
        return None
    trained_on = set(read_manifest(store, current.manifest).facts["window"]["train"])
    seen = [day for day in shards.facts["holdout"] if day in trained_on]
    compared = whole.to_json()
    return current.to_json() | {
        "comparable": not why_not,
        "why_not": why_not,
        "metrics": compared["champion"],
        "difference": compared["difference"],
        "seen_days": seen,
        "seen_rows": sum(
            shard.rows or 0 for shard in shards.files if shard.facts["role"] == "holdout" and shard.facts["day"] in seen
        ),
    }


def _log(facts: dict[str, Any]) -> None:
    auc, loss, against = facts["metrics"]["auc"], facts["metrics"]["log_loss"], facts["champion"]
    told = " ".join(
        f"{name} {one['value']:.4f}" for name, one in (("AUC", auc), ("log loss", loss)) if one["value"] is not None
    )
    log.info("evaluate: %d holdout rows, %s; bundle and training differ by %.1e at most", facts["rows"], told,
             facts["skew"]["largest_difference"])  # fmt: skip
    if against and not against["comparable"]:
        log.warning(
            "evaluate: the champion, version %d, cannot be compared: %s", against["version"], against["why_not"]
        )
    elif against and against["seen_days"]:
        log.warning(
            "evaluate: the champion, version %d, was trained on %d of the %d holdout days: the comparison favours it",
            against["version"], len(against["seen_days"]), len(facts["holdout"]),
        )  # fmt: skip
