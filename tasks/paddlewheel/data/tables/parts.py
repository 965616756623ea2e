"""Tables: one group of landing files as typed rows, published once and found again by what stands in the files.

A table's key comes from the names and the bytes of its files, not from where they lay, so that all that is made of
tables alone is the same for a landing folder on S3 and on a disk. The receipt of a listing leads to its table without a
byte read.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

from paddlewheel.data.datasets import dataset_folder, manifest_key
from paddlewheel.data.landing.groups import FileGroup, SourceFile, table_code, table_section
from paddlewheel.data.tables.group import REFUSED_NAME, ROWS_NAME, STATISTICS_NAME, GroupFile, GroupJob, GroupResult
from paddlewheel.data.tables.isolate import Readers
from paddlewheel.errors import DataError, StorageError
from paddlewheel.manifest import Input, Manifest, Shard, derive_key, publish_file, publish_manifest, verify
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_data import Source
from paddlewheel.storage import ObjectChanged, Store, digest_file

PARTS: Final[Mapping[str, str]] = {"rows": ROWS_NAME, "refused": REFUSED_NAME, "statistics": STATISTICS_NAME}
NUM_DOWNLOADS: Final = 8
WAY_OUT: Final = "run the plan step again, or put the planned file back"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table's manifest and the reference to it; new: it was made now."""

    manifest: Manifest
    reference: Input
    new: bool


def find_table(store: Store, folder: str) -> Table | None:
    """The table in a folder, its files verified; None where there is none. Raises StorageError where it is damaged."""
    key = manifest_key(folder)
    raw = store.find(key)
    if raw is None:
        return None
    manifest = Manifest.from_json(raw, store.uri(key))
    verify(store, manifest)
    return Table(manifest=manifest, reference=Input(key=key, digest=xxhash.xxh3_128_hexdigest(raw)), new=False)


def find_by_receipt(store: Store, group: FileGroup) -> Table | None:
    """The table that this listing turned out to be when it was read before; None where it was not."""
    key = manifest_key(group.receipt)
    raw = store.find(key)
    if raw is None:
        return None
    table: str = Manifest.from_json(raw, store.uri(key)).facts["table"]
    return find_table(store, table)


def make_table(
    recipe: Recipe, source: Source, group: FileGroup, *, landing: Store, store: Store, readers: Readers
) -> Table:
    """Read a group into its table: the files first, then its manifest, then the receipt of the listing.

    A file that cannot be read is recorded in the table, without rows. Raises DataError where one is not any more as it
    was planned, StorageError for what may pass (rights, network, a full disk); nothing is published then.
    """
    paths = {} if source.sql is not None else _fetch(group, landing)
    digests = {path: digest_file(local) for path, local in paths.items()}
    if paths and (found := find_table(store, _folder(recipe, source, group, digests))):
        _check_unchanged(group, landing)
        _publish_receipt(recipe, source, group, found.manifest, store)
        return found
    files = tuple(
        GroupFile(name=file.path, path=str(paths[file.path]))
        if file.path in paths
        else GroupFile(name=file.path, version=file.etag)
        for file in group.files
    )
    with store.staging() as staging:
        result = readers.read(GroupJob(source=dump(source), partition=group.partition, files=files), staging)
        if source.sql is None:
            _check_unchanged(group, landing)
        else:
            digests = {group.files[0].path: _digest_of_rows(staging)}
        folder = _folder(recipe, source, group, digests)
        shards = [
            publish_file(store, f"{folder}/{name}", staging / name, rows=result.rows if part == "rows" else None)
            for part, name in PARTS.items()
            if (staging / name).exists()
        ]
    manifest = Manifest(
        kind="table",
        name=f"{recipe.name}.{source.name}",
        key=folder,
        files=tuple(shards),
        code=table_code(source),
        facts={"source": source.name, "partition": group.partition, **_facts(group, digests, result, paths)},
    )
    publish_manifest(store, manifest)
    _publish_receipt(recipe, source, group, manifest, store)
    digest = xxhash.xxh3_128_hexdigest(manifest.to_json())
    return Table(manifest=manifest, reference=Input(key=manifest_key(folder), digest=digest), new=True)


