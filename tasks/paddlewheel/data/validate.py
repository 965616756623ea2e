"""The recipe's limits on what was ingested: refusals, unreadable files, keys that stand twice, drift; and statistics.

Tables and their statistics are read one after the other, never a window's rows at once. The `validated` manifest is a
function of the data and the recipe alone; how far the data is from the champion's stands in a manifest of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paddlewheel.data.checks import limits
from paddlewheel.data.checks.champion_drift import compare_with_champion
from paddlewheel.data.checks.drift import ColumnDrift, judge, usual_measures
from paddlewheel.data.checks.drift_words import drift_sentence, way_out
from paddlewheel.data.datasets import add_counts, dataset_folder, manifest_key, read_kind, window_facts
from paddlewheel.data.landing.groups import sources_of
from paddlewheel.data.statistics.table_statistics import merge
from paddlewheel.data.statistics.window_statistics import SourceStatistics, gather, publish_merged, summary
from paddlewheel.errors import DataError, StorageError
from paddlewheel.lineage import manifest_key as key_of
from paddlewheel.manifest import (
    Input,
    Manifest,
    Shard,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_file,
    publish_manifest,
    read_manifest,
)
from paddlewheel.recipe import Recipe, dump
from paddlewheel.storage import Store

QUARANTINE: Final = "quarantine.jsonl"
MAX_TOLD: Final = 5
CODE: Final = ("paddlewheel.data.validate", "paddlewheel.data.checks", "paddlewheel.data.statistics")
log = logging.getLogger(__name__)


def validate(recipe: Recipe, ingest_uris: Sequence[str], *, store: Store) -> str:
    """Hold the window's tables against the recipe; returns the URI of the `validated` manifest.

    Raises DataError, all faults together, where more rows were refused or more files are unreadable than a source
    bears, over the window or on the partition's own day, where two tables hold a row of the same key, where the
    partition's day has no row, or where a measure of drift passes a `fail` limit.
    """
    batches = _batches(store, ingest_uris)
    window = window_facts(batches[0].facts)
    inputs = tuple(input_of(store, key_of(batch)) for batch in batches)
    section = [
        [dump(source) for source in sources_of(recipe).values()],
        dump(recipe.data.drift),
        recipe.data.label.column,
    ]
    code = code_digest(*CODE)
    key = derive_key("validated", [one.digest for one in inputs], section, code)
    folder = dataset_folder(recipe, "validated", key)
    if not find_done(store, manifest_key(folder)):
        _make(recipe, batches, window, folder, store=store, inputs=inputs, code=code)
    compare_with_champion(recipe, manifest_key(folder), store=store)
    return store.uri(manifest_key(folder))


def _make(
    recipe: Recipe,
    batches: Sequence[Manifest],
    window: Mapping[str, Any],
    folder: str,
    *,
    store: Store,
    inputs: tuple[Input, ...],
    code: str,
) -> None:
    files = [file for batch in batches for file in batch.files]
    tables = {
        one.key.rpartition("/")[0]: read_manifest(store, one.key)
        for batch in batches
        for one in batch.inputs[1:]  # the first is the plan
    }
    found = [gather(source, files, window, store) for source in sources_of(recipe).values()]
    faults = _faults(recipe, files, tables, window["partition"], store)
    notes = limits.notes_on_days(recipe, found, window)
    drift, told, failures = _drift(recipe, found, window)
    if faults or failures:
        raise DataError("\n".join([*faults, *failures]))
    for line in [*notes, *told[:MAX_TOLD]]:
        log.warning("validate: %s", line)
    if len(told) > MAX_TOLD:
        log.warning("validate: … and %d more columns that drifted: the card shows them", len(told) - MAX_TOLD)
    quarantine = limits.unreadable_files(list(tables.values()))
    facts = _counts(recipe, batches, files) | {
        "unreadable": _by_source(quarantine),
        "notes": notes,
        "statistics": {
            one.source.name: {over: summary(statistics) for over, statistics in one.merged.items()} for one in found
        },
        "drift": [one.to_tree() for one in drift],
        "drift_warnings": told,
    }
    log.info(
        "validate: %d rows of %s, %d refused, within the recipe's limits",
        facts["rows"], recipe.data.rows.name, facts["refused"],
    )  # fmt: skip
    manifest = Manifest(
        kind="validated",
        name=recipe.name,
        key=folder,
        files=(*files, *publish_merged(found, folder, store), *_publish_quarantine(quarantine, folder, store)),
        inputs=inputs,
        code=code,
        facts={**facts, **window},
    )
    publish_manifest(store, manifest)


def _batches(store: Store, uris: Sequence[str]) -> list[Manifest]:
    """The ingest manifests of one plan, all of its batches in order."""
    found = sorted((read_kind(store, uri, "ingest") for uri in uris), key=lambda one: int(one.facts["batch"]))
    numbers = [one.facts["batch"] for one in found]
    if not found or numbers != list(range(found[0].facts["batches"])):
        wanted = found[0].facts["batches"] if found else "all"
        raise StorageError(
            f"validate needs the ingest manifests of all {wanted} batches of one plan, these are {numbers}"
        )
    if len({one.inputs[0].key for one in found}) > 1:
        raise StorageError("validate needs the ingest manifests of one plan, these are of several")
    return found


def _faults(
    recipe: Recipe, files: Sequence[Shard], tables: Mapping[str, Manifest], partition: str, store: Store
) -> list[str]:
    faults: list[str] = []
    for source in sources_of(recipe).values():
        own = [file for file in files if file.facts["source"] == source.name]
        own_tables = [table for table in tables.values() if table.facts["source"] == source.name]
        faults += limits.refused_beyond(source, own, partition, store)
        faults += limits.unreadable_beyond(source, own_tables, partition)
        with store.staging() as scratch:
            faults += limits.rows_twice(source, own, tables, store, scratch)
    return faults or list(limits.empty_partition(recipe, files, partition))


def _drift(
    recipe: Recipe, found: Sequence[SourceStatistics], window: Mapping[str, Any]
) -> tuple[list[ColumnDrift], list[str], list[str]]:
    """The measures of the partition's day and of the holdout against the training window; warnings; faults."""
    drifts: list[ColumnDrift] = []
    told: list[str] = []
    faults: list[str] = []
    train, holdout = window["train"], window["holdout"]
    for one in found:
        days = {day: one.days[day] for day in train if day in one.days}
        if not days:
            continue
        reference = merge(days.values())
        columns = {column.name: column for column in one.source.columns}
        for over, name, seen_days in (
            ("partition", window["partition"], holdout[-1:]),
            ("holdout", f"holdout days {holdout[0]} to {holdout[-1]}", holdout if len(holdout) > 1 else ()),
        ):
            present = [one.days[day] for day in seen_days if day in one.days]
            if not present:
                continue
            seen = merge(present)
            usual = usual_measures(days, length=len(seen_days), gap=len(holdout) - len(seen_days))
            for drift in judge(
                one.source.columns,
                reference,
                seen,
                source=one.source.name,
                over=over,
                drift=recipe.data.drift,
                usual=usual,
            ):
                drifts.append(drift)
                if drift.warned or drift.failed:
                    column = columns[drift.column]
                    pair = (name, seen[drift.column]), ("training days", reference[drift.column])
                    sentence = drift_sentence(drift, column, recipe.data.drift, *pair)
                    told.append(sentence) if not drift.failed else faults.append(
                        f"{sentence}. {way_out(drift, column)}"
                    )
    return drifts, told, faults


