"""One pass over a group's files: chunks are checked, and rows, refusals and statistics written as they stream by."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import polars as pl

from paddlewheel.data.group import REFUSED_NAME, ROWS_NAME, STATISTICS_NAME, FileCount, GroupFile, GroupResult
from paddlewheel.data.readers import CUSTOM, READERS, Chunk, Reader, ReadJob, UnreadableFile
from paddlewheel.data.repeated import KeyLog, Repeats
from paddlewheel.data.rows import RowGroups, RowsWriter
from paddlewheel.data.schema import Checked, Reason, check_chunk, refusal_lines, without_rows
from paddlewheel.data.statistics import StatisticsBuilder
from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Source

HELD_BYTES: Final = 24 << 20  # of a file that may still turn out to be unreadable


@dataclass(kw_only=True)
class _FileRows:
    """What was read of a file and is not written yet, and the counts of all of it. number: of the file in its group."""

    number: int
    frames: list[tuple[pl.DataFrame, pl.Series]] = field(default_factory=list)
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
        self._names: list[str] = []
        self._counts: dict[str, FileCount] = {}
        self._reasons: Counter[str] = Counter()
        self._extra_columns: dict[str, None] = {}
        self._sound_rows = 0  # of files read whole before this one
        self._groups = RowGroups()
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
        self._names.append(file.name)
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
        self._names.append(file.name)
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
        faults = checked.faults
        frame, places = checked.frame, chunk.places
        if faults:
            bad = sorted(faults)
            frame, places = without_rows(frame, bad), places.gather(_others(len(places), bad))
        start = self._sound_rows + held.sound_rows
        held.sound_rows += len(frame)
        if self._repeats is not None:
            again = dict(self._repeats.among(start, start + len(frame)))
            if again:
                sound = _others(len(chunk.places), sorted(faults))
                for index, first in again.items():
                    where = f"{chunk.unit} {first.place}"
                    where += "" if first.file == held.number else f" of {self._names[first.file]}"
                    faults[int(sound[index])] = [_repeated(self._source.key, frame, index, where)]
                frame = without_rows(frame, sorted(again))
        if faults:
            held.refused_lines.append(refusal_lines(chunk, faults, self._names[-1]))
            held.held_bytes += len(held.refused_lines[-1])
            held.refused += len(faults)
            for reasons in faults.values():
                held.reasons.update({f"{one.column}: {one.counted}" for one in reasons})
        held.extra_columns.update(dict.fromkeys(chunk.extra_columns))
        held.rows += len(frame)
        if len(frame):
            held.frames.append((frame, places))
            held.held_bytes += frame.estimated_size()

    def _write(self, held: _FileRows) -> None:
        """What is held of a file goes to the rows, the statistics, the keys and the refusals."""
        for frame, places in held.frames:
            if self._keys is not None:
                self._keys.add(frame, places, held.number)
            for group in self._groups.add(frame):
                self._emit(group)
        for lines in held.refused_lines:
            self._refused.write(lines)
        held.written = held.written or bool(held.frames or held.refused_lines)
        held.frames, held.refused_lines, held.held_bytes = [], [], 0

    def _emit(self, group: pl.DataFrame) -> None:
        self._writer.write(group)
        self._statistics.add(group)


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


def _others(size: int, rows: list[int]) -> pl.Series:
    """The indices below `size` that are not among `rows`."""
    return without_rows(pl.DataFrame({"row": pl.int_range(size, eager=True)}), rows)["row"]


def _repeated(key: tuple[str, ...], frame: pl.DataFrame, row: int, where: str) -> Reason:
    value = ", ".join(str(frame[name][row]) for name in key)
    return Reason(column=", ".join(key), value=value, reason=f"the same key as {where}", counted="duplicate key")
