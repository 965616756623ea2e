"""The plan of a partition: the days it trains on and is judged by, and the landing files it needs, frozen by digest.

Every later step takes the recipe and the bytes from the plan, so that a file delivered again meanwhile is noticed.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paddlewheel.data.datasets import dataset_folder, manifest_key, read_kind
from paddlewheel.errors import DataError, RecipeError, StorageError
from paddlewheel.manifest import Manifest, code_digest, derive_key, find_done, publish_manifest
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_check import load_recipe
from paddlewheel.recipe_data import Join, Source
from paddlewheel.storage import Store, digest_file, open_store

PARTITION = "{partition}"
TABLE_CODE = tuple(f"paddlewheel.data.{name}" for name in ("ingest", "schema", "records", "types"))
MAX_TOLD = 5
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A landing file as planned. `partition`: its day, None for a source of one file.

    `table`: key of its table dataset; `published`: that dataset was there when the plan was made.
    """

    path: str
    uri: str
    bytes: int
    digest: str
    table: str
    partition: str | None = None
    published: bool = False


def plan(recipe: Recipe, partition: str, *, store: Store) -> str:
    """List the window of a partition and the files that it needs; returns the URI of the `plan` manifest.

    Raises RecipeError for a partition that is not a day, DataError for days or files that the landing folder lacks.
    """
    day = parse_partition(partition)
    train, holdout = window_days(day, recipe.data.window.train_days, recipe.data.window.holdout_days)
    landing = open_landing(store, recipe.data.landing)
    window = [*train, *holdout]
    _check_days(recipe.data.rows, landing, partition, window)
    planned = {
        recipe.data.rows.name: _list_files(recipe, recipe.data.rows, landing, days=window, optional=[], store=store)
    }
    for join in recipe.data.joins:
        days, optional = (window, earlier_days(join, train[0])) if PARTITION in join.source.path else ([], [])
        planned[join.source.name] = _list_files(recipe, join.source, landing, days=days, optional=optional, store=store)
    frozen = {
        name: [[file.path, file.uri, file.digest, file.table] for file in files] for name, files in planned.items()
    }
    code = code_digest("paddlewheel.data.plan")
    folder = dataset_folder(recipe, "plan", derive_key("plan", recipe.digest, partition, landing.root, frozen, code))
    if find_done(store, manifest_key(folder)):
        return store.uri(manifest_key(folder))
    facts = {
        "partition": partition,
        "train": train,
        "holdout": holdout,
        "landing": landing.root,
        "sources": {name: [vars(file) for file in files] for name, files in planned.items()},
        "recipe": dump(recipe),
    }
    files = [file for found in planned.values() for file in found]
    log.info(
        "plan: %s: train %s..%s, holdout %s..%s; %d files, %d of them ingested before",
        partition, train[0], train[-1], holdout[0], holdout[-1], len(files), sum(file.published for file in files),
    )  # fmt: skip
    manifest = Manifest(kind="plan", name=recipe.name, key=folder, recipe=recipe.digest, code=code, facts=facts)
    try:
        return publish_manifest(store, manifest)
    except StorageError:
        # Another planner may have been first, when other tables were published; its plan of the same files serves.
        if store.stat(manifest_key(folder)) is None:
            raise
        return store.uri(manifest_key(folder))


def recipe_of(store: Store, plan_uri: str) -> Recipe:
    """The recipe that a plan was made of, `--set` included, so that all steps of a run use the same."""
    tree: Mapping[str, Any] = read_kind(store, plan_uri, "plan").facts["recipe"]
    return load_recipe(tree)


def source_files(facts: Mapping[str, Any]) -> dict[str, tuple[SourceFile, ...]]:
    """The planned files by source."""
    return {name: tuple(SourceFile(**file) for file in files) for name, files in facts["sources"].items()}


def parse_partition(partition: str) -> datetime.date:
    """The day that a partition names. Raises RecipeError for anything but a real date as 2013-11-01."""
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", partition):
            return datetime.date.fromisoformat(partition)
    except ValueError:
        pass
    raise RecipeError(f"the partition {partition!r} is not a day of the calendar; write it as 2013-11-01")


def window_days(day: datetime.date, train_days: int, holdout_days: int) -> tuple[list[str], list[str]]:
    """Training days, and the holdout days after them that end with `day`. Raises RecipeError before the year 1."""
    try:
        days = [(day - datetime.timedelta(days=back)).isoformat() for back in range(train_days + holdout_days)][::-1]
    except OverflowError as error:
        raise RecipeError(
            f"the window of {day} would begin before the calendar does: {train_days} + {holdout_days} days; "
            "make data.window.train_days smaller"
        ) from error
    return days[:train_days], days[train_days:]


