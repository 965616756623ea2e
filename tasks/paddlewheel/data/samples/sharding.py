"""Who goes where: to each sample of a day the number of its shard, by the recipe's `data.sharding`.

A day is sharded by itself, so what comes tomorrow moves no row of today's. Samples come by in ascending order of their
id, which is a hash: to deal them in that order is to deal them by content.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from paddlewheel.errors import DataError, RecipeError
from paddlewheel.recipe_data import Sharding

FILE: Final = "(file)"  # number of the file that a sample's row came from, in the order of DayCounts.files
CUSTOM_ROWS: Final = 65_536
AGAIN_ROWS: Final = 1_024
BY_FILES: Final = ("path", "size")

Place = Callable[[pl.DataFrame], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class DayCounts:
    """Samples of a day by label, and by file with the files' paths in their order."""

    day: str
    labels: Mapping[float, int]
    files: Sequence[str] = ()
    by_file: Sequence[int] = ()


def needs_files(sharding: Sharding) -> bool:
    """Whether a sample's shard may depend on the file that its row came from."""
    return sharding.by not in ("content", "label")


def build_place(sharding: Sharding, counts: DayCounts) -> Place:
    """A function of successive frames of a day's samples, in ascending order of their ids -> shard numbers int64[N].

    content: id modulo the number of shards. label: the samples of each label dealt in turn, beginning where the label
    before left off. path: the files that hold samples dealt in turn. size: each such file, the one of most samples
    first, to the shard with the fewest so far. Otherwise the user's own, which gets at most 65,536 samples at a time.

    Raises RecipeError where the user's own cannot be imported.
    """
    num_shards = sharding.shards_per_day
    if sharding.by == "content":
        return lambda samples: (samples["sample_id"].to_numpy() % np.uint64(num_shards)).astype(np.int64)
    if sharding.by == "label":
        return _by_label(num_shards, counts.labels)
    if sharding.by in BY_FILES:
        sizes = np.asarray(counts.by_file, np.int64)
        shard_of_file = balance(sizes, num_shards) if sharding.by == "size" else deal(sizes, num_shards)
        return lambda samples: shard_of_file[samples[FILE].to_numpy()]
    return _by_function(sharding, counts)


def deal(sizes: np.ndarray, num_shards: int) -> np.ndarray:
    """Shard of each of F files, int64[F]: those that are not empty in turn."""
    return (np.cumsum(sizes > 0) - 1).clip(min=0) % num_shards


def balance(sizes: np.ndarray, num_shards: int) -> np.ndarray:
    """Shard of each of F files, int64[F]: the largest first, each to the smallest shard so far (Graham 1969)."""
    shards = np.zeros(len(sizes), np.int64)
    loads = np.zeros(num_shards, np.int64)
    for file in np.argsort(-sizes, kind="stable"):
        shards[file] = np.argmin(loads)
        loads[shards[file]] += sizes[file]
    return shards


def _by_label(num_shards: int, labels: Mapping[float, int]) -> Place:
    ordered = sorted(labels)
    starts = itertools.accumulate((labels[label] for label in ordered), initial=0)
    following = dict(zip(ordered, starts, strict=False))

    def place(samples: pl.DataFrame) -> np.ndarray:
        labels_N = samples["label"].to_numpy()
        numbers = np.zeros(len(labels_N), np.int64)
        for label in np.unique(labels_N).tolist():
            mine = np.flatnonzero(labels_N == label)
            numbers[mine] = (following[label] + np.arange(len(mine))) % num_shards
            following[label] += len(mine)
        return numbers

    return place


def _by_function(sharding: Sharding, counts: DayCounts) -> Place:
    function = import_function(sharding.by)
    names = pl.Series(counts.files, dtype=pl.String)
    where = f"data.sharding.by: {sharding.by} on samples of {counts.day}"

    def call(samples: pl.DataFrame) -> np.ndarray:
        try:
            numbers = function(samples, sharding.shards_per_day)
        except (Exception, SystemExit) as error:
            raise DataError(f"{where}: it raised {type(error).__name__}: {error}") from error
        return _checked(numbers, samples, sharding.shards_per_day, where)

    def place(samples: pl.DataFrame) -> np.ndarray:
        if "file" in samples.columns:
            raise RecipeError(f"{where}: the rows have a column `file`, the name of what it is given; rename theirs")
        told = samples.drop(FILE).with_columns(file=names.gather(samples[FILE]))
        parts = [np.empty(0, np.int64)]
        for start in range(0, len(told), CUSTOM_ROWS):
            piece = told[start : start + CUSTOM_ROWS]
            parts.append(call(piece))
            some = piece[:AGAIN_ROWS]
            differs = np.flatnonzero(call(some.reverse())[::-1] != parts[-1][: len(some)])
            if len(differs):
                raise DataError(
                    f"{where}: asked again, in another order, it puts the sample {_named(some, differs[0])} into "
                    "another shard; the number must follow from the sample alone, not from chance or its neighbours"
                )
        return np.concatenate(parts)

    return place


def import_function(name: str) -> Callable[[pl.DataFrame, int], Any]:
    """What `package.module:name` names. Raises RecipeError where there is none, or it cannot be called."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(f"data.sharding.by: {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise RecipeError(f"data.sharding.by: {name!r} is a {type(found).__name__}, not a function")
    return found


def _checked(numbers: Any, samples: pl.DataFrame, num_shards: int, where: str) -> np.ndarray:
    """What the user's function returned as int64[N]. Raises DataError that says what is wrong and where."""
    array = np.asarray(numbers.to_numpy() if isinstance(numbers, pl.Series) else numbers)
    if array.shape != (len(samples),):
        raise DataError(f"{where}: {len(samples)} samples need as many numbers; it returned the shape {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{where}: it returned {array.dtype}; return a whole number for each sample, none missing")
    wrong = np.flatnonzero((array < 0) | (array >= num_shards))
    if len(wrong):
        raise DataError(
            f"{where}: it returned {array[wrong[0]]} for the sample {_named(samples, wrong[0])}; shards are 0 to "
            f"{num_shards - 1} (data.sharding.shards_per_day); {len(wrong)} of {len(samples)} numbers are out of range"
        )
    return array.astype(np.int64)


def _named(samples: pl.DataFrame, row: int) -> str:
    return f"{samples['sample_id'][int(row)]:#x} of {samples['file'][int(row)]}"
