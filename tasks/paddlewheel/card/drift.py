"""The card's page of the data: a small chart a column, the flagged ones first, and what was measured of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from paddlewheel.card.histograms import Seen, small_chart
from paddlewheel.data.checks.champion_drift import drift_folder
from paddlewheel.data.checks.drift import BEYOND_USUAL, ColumnDrift, limits_of
from paddlewheel.data.checks.drift_words import plain
from paddlewheel.data.statistics.table_statistics import ColumnStatistics, TableStatistics
from paddlewheel.data.statistics.window_statistics import ALL_DAYS, read_merged
from paddlewheel.errors import StorageError
from paddlewheel.lineage import manifest_key, nearest
from paddlewheel.manifest import Manifest, read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_data import Column, Drift, Source
from paddlewheel.storage import Store

MOST_CELLS: Final = 200
SHORT: Final = {
    "missing": "missing",
    "outside": "out of range",
    "psi": "PSI",
    "divergence": "divergence",
    "new": "new values",
}
FLAGS: Final = {
    "missing": "missing changed by",
    "outside": "outside the known range",
    "psi": "PSI",
    "divergence": "divergence",
    "new": "new values",
}
FIRST_CELLS: Final = 8
Merged = Mapping[str, Mapping[str, TableStatistics]]


def drift_view(recipe: Recipe, validated: Manifest, champion_run: str | None, store: Store) -> dict[str, Any] | None:
    """Texts and charts of the section; None where the data was validated before there were statistics."""
    ours = read_merged(store, validated)
    if not ours:
        return None
    theirs, comparison = _champion(recipe, validated, champion_run, store)
    found = [ColumnDrift.from_tree(one) for one in validated.facts["drift"]]
    if comparison is not None:
        found += [ColumnDrift.from_tree(one) for one in comparison.facts["drift"]]
    by_column: dict[tuple[str, str], list[ColumnDrift]] = {}
    for one in found:
        by_column.setdefault((one.source, one.column), []).append(one)
    cells = [
        _cell(
            source,
            column,
            ours[source.name],
            (theirs or {}).get(source.name, {}),
            drifts=drifts,
            drift=recipe.data.drift,
        )
        for source in (recipe.data.rows, *(join.source for join in recipe.data.joins))
        if source.name in ours
        for column in source.columns
        for drifts in [by_column.get((source.name, column.name), [])]
    ]
    for place, cell in enumerate(cells):
        cell["place"] = place
    ranked = sorted(cells, key=lambda cell: (-len(cell["flags"]), -cell["score"], cell["place"]))
    for rank, cell in enumerate(ranked):
        cell["rank"] = rank
    flagged = sum(bool(cell["flags"]) for cell in cells)
    first = max(FIRST_CELLS, flagged)
    keys = [("train", "training days"), ("holdout", "holdout days")]
    if theirs:
        keys.append(("champion", "the champion's training days"))
    return {
        "first": ranked[:first],
        "others": ranked[first:MOST_CELLS],
        "left_out": max(0, len(ranked) - MOST_CELLS),
        "keys": keys,
        "headline": _headline(flagged, len(cells)),
        "notes": list(validated.facts["notes"]),
        "compared": None if comparison is None else comparison.facts["champion_partition"],
    }


def _champion(
    recipe: Recipe, validated: Manifest, champion_run: str | None, store: Store
) -> tuple[Merged | None, Manifest | None]:
    """The statistics of the champion's data, and the comparison with it where validate made one."""
    if champion_run is None:
        return None, None
    try:
        theirs = nearest(store, f"runs/{champion_run.removeprefix('runs/')}/manifest.json", "validated")
    except StorageError:  # swept away, or from before there was a validated manifest
        return None, None
    if theirs.key == validated.key:
        return None, None
    folder = drift_folder(recipe, store, manifest_key(validated), manifest_key(theirs))
    made = store.stat(f"{folder}/manifest.json") is not None
    return read_merged(store, theirs) or None, read_manifest(store, f"{folder}/manifest.json") if made else None


