"""A group of one source's files to one table: rows.parquet, refused.jsonl and statistics.json, in bounded memory.

Pure and local: files in, files out, nothing published. It runs in a process of its own (`data.isolate`), so what goes
in and comes out is JSON.
"""

from __future__ import annotations

import json
from collections import Counter
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

    A query has a name and no path; version: what `readers.sql.version_of` said when it was planned.
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
        return TypeAdapter(Source).validate_python(self.source)


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
    """
    import polars as pl

    from paddlewheel.data.records import read_content
    from paddlewheel.data.schema import read_table

    source = job.load_source()
    frames, lines, reasons = [], [], Counter[str]()
    extra: dict[str, None] = {}
    files, unreadable = {}, {}
    for file in job.files:
        announce(file.name)
        path = Path(file.path or "")
        try:
            table = read_table(path, read_content(path), source)
        except DataError as error:
            unreadable[file.name] = str(error)
            continue
        frames.append(table.frame)
        lines.append(table.refusal_lines(file.name))
        reasons.update(table.counts)
        extra.update(dict.fromkeys(table.extra_columns))
        files[file.name] = FileCount(rows=len(table.frame), refused=len(table.refusals))
    refused = sum(count.refused for count in files.values())
    rows = sum(count.rows for count in files.values())
    if frames:
        pl.concat(frames).write_parquet(folder / ROWS_NAME, compression="zstd", statistics=False)
    if refused:
        (folder / REFUSED_NAME).write_bytes(b"".join(lines))
    return GroupResult(
        rows=rows, refused=refused, reasons=dict(sorted(reasons.items())), extra_columns=tuple(extra),
        files=files, unreadable=unreadable,
    )  # fmt: skip
