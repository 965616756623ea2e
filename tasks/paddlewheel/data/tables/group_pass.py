"""One pass over a group's files: chunks are checked, and rows, refusals and statistics written as they stream by."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

import numpy as np
import polars as pl

from paddlewheel.data.readers import CUSTOM, READERS, Chunk, Reader, ReadJob, UnreadableFile
from paddlewheel.data.statistics.builder import StatisticsBuilder
from paddlewheel.data.statistics.codes import Coder
from paddlewheel.data.tables.group import REFUSED_NAME, ROWS_NAME, STATISTICS_NAME, FileCount, GroupFile, GroupResult
from paddlewheel.data.tables.repeated import KeyLog, Repeats
from paddlewheel.data.tables.rows import GROUP_ROWS, RowGroups, RowsWriter, text_bytes
from paddlewheel.data.tables.schema import Checked, Reason, check_chunk, refusal_lines
from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Source

FEW: Final = 64
ROW_BYTES: Final = 16  # of one value, besides its text
HELD_BYTES: Final = 8 << 20  # of a file that may still turn out to be unreadable


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The sound rows of a chunk: what lies between those that are refused, and where each row stands in the file."""

    frames: list[pl.DataFrame]
    places: np.ndarray
    most_text_bytes: int


@dataclass(kw_only=True)
class _FileRows:
    """What was read of a file and is not written yet, and the counts of all of it. number: of the file in its group."""

    number: int
    rows_held: list[_Rows] = field(default_factory=list)
    refused_lines: list[bytes] = field(default_factory=list)
    held_bytes: int = 0
    written: bool = False
    sound_rows: int = 0
    rows: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    extra_columns: dict[str, None] = field(default_factory=dict)


