"""The plan of a partition: the days it trains on and is judged by, and the listing of the landing files it needs.

Nothing is read here. Every later step takes the recipe and the files from the plan, each as it was listed, so that a
file delivered again meanwhile is noticed.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from paddlewheel.data.datasets import dataset_folder, manifest_key, read_kind
from paddlewheel.data.landing.groups import (
    GROUPS_NAME,
    SQL_NAME,
    FileGroup,
    GroupHead,
    SourceFile,
    build_groups,
    sources_of,
)
from paddlewheel.data.landing.listing import Listing, by_day, is_folder, list_sources, open_landing
from paddlewheel.errors import DataError, RecipeError, StorageError
from paddlewheel.manifest import Manifest, Shard, code_digest, derive_key, find_done, publish_manifest
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_check import load_recipe
from paddlewheel.recipe_data import Join, Source
from paddlewheel.storage import Store

MAX_TOLD = 5
CODE = ("paddlewheel.data.plan", "paddlewheel.data.landing")
log = logging.getLogger(__name__)
Files = Mapping[str | None, Sequence[SourceFile]]


def plan(recipe: Recipe, partition: str, *, store: Store) -> str:
    """List the window of a partition and the files that it needs; returns the URI of the `plan` manifest.

    Raises RecipeError for a partition that is not a day, DataError for days or files that the landing folder lacks.
    """
    day = parse_partition(partition)
    train, holdout = window_days(day, recipe.data.window.train_days, recipe.data.window.holdout_days)
    landing = open_landing(store, recipe.data.landing)
    sources = sources_of(recipe)
    listings = list_sources(landing, [source for source in sources.values() if source.sql is None])
    window = [*train, *holdout]
    if recipe.data.rows.sql is None:
        _check_days(recipe, landing, listings[recipe.data.rows.name], partition, window)
    early: dict[str, list[str]] = {join.source.name: earlier_days(join, train[0]) for join in recipe.data.joins}
    groups: list[FileGroup] = []
    for name, source in sources.items():
        if source.sql is None:
            files = _files_of(source, landing, listings[name], window, early.get(name, []))
            place = landing.root
        else:
            files = _versions_of(source, window if by_day(source) else [None], early.get(name, []))
            place = source.sql.connection
        known = set(store.children(f"datasets/{recipe.name}.{name}.receipts"))
        groups += build_groups(recipe, source, files, place, known)
    facts = {"partition": partition, "train": train, "holdout": holdout, "landing": landing.root}
    return _publish(recipe, groups, facts, store)


def newest_day(recipe: Recipe, *, store: Store) -> str:
    """The newest day of which the landing folder holds every source that has days.

    Raises DataError where there is none, RecipeError where the rows are a query.
    """
    source = recipe.data.rows
    if source.sql is not None:
        raise RecipeError(f"{source.name} is a query, whose newest day nobody lists; say which day: --partition DAY")
    landing = open_landing(store, recipe.data.landing)
    daily = [one for one in sources_of(recipe).values() if one.sql is None and by_day(one)]
    listings = list_sources(landing, daily)
    if not (held := listings[source.name].held):
        raise DataError(_nothing_held(recipe, landing))
    common = set(held).intersection(*(listing.days for listing in listings.values()))
    if not common:
        raise DataError(
            f"the landing folder {landing.root} holds {source.name} of {held[0]}..{held[-1]}, but no day of which it "
            f"holds all of {', '.join(listings)}; deliver the others"
        )
    return max(common)


def recipe_of(store: Store, plan_uri: str) -> Recipe:
    """The recipe that a plan was made of, `--set` included, so that all steps of a run use the same."""
    tree: Mapping[str, Any] = read_kind(store, plan_uri, "plan").facts["recipe"]
    return load_recipe(tree)


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
    if join.kind != "asof" or not by_day(join.source):
        return []
    count = max(1, math.ceil((join.tolerance_hours or 24) / 24))
    start = datetime.date.fromisoformat(day)
    count = min(count, start.toordinal() - 1)
    return [(start - datetime.timedelta(days=back)).isoformat() for back in range(count, 0, -1)]


def _files_of(
    source: Source, landing: Store, listing: Listing, days: Sequence[str], optional: Sequence[str]
) -> dict[str | None, list[SourceFile]]:
    """The source's files for these days, and for the optional ones where they are there. Raises DataError for gaps."""
    if not by_day(source):
        if not listing.single:
            raise DataError(_missing_message(source, landing, listing, [source.path]))
        return {None: listing.single}
    missing = [source.path.replace("{partition}", day) for day in days if day not in listing.days]
    if missing:
        raise DataError(_missing_message(source, landing, listing, missing))
    return {day: listing.days[day] for day in [*optional, *days] if day in listing.days}