def earlier_days(join: Join, day: str) -> list[str]:
    """Days before `day` whose files may hold the last observation as of a moment in it."""
    if join.kind != "asof" or PARTITION not in join.source.path:
        return []
    count = max(1, math.ceil((join.tolerance_hours or 24) / 24))
    start = datetime.date.fromisoformat(day)
    count = min(count, start.toordinal() - 1)
    return [(start - datetime.timedelta(days=back)).isoformat() for back in range(count, 0, -1)]


def table_section(source: Source) -> dict[str, Any]:
    """What of a source decides over its tables: all but how many refused rows are borne."""
    section: dict[str, Any] = dump(source)
    del section["max_refused_fraction"]
    return section


def open_landing(store: Store, landing: str) -> Store:
    """The landing folder as a store of its own. A relative name lies below the store's root."""
    absolute = "://" in landing or landing.startswith(("/", "~"))
    return open_store(landing if absolute else store.uri(landing))


def landing_days(source: Source, landing: Store) -> list[str]:
    """The days for which the landing folder holds a file of the source, sorted."""
    if PARTITION not in source.path:
        return []
    before, after = (re.escape(part) for part in source.path.split(PARTITION, 1))
    pattern = re.compile(before + r"(\d{4}-\d\d-\d\d)" + after.replace(re.escape(PARTITION), r"\1"))
    folder = source.path.partition(PARTITION)[0].rpartition("/")[0]
    return sorted(match[1] for stat in landing.list(folder) if (match := pattern.fullmatch(stat.key)))


def _list_files(
    recipe: Recipe, source: Source, landing: Store, *, days: list[str], optional: list[str], store: Store
) -> list[SourceFile]:
    """The source's files for these days, and for the optional ones where they are there. No days: its single file."""
    code, section = code_digest(*TABLE_CODE), table_section(source)
    wanted: list[str | None] = [*optional, *days]
    files, missing = [], []
    for day in wanted or [None]:
        path = source.path.replace(PARTITION, day) if day else source.path
        stat = landing.stat(path)
        if stat is None:
            if day not in optional:
                missing.append(landing.uri(path))
            continue
        digest = digest_file(landing.local_path(path))
        key = derive_key("table", path, day, digest, section, code)
        table = dataset_folder(recipe, source.name, key)
        published = store.stat(manifest_key(table)) is not None
        file = SourceFile(
            path=path,
            uri=landing.uri(path),
            bytes=stat.bytes,
            digest=digest,
            table=table,
            partition=day,
            published=published,
        )
        files.append(file)
    if missing:
        raise DataError(_missing_message(source, landing, missing))
    return files


def _check_days(source: Source, landing: Store, partition: str, days: list[str]) -> None:
    """Say that a partition or its window lies outside the data, before single files are missed."""
    held = landing_days(source, landing)
    if not held:
        raise DataError(
            f"the landing folder {landing.root} holds no file like {source.path}; put the data there "
            "(the demo's: paddlewheel demo flights LANDING), or change data.landing"
        )
    holds = f"the landing folder {landing.root} holds {source.name} of {held[0]}..{held[-1]} ({len(held)} days)"
    if not held[0] <= partition <= held[-1]:
        raise DataError(f"the partition {partition} is outside the data: {holds}")
    if days[0] < held[0]:
        first = datetime.date.fromisoformat(held[0]) + datetime.timedelta(days=len(days) - 1)
        raise DataError(
            f"the window of {partition} begins on {days[0]}, before the data: {holds}, so "
            f"{landing.uri(source.path.replace(PARTITION, days[0]))} is missing; choose a partition from {first} on, "
            f"or make data.window smaller ({len(days)} days now)"
        )


def _missing_message(source: Source, landing: Store, missing: list[str]) -> str:
    told = ", ".join(missing[:MAX_TOLD]) + (f" and {len(missing) - MAX_TOLD} more" if len(missing) > MAX_TOLD else "")
    held = landing_days(source, landing)
    state = f"; the landing folder holds {source.name} of {held[0]}..{held[-1]} ({len(held)} days)" if held else ""
    count = "a file is" if len(missing) == 1 else f"{len(missing)} files are"
    return f"{count} missing for the source {source.name!r}: {told}{state}. Deliver it, or choose another partition"
