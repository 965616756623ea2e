"""A group of one source's files to one table: rows.parquet, refused.jsonl and statistics.json, in bounded memory.

Pure and local: files in, files out, nothing published. It runs in a process of its own (`data.isolate`), so what goes
in and comes out is JSON.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Source

ROWS_NAME: Final = "rows.parquet"
REFUSED_NAME: Final = "refused.jsonl"  # only where rows were refused
STATISTICS_NAME: Final = "statistics.json"


@dataclass(frozen=True, kw_only=True)
class GroupFile:
    """A file of a group. name: its path in the landing folder, for messages and refusals; path: its local bytes.

    A query has a name and no path; version: what `readers.sql.versions_of` said when it was planned.
    """

    name: str
    path: str | None = None
    version: str | None = None


@dataclass(frozen=True, kw_only=True)
class GroupJob:
    """What to read: the tree of the source (`recipe.dump`), the day it was planned for, its files in order."""

    source: Mapping[str, Any]
    partition: str | None
    files: tuple[GroupFile, ...]

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> GroupJob:
        """The job of `to_json`."""
        tree = json.loads(text)
        files = tuple(GroupFile(**entry) for entry in tree.pop("files"))
        return GroupJob(files=files, **tree)

    def load_source(self) -> Source:
        """The source as a dataclass."""
        return _source_adapter().validate_python(self.source)


@functools.cache
def _source_adapter() -> TypeAdapter[Source]:
    return TypeAdapter(Source)


@dataclass(frozen=True, kw_only=True)
class FileCount:
    """How many rows of a file were accepted and refused."""

    rows: int
    refused: int


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """What was read. files: counts by name of every file that could be read; unreadable: reasons by name of the others.

    reasons: refused rows by `column: reason` (a row with two reasons counts in both); extra_columns: columns that the
    source does not name, in the order in which they were first seen.
    """

    rows: int
    refused: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    extra_columns: tuple[str, ...] = ()
    files: Mapping[str, FileCount] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> GroupResult:
        """The result of `to_json`."""
        tree = json.loads(text)
        files = {name: FileCount(**entry) for name, entry in tree.pop("files").items()}
        return GroupResult(files=files, **tree | {"extra_columns": tuple(tree["extra_columns"])})


def _quietly(_name: str) -> None:
    """What `read_group` announces goes nowhere."""


def read_group(job: GroupJob, folder: Path, *, announce: Callable[[str], None] = _quietly) -> GroupResult:
    """Read a group's files into `folder`, which exists and is empty; a file that cannot be read leaves no row there.

    `announce` is called with a file's name before any of its bytes are touched (more than once for a file that is read
    again), so that whoever watches this process knows which file it died of. The bytes of rows.parquet depend on the
    accepted rows in their order and on nothing else.

    The files are read once, unless one turns out to be unreadable when rows of it were written already, or a key stands
    twice: then once more, without that file or those rows.
    """
    import pyarrow as pa

    from paddlewheel.data.readers.images import is_beside
    from paddlewheel.data.tables.group_pass import GroupPass

    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own allocators keep tens of MiB that they freed
    source, unreadable, repeats = job.load_source(), dict[str, str](), None
    if job.files and all(is_beside(source, file.name) for file in job.files):
        raise DataError(
            f"{source.name} of {job.partition or 'all days'}: there is no table {source.params['table']!r} among its "
            f"{len(job.files)} files, as {job.files[0].name}; deliver it, or let the source's path match it too"
        )
    paths = {file.name: Path(file.path) for file in job.files if file.path is not None}

    def find_beside(name: str) -> Path | None:
        if name in paths:
            announce(name)
        return paths.get(name)

    while True:
        with GroupPass(source, job.partition, folder, repeats, find_beside) as reading:
            for number, file in enumerate(job.files):
                if file.name in unreadable:
                    continue
                if is_beside(source, file.name):
                    reading.skip(file)
                    continue
                announce(file.name)
                reading.read(number, file)
            unreadable |= reading.unreadable
            again = reading.spoiled or bool(repeats is not None and reading.unreadable)
            found = None if again or repeats is not None else reading.find_repeats()
            if again or found:
                repeats = found
                continue
            return reading.finish(unreadable)
