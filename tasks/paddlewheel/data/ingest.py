"""Landing files to typed tables: a batch of the plan's groups at a time, so that many files are spread over workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from paddlewheel.connections import environment_of
from paddlewheel.data.datasets import NUM_LOOKERS, add_counts, dataset_folder, manifest_key, read_kind, window_facts
from paddlewheel.data.landing.groups import FileGroup, cut_batches, read_groups, read_heads, sources_of
from paddlewheel.data.landing.listing import open_landing
from paddlewheel.data.tables.isolate import Readers, num_cores
from paddlewheel.data.tables.parts import Table, files_of, find_by_receipt, make_table
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.manifest import Manifest, code_digest, derive_key, input_of, publish_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_data import Source
from paddlewheel.storage import Store

MAX_TOLD = 5
NUM_MOVERS = 2  # threads that fetch and publish while others wait for a reader
READER_BYTES = 48 << 20  # to read: for less, another reader takes longer to start than it saves
CODE = tuple(f"paddlewheel.data.{name}" for name in ("ingest", "tables"))
log = logging.getLogger(__name__)


def plan_ingest(recipe: Recipe, plan_uri: str, *, store: Store) -> list[int]:
    """The numbers of the batches that a plan's groups are ingested in, at most `data.max_batches`."""
    heads = list(read_heads(store, read_kind(store, plan_uri, "plan")))
    return list(range(len(cut_batches(heads, recipe.data.max_batches))))


def ingest(recipe: Recipe, plan_uri: str, batch: int, *, store: Store) -> str:
    """Make the tables of a batch of the plan's groups that are not there yet; the URI of the `ingest` manifest.

    Tables found by the receipts of unchanged listings are verified by digest, their files not read. Raises DataError
    that names every file that was changed since the plan; refused rows and unreadable files are recorded here and
    judged by `validate`.
    """
    planned = read_kind(store, plan_uri, "plan")
    groups, num_batches = _groups_of(recipe, planned, batch, store)
    with ThreadPoolExecutor(NUM_LOOKERS) as pool:
        tables = dict(enumerate(pool.map(lambda group: find_by_receipt(store, group), groups)))
    missing = [position for position, table in tables.items() if table is None]
    landing, sources = open_landing(store, recipe.data.landing), sources_of(recipe)
    count = num_readers([groups[position] for position in missing])
    needed = [sources[name] for name in {groups[position].source for position in missing}]
    with Readers(count, secrets=environment_of(_connections(needed))) as readers:

        def make(position: int) -> Table:
            group = groups[position]
            return make_table(
                recipe, sources[group.source], group, landing=landing, store=store, readers=readers
            )  # fmt: skip

        # More threads than readers: while some wait for a disk or a network, the readers have work.
        tables.update(_run_all(make, missing, count + NUM_MOVERS))
    found = [table for _, table in sorted(tables.items()) if table is not None]
    return _publish(recipe, planned, (batch, num_batches), found, store)


