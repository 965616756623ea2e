"""Landing files to typed tables: one immutable dataset a file, so that the next night only reads what is new."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from paddlewheel.data.datasets import add_counts, dataset_folder, find_part, manifest_key, read_kind, window_facts
from paddlewheel.data.plan import TABLE_CODE, SourceFile, source_files
from paddlewheel.data.records import read_content
from paddlewheel.data.schema import read_table
from paddlewheel.errors import DataError
from paddlewheel.manifest import (
    Input,
    Manifest,
    Shard,
    code_digest,
    derive_key,
    input_of,
    publish_file,
    publish_manifest,
)
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_data import Source
from paddlewheel.storage import Store, uri_to_path

ROWS_NAME = "rows.parquet"
REFUSED_NAME = "refused.jsonl"
MAX_TOLD = 5
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Ingested:
    """A file's table manifest, and whether it was made now."""

    manifest: Manifest
    reference: Input
    new: bool


def ingest(recipe: Recipe, plan_uri: str, *, store: Store) -> str:
    """Make the tables of a plan's files that are not published yet; returns the URI of the `ingest` manifest.

    Tables found are verified by digest. Raises DataError that names every file that cannot be read or was changed since
    the plan; refused rows are counted here and judged by `validate`.
    """
    planned = read_kind(store, plan_uri, "plan").facts
    sources = {source.name: source for source in (recipe.data.rows, *(join.source for join in recipe.data.joins))}
    jobs = [(sources[name], file) for name, files in source_files(planned).items() for file in files]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda job: _try_table(recipe, *job, store=store), jobs))
    faults = [result for result in results if isinstance(result, DataError)]
    if faults:
        more = f"\n… and {len(faults) - MAX_TOLD} more files" if len(faults) > MAX_TOLD else ""
        raise DataError("\n".join(str(fault) for fault in faults[:MAX_TOLD]) + more)
    tables = [result for result in results if isinstance(result, _Ingested)]
    return _publish(recipe, plan_uri, tables, store)


def ingest_file(recipe: Recipe, source: Source, file: SourceFile, *, store: Store) -> Manifest:
    """Read one landing file into its table dataset, files first, manifest last; returns the `table` manifest.

    Raises DataError for a file that is not as planned or cannot be read by the schema; nothing is published then.
    """
    path = uri_to_path(file.uri)
    table = read_table(path, read_content(path, digest=file.digest), source)
    with store.staging() as staging:
        rows_path = staging / ROWS_NAME
        table.frame.write_parquet(rows_path, compression="zstd", statistics=False)
        files = [publish_file(store, f"{file.table}/{ROWS_NAME}", rows_path, rows=len(table.frame))]
        if table.refusals:
            refused_path = staging / REFUSED_NAME
            refused_path.write_bytes(table.refusal_lines(file.path))
            files.append(publish_file(store, f"{file.table}/{REFUSED_NAME}", refused_path))
    facts = {
        "source": source.name,
        "partition": file.partition,
        "file": file.path,
        "rows": len(table.frame),
        "refused": len(table.refusals),
        "reasons": table.counts,
        "extra_columns": table.extra_columns,
    }
    manifest = Manifest(
        kind="table",
        name=f"{recipe.name}.{source.name}",
        key=file.table,
        files=tuple(files),
        inputs=(Input(key=file.path, digest=file.digest),),
        code=code_digest(*TABLE_CODE),
        facts=facts,
    )
    publish_manifest(store, manifest)
    return manifest


def _try_table(recipe: Recipe, source: Source, file: SourceFile, *, store: Store) -> _Ingested | DataError:
    found = find_part(store, file.table)
    try:
        manifest = found or ingest_file(recipe, source, file, store=store)
    except DataError as error:
        return error
    return _Ingested(manifest=manifest, reference=input_of(store, manifest_key(file.table)), new=found is None)


def _publish(recipe: Recipe, plan_uri: str, tables: list[_Ingested], store: Store) -> str:
    window, code = window_facts(read_kind(store, plan_uri, "plan").facts), code_digest("paddlewheel.data.ingest")
    inputs = (input_of(store, plan_uri), *(table.reference for table in tables))
    folder = dataset_folder(recipe, "ingest", derive_key("ingest", [[one.key, one.digest] for one in inputs], code))
    manifests = [table.manifest for table in tables]
    num_new = sum(table.new for table in tables)
    _warn_of_extra_columns(table.manifest for table in tables if table.new)
    refused = sum(manifest.facts["refused"] for manifest in manifests)
    if not num_new and store.stat(manifest_key(folder)) is not None:
        files = sum(len(manifest.files) for manifest in manifests)
        log.info("ingest: already done, %d files verified, skipped (%s)", files, manifest_key(folder))
        return store.uri(manifest_key(folder))
    log.info(
        "ingest: %d files read, %d found ingested with digests right; %d rows, %d refused",
        num_new, len(tables) - num_new, sum(manifest.facts["rows"] for manifest in manifests), refused,
    )  # fmt: skip
    facts = {
        "rows": {name: sum(one.facts["rows"] for one in found) for name, found in _by_source(manifests).items()},
        "refused": {name: sum(one.facts["refused"] for one in found) for name, found in _by_source(manifests).items()},
        "reasons": {
            name: add_counts(one.facts["reasons"] for one in found) for name, found in _by_source(manifests).items()
        },
    }
    manifest = Manifest(
        kind="ingest",
        name=recipe.name,
        key=folder,
        files=tuple(_with_facts(file, one) for one in manifests for file in one.files),
        inputs=inputs,
        code=code,
        facts=facts | window,
    )
    return publish_manifest(store, manifest)


def _with_facts(file: Shard, table: Manifest) -> Shard:
    """A table's file as the window lists it: with its source, day, and the counts of its table."""
    part = "rows" if file.key.endswith(ROWS_NAME) else "refused"
    facts = {"part": part} | {name: table.facts[name] for name in ("source", "partition", "file", "refused")}
    return Shard(key=file.key, bytes=file.bytes, digest=file.digest, rows=file.rows, facts=facts)


def _by_source(manifests: list[Manifest]) -> dict[str, list[Manifest]]:
    grouped: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        grouped.setdefault(manifest.facts["source"], []).append(manifest)
    return grouped


def _warn_of_extra_columns(manifests: Iterable[Manifest]) -> None:
    extra: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        extra.setdefault(manifest.facts["source"], {}).update(dict.fromkeys(manifest.facts["extra_columns"]))
    for source, names in extra.items():
        if names:
            log.warning("ingest: columns of %s that the recipe does not name are ignored: %s", source, ", ".join(names))
