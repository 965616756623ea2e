"""A day's files of one source as groups: each is read in one go and becomes one table.

A group's receipt is named by what the landing folder lists of its files, so that an unchanged listing is never read
again; its table is named by what stands in the files.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, NamedTuple

import xxhash

from paddlewheel.data.datasets import dataset_folder
from paddlewheel.data.readers import READERS
from paddlewheel.data.readers.images import has_table
from paddlewheel.errors import StorageError
from paddlewheel.manifest import Manifest, code_digest, derive_key
from paddlewheel.recipe import Recipe, dump
from paddlewheel.recipe_data import Source
from paddlewheel.storage import Store, digest_file

GROUP_BYTES: Final = 128 << 20
GROUP_FILES: Final = 1_000
BATCH_BYTES: Final = 256 << 20  # of landing files: less than that is not worth a second task
# What opening a file, making a table, asking a query and looking at a table that is there cost, as bytes to read.
FILE_COST_BYTES: Final = 32 << 10
GROUP_COST_BYTES: Final = 1 << 20
QUERY_COST_BYTES: Final = 8 << 20
KNOWN_COST_BYTES: Final = 16 << 10
GROUPS_NAME: Final = "groups.jsonl"  # two lines a group
SQL_NAME: Final = "sql"  # stands for the path of a source that is a query
# Of a column, what decides over no row: what it is used for, and how it is judged later.
LATER_FIELDS: Final = ("known", "unit", "drift")
TABLE_CODE: Final = tuple(
    f"paddlewheel.data.{name}" for name in ("tables", "readers", "statistics", "types", "calendar", "compiled")
)


class SourceFile(NamedTuple):
    """A landing file as it was listed. etag: the store's version of it, or what a query's version was.

    A tuple, unlike the project's other records: a plan has a hundred thousand, and writes them as they are.
    """

    path: str
    bytes: int
    etag: str


class GroupHead(NamedTuple):
    """What a plan says of a group beside its files: enough to share groups out without holding every file."""

    source: str
    partition: str | None
    receipt: str
    known: bool
    num_files: int
    size_bytes: int

    @property
    def work_bytes(self) -> int:
        """About what reading it takes, told as bytes of landing files. Nobody knows the size of a query."""
        return (self.size_bytes or QUERY_COST_BYTES) + self.num_files * FILE_COST_BYTES + GROUP_COST_BYTES


@dataclass(frozen=True, kw_only=True)
class FileGroup:
    """Files of one source and day (None: a source without days) that become one table.

    receipt: the folder of what says which table; known: it was there when the plan was made. listed: the files as
    JSON, kept since a plan needs them twice.
    """

    source: str
    partition: str | None
    files: tuple[SourceFile, ...]
    receipt: str
    known: bool
    listed: str = field(default="", repr=False, compare=False)

    @property
    def head(self) -> GroupHead:
        """The group without its files."""
        size = sum([file.bytes for file in self.files])
        return GroupHead(self.source, self.partition, self.receipt, self.known, len(self.files), size)

    def to_lines(self) -> str:
        """Two lines of the plan's file of groups: what the group is, and its files."""
        return f"{json.dumps(self.head)}\n{self.listed or json.dumps(self.files)}\n"

    @staticmethod
    def from_lines(head: bytes, files: bytes) -> FileGroup:
        """The group of `to_lines`."""
        of = GroupHead._make(json.loads(head))
        return FileGroup(
            source=of.source,
            partition=of.partition,
            receipt=of.receipt,
            known=of.known,
            files=tuple(map(SourceFile._make, json.loads(files))),
        )


def cut_groups(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, ...]]:
    """Files, sorted by path, in groups of at most GROUP_BYTES and GROUP_FILES; a larger file is a group of its own."""
    if len(files) <= GROUP_FILES and sum([file.bytes for file in files]) <= GROUP_BYTES:
        yield from [tuple(sorted(files))] if files else ()
        return
    group: list[SourceFile] = []
    size = 0
    for file in sorted(files):
        if group and (size + file.bytes > GROUP_BYTES or len(group) == GROUP_FILES):
            yield tuple(group)
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield tuple(group)