class GroupPass:
    """Reads files one after the other into `folder`. Use as a context; unless `finish` was called, nothing stays there.

    unreadable: reasons by name of the files that could not be read; spoiled: rows of one of them are written.
    """

    def __init__(
        self,
        source: Source,
        partition: str | None,
        folder: Path,
        repeats: Repeats | None,
        beside: Callable[[str], Path | None] = lambda _: None,
    ) -> None:
        """`beside`: local bytes of the group's files by name, for one that names others."""
        self.unreadable: dict[str, str] = {}
        self.spoiled = False
        self._source, self._partition, self._folder, self._repeats = source, partition, folder, repeats
        self._read, self._beside = load_reader(source), beside
        self._scratch = Path(tempfile.mkdtemp(prefix="pass-", dir=folder))
        self._names: dict[int, str] = {}
        self._counts: dict[str, FileCount] = {}
        self._reasons: Counter[str] = Counter()
        self._extra_columns: dict[str, None] = {}
        self._sound_rows = 0  # of files read whole before this one
        self._groups, self._coder = RowGroups(), Coder(GROUP_ROWS)
        self._statistics = StatisticsBuilder(source.columns)
        self._keys = KeyLog(source.key, self._scratch) if source.key and repeats is None else None
        self._writer = RowsWriter(self._scratch / ROWS_NAME, source.columns)
        self._refused: BinaryIO = (self._scratch / REFUSED_NAME).open("wb")

    def __enter__(self) -> GroupPass:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._refused.close()
        shutil.rmtree(self._scratch)

    def read(self, number: int, file: GroupFile) -> None:
        """Read the next file of the group, which is its `number`th from 0."""
        job = ReadJob(
            name=file.name, source=self._source, path=None if file.path is None else Path(file.path),
            partition=self._partition, version=file.version, beside=self._beside,
        )  # fmt: skip
        self._names[number] = file.name
        held = _FileRows(number=number)
        try:
            for chunk in self._read(job):
                self._take(chunk, _check(job.name, chunk, self._source), held)
                if held.held_bytes > HELD_BYTES:
                    self._write(held)
        except UnreadableFile as error:
            self.unreadable[file.name] = str(error)
            self.spoiled = self.spoiled or held.written
            return
        self._write(held)
        self._sound_rows += held.sound_rows
        self._counts[file.name] = FileCount(rows=held.rows, refused=held.refused)
        self._reasons.update(held.reasons)
        self._extra_columns.update(held.extra_columns)

    def skip(self, file: GroupFile) -> None:
        """A file that has no rows by itself."""
        self._counts[file.name] = FileCount(rows=0, refused=0)

    def find_repeats(self) -> Repeats | None:
        """Rows with the key of an earlier one; None where there are none."""
        found = self._keys.find() if self._keys is not None else None
        return found or None  # an open file outlives its name

    def finish(self, unreadable: dict[str, str]) -> GroupResult:
        """Put the files in their places; what the group held. unreadable: reasons by file, of passes before too."""
        for group in self._groups.rest():
            self._emit(group)
        self._writer.close()
        self._refused.close()
        with no_collections():
            (self._scratch / STATISTICS_NAME).write_bytes(self._statistics.finish().to_json())
        refused = sum(count.refused for count in self._counts.values())
        for name in (ROWS_NAME, STATISTICS_NAME, *([REFUSED_NAME] if refused else [])):
            (self._scratch / name).rename(self._folder / name)
        return GroupResult(
            rows=sum(count.rows for count in self._counts.values()),
            refused=refused,
            reasons=dict(sorted(self._reasons.items())),
            extra_columns=tuple(self._extra_columns),
            files=self._counts,
            unreadable=unreadable,
        )

    def _take(self, chunk: Chunk, checked: Checked, held: _FileRows) -> None:
        """Keep a checked chunk's sound rows, but for those that repeat a key, and its refusals."""
        frame, places, faults = checked.frame, chunk.places, checked.faults
        rows = kept_rows(len(frame), faults)
        start = self._sound_rows + held.sound_rows
        held.sound_rows += len(rows)
        if self._repeats is not None:
            again = list(self._repeats.among(start, start + len(rows)))
            for index, first in again:
                where = f"{chunk.unit} {first.place}"
                where += "" if first.file == held.number else f" of {self._names[first.file]}"
                faults[int(rows[index])] = [_repeated(self._source.key, frame, int(rows[index]), where)]
            rows = kept_rows(len(frame), faults)
        if faults:
            held.refused_lines.append(refusal_lines(chunk, faults, self._names[held.number]))
            held.held_bytes += len(held.refused_lines[-1])
            held.refused += len(faults)
            for reasons in faults.values():
                held.reasons.update({f"{one.column}: {one.counted}" for one in reasons})
        held.extra_columns.update(dict.fromkeys(chunk.extra_columns))
        held.rows += len(rows)
        if len(rows):
            frames = frames_between(frame, sorted(faults))
            num_bytes = text_bytes(frame) if chunk.most_text_bytes is None else chunk.most_text_bytes
            held.rows_held.append(_Rows(frames=frames, places=places.to_numpy()[rows], most_text_bytes=num_bytes))
            held.held_bytes += num_bytes + ROW_BYTES * frame.width * len(rows)

    def _write(self, held: _FileRows) -> None:
        """What is held of a file goes to the rows, the statistics, the keys and the refusals."""
        for rows in held.rows_held:
            if self._keys is not None:
                keys = pl.concat([frame.select(self._source.key) for frame in rows.frames])
                self._keys.add(keys, rows.places, held.number)
            for group in self._groups.add(rows.frames, rows.most_text_bytes):
                self._emit(group)
        for lines in held.refused_lines:
            self._refused.write(lines)
        held.written = held.written or bool(held.rows_held or held.refused_lines)
        held.rows_held, held.refused_lines, held.held_bytes = [], [], 0

    def _emit(self, group: pl.DataFrame) -> None:
        codes = {column.name: self._coder.codes(column) for column in group}
        self._writer.write(group, codes)
        self._statistics.add(group, codes)


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Without Python's search for cycles, which thousands of new tuples set off and which looks through all modules."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_reader(source: Source) -> Reader:
    """The reader of a source's format."""
    name = "sql" if source.sql is not None else source.format
    module, _, function = READERS.get(name, CUSTOM).partition(":")
    reader: Reader = getattr(importlib.import_module(module), function)
    return reader


def _check(name: str, chunk: Chunk, source: Source) -> Checked:
    try:
        return check_chunk(chunk, source)
    except DataError as error:
        kind = UnreadableFile if source.sql is None else DataError  # a query that does not fit is no bad file
        raise kind(f"{name}: {error}") from error


def frames_between(frame: pl.DataFrame, rows: Sequence[int]) -> list[pl.DataFrame]:
    """The frame without these rows: what lies between a few of them, uncopied, or one without many of them."""
    if len(rows) > FEW:
        return [frame[kept_rows(len(frame), dict.fromkeys(rows))]]
    bounds = [-1, *rows, len(frame)]
    return [frame[start + 1 : stop] for start, stop in itertools.pairwise(bounds) if start + 1 < stop]


def kept_rows(size: int, faults: Mapping[int, Any]) -> np.ndarray:
    """The indices below `size` that have no fault."""
    return np.delete(np.arange(size), list(faults)) if faults else np.arange(size)


def _repeated(key: tuple[str, ...], frame: pl.DataFrame, row: int, where: str) -> Reason:
    value = ", ".join(str(frame[name][row]) for name in key)
    return Reason(column=", ".join(key), value=value, reason=f"the same key as {where}", counted="duplicate key")
