"""Rows of a group whose key an earlier row has, found in bounded memory: 32 bytes a row, on disk where they are many.

Two passes: the first notes the hash of every key, and nearly always finds nothing; the second, which reads the group
once more, is told which rows to refuse. Keys are compared by 128 bits of hash. Rejected: a set of keys seen, whose
memory grows with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

NUM_PARTITIONS: Final = 256
MEMORY_ROWS: Final = 1 << 20
PLACE_BITS: Final = 40
SEEDS: Final = (1, 2)

ENTRY: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8"), ("at", "<i8")])
REPEAT: Final = np.dtype([("row", "<i8"), ("first", "<i8")])


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the first row with a key is: the number of its file in the group, and its line or row there."""

    file: int
    place: int


class Repeats:
    """The sound rows of a group, counted from 0, that have the key of an earlier one, and where that is."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def among(self, start: int, stop: int) -> Iterator[tuple[int, Place]]:
        """(row - start, place of the first with its key) of those with start <= row < stop."""
        rows = self._entries["row"]
        for entry in self._entries[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]:
            first = int(entry["first"])
            yield int(entry["row"]) - start, Place(file=first >> PLACE_BITS, place=first & ((1 << PLACE_BITS) - 1))


class KeyLog:
    """Hashes of the keys of a group's rows, in order; beyond `memory_rows` they lie in files below `folder`."""

    def __init__(self, key: tuple[str, ...], folder: Path, *, memory_rows: int = MEMORY_ROWS) -> None:
        self._key, self._folder, self._memory_rows = key, folder, memory_rows
        self._held: list[np.ndarray] = []
        self._num_held = self._num_rows = 0
        self._paths: list[Path] = []

    def add(self, frame: pl.DataFrame, places: np.ndarray, file: int) -> None:
        """Note rows of a file of the group."""
        entries = np.empty(len(frame), ENTRY)
        keys = frame.select(self._key)
        for name, seed in zip(("high", "low"), SEEDS, strict=True):
            entries[name] = keys.hash_rows(seed=seed).to_numpy()
        entries["row"] = np.arange(self._num_rows, self._num_rows + len(frame))
        entries["at"] = (file << PLACE_BITS) + places
        self._held.append(entries)
        self._num_rows += len(frame)
        self._num_held += len(frame)
        if self._num_held > self._memory_rows:
            self._spill()

    def find(self) -> Repeats:
        """The rows that repeat a key. The files of the log are gone then, but for one that the answer rests on."""
        if not self._paths:
            return Repeats(np.sort(_repeated(self._take()), order="row"))
        self._spill()
        target = self._folder / "repeated"
        with target.open("wb") as out:
            for path in self._paths:
                out.write(_repeated(np.fromfile(path, ENTRY)).tobytes())
                path.unlink()
        self._paths = []
        if not target.stat().st_size:
            return Repeats(np.empty(0, REPEAT))
        found = np.memmap(target, REPEAT, mode="r+")
        found.sort(order="row")
        return Repeats(found)

    def _take(self) -> np.ndarray:
        entries = np.concatenate(self._held) if self._held else np.empty(0, ENTRY)
        self._held, self._num_held = [], 0
        return entries

    def _spill(self) -> None:
        entries = self._take()
        if not self._paths:
            self._paths = [self._folder / f"keys-{number:03d}" for number in range(NUM_PARTITIONS)]
        numbers = (entries["high"] >> np.uint64(56)).astype(np.int64)
        entries = entries[np.argsort(numbers, kind="stable")]
        bounds = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=NUM_PARTITIONS))])
        for number, path in enumerate(self._paths):
            with path.open("ab") as out:
                out.write(entries[bounds[number] : bounds[number + 1]].tobytes())


def _repeated(entries: np.ndarray) -> np.ndarray:
    """Of entries in the order of their rows, those that have the hashes of an earlier one."""
    order = np.argsort(entries["high"], kind="stable")
    high = entries["high"][order]
    if not (high[1:] == high[:-1]).any():
        return np.empty(0, REPEAT)
    entries = entries[np.lexsort((entries["row"], entries["low"], entries["high"]))]
    same = (entries["high"][1:] == entries["high"][:-1]) & (entries["low"][1:] == entries["low"][:-1])
    begins = np.concatenate([[True], ~same])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(entries)), 0))
    later = ~begins
    found = np.empty(int(later.sum()), REPEAT)
    found["row"], found["first"] = entries["row"][later], entries["at"][first[later]]
    return found