def build_groups(
    recipe: Recipe, source: Source, days: Mapping[str | None, Sequence[SourceFile]], landing: str, known: set[str]
) -> list[FileGroup]:
    """The groups of a source's files by day. known: keys of the receipts that are published."""
    section, code = table_section(source), table_code(source)
    place = [landing, section, code]
    groups = []
    for day, files in days.items():
        for some in [tuple(files)] if has_table(source) else cut_groups(files):  # a table with all that it names
            listed = json.dumps(some)
            key = derive_key("receipt", place, day, xxhash.xxh3_128_hexdigest(listed.encode()))
            group = FileGroup(
                source=source.name,
                partition=day,
                files=some,
                receipt=dataset_folder(recipe, f"{source.name}.receipts", key),
                known=key in known,
                listed=listed,
            )
            groups.append(group)
    return groups


def cut_batches(groups: Sequence[GroupHead], max_batches: int) -> list[list[int]]:
    """Positions of groups by batch, about equal in what is left to read; one batch where that is little."""
    costs = [0 if group.known else group.work_bytes for group in groups]
    count = max(1, min(max_batches, len(groups), -(-sum(costs) // BATCH_BYTES)))
    loads = [(0, number) for number in range(count)]
    batches: list[list[int]] = [[] for _ in range(count)]
    for position in sorted(range(len(groups)), key=lambda one: (-costs[one], one)):
        load, number = loads[0]
        batches[number].append(position)
        # Even a known group is looked at: what is known is spread too.
        heapq.heapreplace(loads, (load + costs[position] + KNOWN_COST_BYTES, number))
    return [sorted(batch) for batch in batches]


def read_groups(
    store: Store, plan: Manifest, *, wanted: Callable[[int, GroupHead], bool] = lambda _number, _head: True
) -> Iterator[FileGroup]:
    """The groups of a plan, in its order, that are wanted by their number and head.

    Raises StorageError where the file of groups is not the one that the plan recorded.
    """
    with _open_groups(store, plan) as lines:
        for number, head in enumerate(lines):
            files = next(lines)
            if wanted(number, GroupHead._make(json.loads(head))):
                yield FileGroup.from_lines(head, files)


def read_heads(store: Store, plan: Manifest) -> Iterator[GroupHead]:
    """The groups of a plan without their files, in its order. Raises StorageError as `read_groups` does."""
    with _open_groups(store, plan) as lines:
        for head in lines:
            next(lines)
            yield GroupHead._make(json.loads(head))


def _open_groups(store: Store, plan: Manifest) -> IO[bytes]:
    (listed,) = plan.files
    path = store.local_path(listed.key)
    if digest_file(path) != listed.digest:
        raise StorageError(
            f"{store.uri(listed.key)} is not the file that its plan recorded; restore it, or remove "
            f"{store.uri(plan.key)} and plan again"
        )
    return path.open("rb")


def sources_of(recipe: Recipe) -> dict[str, Source]:
    """Every source of a recipe by name, the main one first."""
    return {source.name: source for source in (recipe.data.rows, *(join.source for join in recipe.data.joins))}


def table_section(source: Source) -> dict[str, Any]:
    """What of a source decides over its tables: not where its files lie, nor what is borne of refused rows."""
    section: dict[str, Any] = dump(source)
    for name in ("path", "max_refused_fraction", "max_unreadable_fraction"):
        del section[name]
    section["sql"] = source.sql and source.sql.query
    for column in section["columns"]:
        for name in LATER_FIELDS:
            del column[name]
    return section


def table_code(source: Source) -> str:
    """Digest of the code that makes a source's tables, its own reader with it."""
    own = () if source.format in READERS else (source.format.partition(":")[0],)
    return code_digest(*TABLE_CODE, *own)