def _versions_of(
    source: Source, days: Sequence[str | None], optional: Sequence[str]
) -> dict[str | None, list[SourceFile]]:
    """A query as one file a day, its version that of the rows; optional days without rows are left out.

    Raises DataError for other days without any, where the number of rows is the version.
    """
    from paddlewheel.data.readers.sql import NO_ROWS, versions_of

    if source.sql is None:
        raise RecipeError(f"{source.name} is no query")
    wanted = [*optional, *days]
    versions = dict(zip(wanted, versions_of(source.sql, wanted), strict=True))
    empty = {day for day in wanted if day is not None and not source.sql.version and versions[day] == NO_ROWS}
    if missing := [day for day in days if day in empty]:
        more = f" and {len(missing) - MAX_TOLD} more" if len(missing) > MAX_TOLD else ""
        raise DataError(
            f"the query of {source.name!r} gives no row for {', '.join(map(str, missing[:MAX_TOLD]))}{more}; fill the "
            "table, or choose another partition"
        )
    return {
        day: [SourceFile(path=SQL_NAME, bytes=0, etag=version)] for day, version in versions.items() if day not in empty
    }


def _publish(recipe: Recipe, groups: Sequence[FileGroup], window: Mapping[str, Any], store: Store) -> str:
    code = code_digest(*CODE)
    receipts = [group.receipt for group in groups]
    folder = dataset_folder(recipe, "plan", derive_key("plan", recipe.digest, window, receipts, code))
    if find_done(store, manifest_key(folder)):
        return store.uri(manifest_key(folder))
    lines = "".join(group.to_lines() for group in groups).encode()
    digest = xxhash.xxh3_128_hexdigest(lines)
    # Named by its bytes: another planner of the same files may know other tables already, and publish before us.
    listed = Shard(key=f"{folder}/{digest[:8]}-{GROUPS_NAME}", bytes=len(lines), digest=digest)
    counts = {name: _count([group.head for group in groups if group.source == name]) for name in sources_of(recipe)}
    manifest = Manifest(
        kind="plan",
        name=recipe.name,
        key=folder,
        files=(listed,),
        recipe=recipe.digest,
        code=code,
        facts={**window, "sources": counts, "recipe": dump(recipe)},
    )
    train, holdout = window["train"], window["holdout"]
    log.info(
        "plan: %s: train %s..%s, holdout %s..%s; %d files in %d groups, %d of them ingested before",
        window["partition"], train[0], train[-1], holdout[0], holdout[-1],
        sum(count["files"] for count in counts.values()), len(groups), sum(group.known for group in groups),
    )  # fmt: skip
    try:
        store.publish(listed.key, lines)
        return publish_manifest(store, manifest)
    except StorageError:
        if store.stat(manifest_key(folder)) is None:
            raise
        return store.uri(manifest_key(folder))


def _count(heads: Sequence[GroupHead]) -> dict[str, int]:
    return {
        "files": sum(head.num_files for head in heads),
        "bytes": sum(head.size_bytes for head in heads),
        "groups": len(heads),
        "known": sum(head.known for head in heads),
    }


def _check_days(recipe: Recipe, landing: Store, listing: Listing, partition: str, days: list[str]) -> None:
    """Say that a partition or its window lies outside the data, before single files are missed."""
    source, held = recipe.data.rows, listing.held
    if not held:
        raise DataError(_nothing_held(recipe, landing))
    holds = f"the landing folder {landing.root} holds {source.name} of {held[0]}..{held[-1]} ({len(held)} days)"
    if not held[0] <= partition <= held[-1]:
        raise DataError(f"the partition {partition} is outside the data: {holds}")
    if days[0] < held[0]:
        first = datetime.date.fromisoformat(held[0]) + datetime.timedelta(days=len(days) - 1)
        raise DataError(
            f"the window of {partition} begins on {days[0]}, before the data: {holds}, so "
            f"{landing.root}/{source.path.replace('{partition}', days[0])} is missing; choose a partition from {first} "
            f"on, or make data.window smaller ({len(days)} days now)"
        )


def _nothing_held(recipe: Recipe, landing: Store) -> str:
    demo = f" (the demo's: paddlewheel demo {recipe.data.demo} LANDING)" if recipe.data.demo else ""
    return (
        f"the landing folder {landing.root} holds no file like {recipe.data.rows.path}; put the data there{demo}, or "
        "change data.landing"
    )


def _missing_message(source: Source, landing: Store, listing: Listing, missing: Sequence[str]) -> str:
    told = ", ".join(f"{landing.root}/{path}" for path in missing[:MAX_TOLD])
    told += f" and {len(missing) - MAX_TOLD} more" if len(missing) > MAX_TOLD else ""
    held = listing.held
    state = f"; the landing folder holds {source.name} of {held[0]}..{held[-1]} ({len(held)} days)" if held else ""
    count = "a file is" if len(missing) == 1 else f"{len(missing)} files are"
    folders = [path for path in missing[:MAX_TOLD] if is_folder(landing, path)]
    kind = f"; {landing.uri(folders[0])} is a folder: put a file there, or write /** after it" if folders else ""
    return (
        f"{count} missing for the source {source.name!r}: {told}{kind}{state}. Deliver it, or choose another partition"
    )