def _counts(recipe: Recipe, batches: Sequence[Manifest], files: Sequence[Shard]) -> dict[str, Any]:
    name = recipe.data.rows.name
    refused = add_counts(batch.facts["refused"] for batch in batches)
    days: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.facts["source"] == name and file.facts["part"] == "rows":
            day = days.setdefault(file.facts["partition"], {"day": file.facts["partition"], "rows": 0, "refused": 0})
            day["rows"] += file.rows or 0
            day["refused"] += file.facts["refused"]
    return {
        "rows": sum(day["rows"] for day in days.values()),
        "refused": refused.get(name, 0),
        "refused_by_reason": add_counts(batch.facts["reasons"].get(name, {}) for batch in batches),
        "refused_by_source": refused,
        "days": [days[day] for day in sorted(days)],
    }


def _by_source(quarantine: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return add_counts({str(one["source"]): 1} for one in quarantine)


def _publish_quarantine(quarantine: Sequence[Mapping[str, Any]], folder: str, store: Store) -> list[Shard]:
    """quarantine.jsonl, a JSON object a file, where any file could not be read."""
    if not quarantine:
        return []
    with store.staging() as staging:
        path = staging / QUARANTINE
        path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in quarantine), encoding="utf-8")
        facts = {"part": "quarantine", "source": None, "partition": None}
        return [publish_file(store, f"{folder}/{QUARANTINE}", path, rows=len(quarantine), facts=facts)]
