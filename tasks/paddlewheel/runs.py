"""What a store knows of its runs: listed, shown, and verified file by file along their whole lineage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.manifest import Manifest, read_manifest, verify
from paddlewheel.storage import Store

READERS = 16


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One line of `runs list`. `verdict` is of the newest gate: accepted, refused, or empty before one."""

    key: str
    recipe: str
    partition: str
    state: str
    attempts: int
    verdict: str
    version: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def list_runs(store: Store) -> list[RunSummary]:
    """Every run of the store, by recipe, partition, then key. Read side by side: a run is a dozen requests on S3."""
    with ThreadPoolExecutor(READERS) as pool:
        opened = pool.map(lambda key: _summary(store, key), store.children("runs"))
        found = [run for run in opened if run is not None]
    return sorted(found, key=lambda run: (run.recipe, run.partition, run.key))


def find_run(store: Store, key: str | None, *, partition: str | None = None, recipe: str | None = None) -> RunSummary:
    """The run of this key, or of the only key that begins so; with a partition, the newest run of that.

    Raises RecipeError where there is none, or more than one.
    """
    if partition is not None:
        found = [
            run for run in list_runs(store) if run.partition == partition and (recipe is None or run.recipe == recipe)
        ]
        if not found:
            raise RecipeError(f"no run of the partition {partition} in {store.root}; `paddlewheel runs list` shows all")
        return max(found, key=lambda run: _last_moved(store, run.key))
    keys = [name for name in store.children("runs") if name.startswith(key or "")]
    if len(keys) != 1:
        shown = ", ".join(keys[:5]) or "none"
        raise RecipeError(f"{len(keys)} runs begin with {key or ''!r} in {store.root} ({shown}); `runs list` shows all")
    run = _summary(store, keys[0])
    if run is None:
        raise RecipeError(f"the run {keys[0]} in {store.root} was never opened to its end; `runs list` shows all")
    return run


def _last_moved(store: Store, key: str) -> float:
    """When the run's newest card was written, in seconds since 1970; 0 before the first."""
    cards = [f"runs/{key}/cards/{name}/manifest.json" for name in store.children(f"runs/{key}/cards")]
    return max((stat.modified_seconds for stat in map(store.stat, cards) if stat), default=0.0)


def newest_manifests(store: Store, run_key: str, folder: str) -> list[Manifest]:
    """Manifests of one kind below a run (evaluations, verdicts, promotions, cards), oldest first."""
    found = []
    for name in store.children(f"runs/{run_key}/{folder}"):
        key = f"runs/{run_key}/{folder}/{name}/manifest.json"
        if (stat := store.stat(key)) is not None:
            found.append((stat.modified_seconds, read_manifest(store, key)))
    return [manifest for _, manifest in sorted(found, key=lambda entry: entry[0])]


def verify_run(store: Store, run: RunSummary) -> list[str]:
    """Verify every file of the run and of all it came from; one sentence a problem, none where all is right."""
    problems = []
    published = [] if run.version is None else [f"models/{run.recipe}/versions/{run.version}/manifest.json"]
    for key in (*_manifest_keys(store, run.key), *published):
        try:
            manifest = read_manifest(store, key)
            verify(store, manifest, audit=True)
            for entry in manifest.inputs:
                if not entry.key.endswith(".json"):
                    continue
                if xxhash.xxh3_128_hexdigest(store.read(entry.key)) != entry.digest:
                    problems.append(f"{store.uri(entry.key)} is not the manifest that {key} was made from")
        except StorageError as error:
            problems.append(str(error))
    return problems


def lines_of(runs: Sequence[RunSummary]) -> list[str]:
    """A table for people."""
    if not runs:
        return []
    rows = [("RUN", "RECIPE", "PARTITION", "STATE", "ATTEMPTS", "GATE", "VERSION")]
    rows += [
        (run.key, run.recipe, run.partition, run.state, str(run.attempts), run.verdict, str(run.version or ""))
        for run in runs
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _summary(store: Store, key: str) -> RunSummary | None:
    """None for a folder without the run's manifest: whoever opened it died meanwhile."""
    if store.stat(f"runs/{key}/manifest.json") is None:
        return None
    run = read_manifest(store, f"runs/{key}/manifest.json")
    promotions = newest_manifests(store, key, "promotions")
    verdicts = newest_manifests(store, key, "verdicts")
    attempts = [stat.key for stat in store.list(f"runs/{key}/attempts") if not stat.key.endswith(".verdict.json")]
    verdict = "" if not verdicts else "accepted" if verdicts[-1].facts["accepted"] else "refused"
    return RunSummary(
        key=key,
        recipe=run.name,
        partition=str(run.facts["partition"]),
        state="trained" if store.stat(f"runs/{key}/result.json") else "begun" if attempts else "open",
        attempts=len(attempts),
        verdict=verdict,
        version=promotions[-1].facts.get("version") if promotions else None,
    )


def _manifest_keys(store: Store, run_key: str) -> Iterator[str]:
    """Keys of all manifests below the run, and of all that they came from."""
    frontier = [stat.key for stat in store.list(f"runs/{run_key}") if stat.key.endswith("manifest.json")]
    frontier += [key for key in (f"runs/{run_key}/result.json",) if store.stat(key)]
    seen: set[str] = set()
    while frontier:
        key = frontier.pop()
        if key in seen:
            continue
        seen.add(key)
        yield key
        try:
            frontier += [entry.key for entry in read_manifest(store, key).inputs if entry.key.endswith(".json")]
        except StorageError:
            continue  # verify_run reads it too, and tells