def _cell(
    source: Source,
    column: Column,
    ours: Mapping[str, TableStatistics],
    theirs: Mapping[str, TableStatistics],
    *,
    drifts: Sequence[ColumnDrift],
    drift: Drift,
) -> dict[str, Any]:
    train, holdout = _find(ours, column.name, "train", ALL_DAYS), _find(ours, column.name, "holdout")
    champion = _find(theirs, column.name, "train", ALL_DAYS)
    seen = [
        Seen(label=label, look=look, column=one)
        for label, look, one in (
            ("Training days" if "train" in ours else "All rows", "train", train),
            ("Holdout days", "holdout", holdout),
            ("Champion's data", "champion", champion),
        )
        if one is not None and (train is None or one.type == train.type)
    ]
    name = f"{source.name}.{column.name}"
    by_over = {one.over: one for one in drifts}
    pooled = by_over.get("holdout", by_over.get("partition"))
    flags = [_flag(one) for one in drifts if one.warned]
    return {
        "name": column.name,
        "source": source.name,
        "unit": column.unit,
        "after": column.known == "after",
        "chart": small_chart(name, seen),
        "flags": flags,
        "facts": _facts(train, holdout, pooled, by_over.get("champion")),
        "score": max((_score(one, limits_of(column, drift)) for one in drifts), default=-1.0),
    }


def _find(merged: Mapping[str, TableStatistics], column: str, *names: str) -> ColumnStatistics | None:
    for name in names:
        if name in merged and column in merged[name]:
            return merged[name][column]
    return None


def _score(found: ColumnDrift, limits: Drift) -> float:
    """The largest measure as a part of what would be told: its limit, or twice what is usual."""
    marks = {name: getattr(limits, name).warn for name in found.measures}
    return max(
        (
            found.measures[name] / max(mark, BEYOND_USUAL * found.usual.get(name, 0.0), 1e-9)
            for name, mark in marks.items()
            if mark is not None
        ),
        default=-1.0,
    )


def _flag(found: ColumnDrift) -> str:
    where = {"partition": "The partition's day", "holdout": "The holdout days", "champion": "Since the champion's data"}
    parts = []
    for name in found.warned:
        usual = f" (usually up to {_measure(name, found.usual[name])})" if found.usual.get(name) else ""
        parts.append(f"{FLAGS[name]} {_measure(name, found.measures[name])}{usual}")
    return f"{where[found.over]}: {', '.join(parts)}"


def _facts(
    train: ColumnStatistics | None,
    holdout: ColumnStatistics | None,
    pooled: ColumnDrift | None,
    champion: ColumnDrift | None,
) -> list[tuple[str, str]]:
    """Name and value, `training → holdout` where there are both."""
    known = [one for one in (train, holdout) if one is not None]
    facts = []
    if known and known[0].type in ("string", "bool"):
        facts.append(("values", _then_now(f"{one.distinct:,}" for one in known)))
    elif known and known[0].type in ("int64", "float64", "binary"):
        facts.append(("median", _then_now(plain(one.quantile(0.5)) for one in known)))
    facts.append(("missing", _then_now(_percent(one.missing_share) for one in known)))
    measures = {} if pooled is None else pooled.measures
    facts += [(SHORT[name], _measure(name, measures[name])) for name in ("psi", "new") if name in measures]
    if measures.get("outside"):
        facts.append((SHORT["outside"], _measure("outside", measures["outside"])))
    if champion is not None and "psi" in champion.measures:
        facts.append(("PSI, champion", _measure("psi", champion.measures["psi"])))
    return facts


def _then_now(texts: Iterable[str]) -> str:
    """`before → after`, or once where they are the same."""
    return " → ".join(dict.fromkeys(texts))


def _measure(name: str, value: float) -> str:
    return f"{value:.2f}" if name in ("psi", "divergence") else _percent(value)


def _percent(share: float) -> str:
    return "0%" if share == 0 else "under 0.1%" if share < 0.001 else f"{share:.1%}"


def _headline(flagged: int, total: int) -> str:
    return (
        f"{flagged or 'None'} of {total} columns drifted beyond the recipe's limits and beyond what is usual "
        "on the training days."
    )