def files_of(table: Manifest) -> list[Shard]:
    """A table's files as a step lists them: with part, source, day and table; counts beside the rows."""
    part_of = {name: part for part, name in PARTS.items()}
    facts = {name: table.facts[name] for name in ("source", "partition")} | {"table": table.key.rpartition("/")[2]}
    counts = {
        "files": len(table.facts["files"]) + len(table.facts["unreadable"]),
        "refused": table.facts["refused"],
        "unreadable": len(table.facts["unreadable"]),
    }
    shards = []
    for file in table.files:
        part = part_of[file.key.rpartition("/")[2]]
        own = facts | {"part": part} | (counts if part == "rows" else {})
        shards.append(Shard(key=file.key, bytes=file.bytes, digest=file.digest, rows=file.rows, facts=own))
    return shards


def _folder(recipe: Recipe, source: Source, group: FileGroup, digests: Mapping[str, str]) -> str:
    named = [(file.path, digests[file.path]) for file in group.files]
    key = derive_key("table", group.partition, named, table_section(source), table_code(source))
    return dataset_folder(recipe, source.name, key)


def _facts(
    group: FileGroup, digests: Mapping[str, str], result: GroupResult, paths: Mapping[str, Path]
) -> dict[str, Any]:
    """Counts of the table and of each file. Reasons name files as the listing does, wherever their bytes were."""
    reasons = {
        path: (reason.replace(str(paths[path]), path) if path in paths else reason).removeprefix(f"{path}: ")
        for path, reason in result.unreadable.items()
    }
    read, unread = [], []
    for file in group.files:
        named = {"path": file.path, "digest": digests[file.path]}
        if file.path in reasons:
            unread.append(named | {"reason": reasons[file.path]})
        else:
            count = result.files[file.path]
            read.append(named | {"bytes": file.bytes, "rows": count.rows, "refused": count.refused})
    return {
        "files": read,
        "rows": result.rows,
        "refused": result.refused,
        "reasons": dict(result.reasons),
        "extra_columns": list(result.extra_columns),
        "unreadable": unread,
    }


def _fetch(group: FileGroup, landing: Store) -> dict[str, Path]:
    """Local files of the listed versions by path. Raises DataError that names every file that is not as listed."""
    with ThreadPoolExecutor(min(NUM_DOWNLOADS, len(group.files))) as pool:
        fetched = list(pool.map(lambda file: _fetch_file(file, landing), group.files))
    faults = [str(one) for one in fetched if isinstance(one, DataError)]
    if faults:
        raise DataError("\n".join(faults))
    return {file.path: one for file, one in zip(group.files, fetched, strict=True) if isinstance(one, Path)}


def _fetch_file(file: SourceFile, landing: Store) -> Path | DataError:
    try:
        return landing.local_path(file.path, version=file.etag)
    except ObjectChanged:
        return _changed(landing.uri(file.path))
    except StorageError:
        if landing.stat(file.path) is not None:
            raise
        return DataError(f"{landing.uri(file.path)}: gone since the run was planned; {WAY_OUT}")


def _check_unchanged(group: FileGroup, landing: Store) -> None:
    """Raise DataError for a file that was written while it was read; nobody writes a copy of an object on S3."""
    if landing.root.startswith("file:"):
        for file in group.files:
            stat = landing.stat(file.path)
            if stat is None or stat.version != file.etag:
                raise _changed(landing.uri(file.path))


def _changed(what: str) -> DataError:
    return DataError(f"{what}: changed since the run was planned; {WAY_OUT}")


def _digest_of_rows(folder: Path) -> str:
    """What stands for the bytes of a query's answer: the rows that it gave."""
    found = [digest_file(folder / name) for name in (ROWS_NAME, REFUSED_NAME) if (folder / name).exists()]
    return xxhash.xxh3_128_hexdigest("".join(found).encode())


def _publish_receipt(recipe: Recipe, source: Source, group: FileGroup, table: Manifest, store: Store) -> None:
    receipt = Manifest(
        kind="receipt", name=f"{recipe.name}.{source.name}", key=group.receipt, facts={"table": table.key}
    )
    publish_manifest(store, receipt)
