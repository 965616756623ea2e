"""How far a window's data is from what the champion learnt from: a manifest of its own, made once for the two.

The champion moves while the data stays as it is, so this is no part of `validated`.
"""

from __future__ import annotations

import logging
from typing import Final

from paddlewheel.champions import champion
from paddlewheel.data.checks.drift import ColumnDrift, comparable, judge
from paddlewheel.data.checks.drift_words import drift_sentence, way_out
from paddlewheel.data.datasets import dataset_folder, manifest_key
from paddlewheel.data.landing.groups import sources_of
from paddlewheel.data.statistics.table_statistics import TableStatistics
from paddlewheel.data.statistics.window_statistics import ALL_DAYS, read_merged
from paddlewheel.errors import DataError, StorageError
from paddlewheel.lineage import manifest_key as key_of
from paddlewheel.lineage import nearest
from paddlewheel.manifest import Manifest, code_digest, derive_key, input_of, publish_manifest, read_manifest
from paddlewheel.recipe import Recipe, dump
from paddlewheel.storage import Store

CODE: Final = ("paddlewheel.data.checks",)

OVER: Final = "champion"
log = logging.getLogger(__name__)


def compare_with_champion(recipe: Recipe, validated_key: str, *, store: Store) -> str | None:
    """Compare a window's training days with the champion's; the URI of the `drift` manifest.

    None where there is no champion, it learnt from the same data, or nothing is known of its data any more. Raises
    DataError where a measure passes a `fail` limit of the recipe.
    """
    current = champion(store, recipe.name)
    if current is None:
        return None
    try:
        theirs = nearest(store, f"runs/{current.run.removeprefix('runs/')}/manifest.json", "validated")
    except StorageError as error:  # swept away meanwhile: no reason to stop tonight's training
        log.warning("validate: the data is not compared with the champion's: %s", error)
        return None
    if key_of(theirs) == validated_key:
        return None
    key = manifest_key(drift_folder(recipe, store, validated_key, key_of(theirs)))
    if store.stat(key) is None:
        made = _compare(recipe, read_manifest(store, validated_key), theirs, store=store)
        if made is None:
            return None
        publish_manifest(store, made)
    manifest = read_manifest(store, key)
    if manifest.facts["failures"]:
        raise DataError("\n".join(manifest.facts["failures"]))
    return store.uri(key)


def drift_folder(recipe: Recipe, store: Store, validated_key: str, champion_key: str) -> str:
    """The folder of the comparison of two `validated` manifests."""
    pair = [input_of(store, key).digest for key in (validated_key, champion_key)]
    key = derive_key("drift", pair, dump(recipe.data.drift), code_digest(*CODE))
    return dataset_folder(recipe, "drift", key)


def _compare(recipe: Recipe, validated: Manifest, theirs: Manifest, *, store: Store) -> Manifest | None:
    ours, before = read_merged(store, validated), read_merged(store, theirs)
    if not before:
        log.info("validate: the champion's data has no statistics; it is not compared")
        return None
    drifts: list[ColumnDrift] = []
    told: list[str] = []
    failures: list[str] = []
    name = f"the champion's data ({theirs.facts['partition']})"
    for source in sources_of(recipe).values():
        seen, reference = (_of_window(found.get(source.name, {})) for found in (ours, before))
        if seen is None or reference is None:
            continue
        columns = {column.name: column for column in source.columns}
        for one in judge(
            source.columns, reference, seen, source=source.name, over=OVER, drift=recipe.data.drift
        ):  # fmt: skip
            drifts.append(one)
            if one.warned or one.failed:
                column = columns[one.column]
                pair = ("this window", seen[one.column]), (name, reference[one.column])
                sentence = drift_sentence(one, column, recipe.data.drift, *pair)
                if one.failed:
                    failures.append(f"{sentence}. {way_out(one, column)}")
                else:
                    told.append(sentence)
    if told:
        short = ", ".join(
            f"{one.source}.{one.column} ({name} {one.measures[name]:.2g})" for one in drifts for name in one.warned[:1]
        )
        log.warning(
            "validate: further from the champion's data (%s) than the recipe's limits: %s",
            theirs.facts["partition"], short,
        )  # fmt: skip
    folder = drift_folder(recipe, store, key_of(validated), key_of(theirs))
    return Manifest(
        kind="drift",
        name=recipe.name,
        key=folder,
        inputs=(input_of(store, key_of(validated)), input_of(store, key_of(theirs))),
        code=code_digest(*CODE),
        facts={
            "partition": validated.facts["partition"],
            "champion_partition": theirs.facts["partition"],
            "drift": [one.to_tree() for one in drifts],
            "drift_warnings": told,
            "failures": failures,
        },
    )


def _of_window(merged: dict[str, TableStatistics]) -> TableStatistics | None:
    found = merged.get("train") or merged.get(ALL_DAYS)
    return None if found is None else comparable(found, None)