def num_readers(groups: Sequence[FileGroup]) -> int:
    """How many processes are worth their start for these groups: at most one a core, and one a group."""
    return max(1, min(num_cores(), len(groups), sum(group.head.work_bytes for group in groups) // READER_BYTES))


def _groups_of(recipe: Recipe, planned: Manifest, batch: int, store: Store) -> tuple[list[FileGroup], int]:
    batches = cut_batches(list(read_heads(store, planned)), recipe.data.max_batches)
    if not 0 <= batch < len(batches):
        raise RecipeError(f"there is no batch {batch} of {planned.key}: it has {len(batches)}, from 0 on")
    mine = set(batches[batch])
    return list(read_groups(store, planned, wanted=lambda number, _: number in mine)), len(batches)


def _connections(sources: Iterable[Source]) -> list[str]:
    """Ids of the connections that readers need; a URL needs none."""
    named = {source.sql.connection for source in sources if source.sql is not None}
    return sorted(name for name in named if "://" not in name)


def _run_all(make: Callable[[int], Table], positions: Sequence[int], count: int) -> dict[int, Table]:
    """make(position) of each, `count` at once. DataErrors are told together; any other error stops the rest."""
    if not positions:
        return {}
    pool = ThreadPoolExecutor(count)
    try:
        futures: dict[Future[Table | DataError], int] = {
            pool.submit(_or_fault, make, position): position for position in positions
        }
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        results = {futures[future]: future.result() for future in done}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    faults = [str(results[position]) for position in positions if isinstance(results.get(position), DataError)]
    if faults:
        lines = "\n".join(faults).splitlines()
        more = f"\n… and {len(lines) - MAX_TOLD} more" if len(lines) > MAX_TOLD else ""
        raise DataError("\n".join(lines[:MAX_TOLD]) + more)
    return {position: result for position, result in results.items() if isinstance(result, Table)}


def _or_fault(make: Callable[[int], Table], position: int) -> Table | DataError:
    try:
        return make(position)
    except DataError as error:
        return error


def _publish(recipe: Recipe, planned: Manifest, batch: tuple[int, int], tables: Sequence[Table], store: Store) -> str:
    code = code_digest(*CODE)
    inputs = (input_of(store, manifest_key(planned.key)), *(table.reference for table in tables))
    key = derive_key("ingest", batch, [[one.key, one.digest] for one in inputs], code)
    folder = dataset_folder(recipe, "ingest", key)
    files = tuple(file for table in tables for file in files_of(table.manifest))
    num_new = sum(table.new for table in tables)
    if not num_new and store.stat(manifest_key(folder)) is not None:
        log.info("ingest: already done, %d files verified, skipped (%s)", len(files), manifest_key(folder))
        return store.uri(manifest_key(folder))
    manifests = [table.manifest for table in tables]
    _warn_of_extra_columns(table.manifest for table in tables if table.new)
    _warn_of_unreadable(table.manifest for table in tables if table.new)
    log.info(
        "ingest: %d files read, %d found ingested with digests right; %d rows, %d refused",
        *(sum(_num_files(table.manifest) for table in tables if table.new == new) for new in (True, False)),
        *(sum(one.facts[name] for one in manifests) for name in ("rows", "refused")),
    )
    facts = {name: _by_source(manifests, name) for name in ("rows", "refused")} | {
        "reasons": {
            source: add_counts(one.facts["reasons"] for one in manifests if one.facts["source"] == source)
            for source in _by_source(manifests, "rows")
        },
        "batch": batch[0],
        "batches": batch[1],
    }
    manifest = Manifest(
        kind="ingest",
        name=recipe.name,
        key=folder,
        files=files,
        inputs=inputs,
        code=code,
        facts=facts | window_facts(planned.facts),
    )
    return publish_manifest(store, manifest)


def _num_files(table: Manifest) -> int:
    return len(table.facts["files"]) + len(table.facts["unreadable"])


def _by_source(manifests: Sequence[Manifest], fact: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for manifest in manifests:
        total[manifest.facts["source"]] = total.get(manifest.facts["source"], 0) + manifest.facts[fact]
    return total


def _warn_of_extra_columns(manifests: Iterable[Manifest]) -> None:
    extra: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        extra.setdefault(manifest.facts["source"], {}).update(dict.fromkeys(manifest.facts["extra_columns"]))
    for source, names in extra.items():
        if names:
            log.warning("ingest: columns of %s that the recipe does not name are ignored: %s", source, ", ".join(names))


def _warn_of_unreadable(manifests: Iterable[Manifest]) -> None:
    unreadable = [one for manifest in manifests for one in manifest.facts["unreadable"]]
    for one in unreadable[:MAX_TOLD]:
        log.warning("ingest: unreadable, its rows are missing: %s: %s", one["path"], one["reason"])
    if len(unreadable) > MAX_TOLD:
        log.warning("ingest: … and %d more unreadable files", len(unreadable) - MAX_TOLD)
