"""One day's rows to its shards of samples: label, id, joins; then by id and shard, in bounded memory.

Pure and local: Parquet files in, Parquet files out. The rows pass in pieces; what is joined to them is held in memory.
A sample's id is the xxh3 of its key's canonical text (without a key: of its day and its row number over the day's
files, in the order of their paths). Columns that are known only after the prediction never leave this room, but for the
label of one.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from paddlewheel.data.order import MASK, sample_hash
from paddlewheel.data.samples.buckets import ID, MEMORY_BYTES, Buckets
from paddlewheel.data.samples.join import build_right, join_right, joined_columns
from paddlewheel.data.samples.shard_file import ShardFile, group_limits, read_ids
from paddlewheel.data.samples.sharding import FILE, DayCounts, build_place, needs_files
from paddlewheel.data.text import NULL_TEXT, hash_each, joined_text
from paddlewheel.data.types import POLARS_TYPES
from paddlewheel.errors import DataError
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_data import Join, Source

ROW: Final = "(row)"
PIECE_BYTES: Final = 16 << 20  # of a piece's columns as Parquet holds them, uncompressed
LEAST_PIECE_ROWS, MOST_PIECE_ROWS = 1 << 6, 1 << 16


@dataclass(frozen=True, kw_only=True)
class Table:
    """A local Parquet file of rows. files: path and number of rows of the landing files it holds, in its order."""

    path: Path
    rows: int
    files: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class DayShard:
    """A written shard. sample_hash: `order.sample_hash` of its ids."""

    path: Path
    rows: int
    sample_hash: int


@dataclass(frozen=True, kw_only=True)
class DaySamples:
    """A day's shards in order, and what was counted on the way to them."""

    shards: tuple[DayShard, ...]
    columns: tuple[str, ...]
    without_label: int
    join_misses: Mapping[str, int]
    sample_hash: int


def read_right(tables: Sequence[Table], join: Join) -> pl.DataFrame:
    """What the samples are joined to, in memory. Raises DataError where a lookup would find two rows for one sample."""
    columns = joined_columns(join)
    frames = [pl.read_parquet(table.path, columns=columns).select(columns) for table in tables]
    return build_right(pl.concat([_typed(join.source, columns), *frames]), join)


def make_day(
    recipe: Recipe,
    day: str,
    rows: Sequence[Table],
    rights: Sequence[pl.DataFrame],
    folder: Path,
    *,
    memory_bytes: int = MEMORY_BYTES,
) -> DaySamples:
    """Write a day's shards into `folder`. rights: what `read_right` made of the tables of each of the recipe's joins.

    The bytes of the shards depend on the rows and the recipe, not on the pieces or `memory_bytes` (which is what a
    sorted run of samples may take). Raises DataError where two rows have one id, and where the shards do not hold each
    of the day's samples once, by count and by hash.
    """
    without_label, num_samples, expected_hash = 0, 0, 0
    misses, labels = Counter[str](), Counter[float]()
    by_file = np.zeros(sum(len(table.files) for table in rows), np.int64)
    with Buckets(folder, num_rows=sum(table.rows for table in rows), memory_bytes=memory_bytes) as buckets:
        for piece in _pieces(recipe, rows):
            samples = _label(recipe, day, piece)
            without_label += len(piece) - len(samples)
            num_samples += len(samples)
            expected_hash = (expected_hash + sample_hash(samples[ID].to_numpy())) & MASK
            for label, count in samples["label"].value_counts().iter_rows():
                labels[label] += count
            if needs_files(recipe.data.sharding):
                by_file += np.bincount(samples[FILE].to_numpy(), minlength=len(by_file))
            else:
                samples = samples.drop(FILE)
            for join, right in zip(recipe.data.joins, rights, strict=True):
                samples, missed = join_right(samples, right, join)
                misses[join.source.name] += missed
            buckets.add(samples)
        names = [path for table in rows for path, _ in table.files]
        counts = DayCounts(day=day, labels=labels, files=names, by_file=by_file.tolist())
        paths = _write_shards(recipe, counts, buckets, samples.clear(), folder)
    shards = tuple(_look_at(path) for path in paths)
    found, found_hash = sum(one.rows for one in shards), sum(one.sample_hash for one in shards) & MASK
    if (found, found_hash) != (num_samples, expected_hash):
        raise DataError(
            f"the shards of {day} do not hold each sample once: {num_samples} samples of hash {expected_hash:#x} went "
            f"in, {found} of hash {found_hash:#x} came out; disk, memory or this program is at fault"
        )
    return DaySamples(
        shards=shards, columns=tuple(name for name in samples.columns if name != FILE),
        without_label=without_label, join_misses=dict(misses), sample_hash=expected_hash,
    )  # fmt: skip


def _label(recipe: Recipe, day: str, piece: pl.DataFrame) -> pl.DataFrame:
    """Id, label, and the columns known before, of the rows of a piece that have a label."""
    data = recipe.data
    labelled = piece.filter(pl.col(data.label.column).is_not_null())
    outcome = labelled[data.label.column]
    label = (outcome if outcome.dtype == pl.Boolean else outcome > data.label.above).cast(pl.Float32).alias("label")
    key = [labelled[name] for name in data.rows.key] or [pl.repeat(day, len(labelled), eager=True), labelled[ROW]]
    ids = pl.Series(ID, hash_each(joined_text(key, null=NULL_TEXT)), dtype=pl.UInt64)
    known = [column.name for column in data.rows.columns if column.known == "before"]
    return labelled.select(ids, label, *known, FILE)


def _pieces(recipe: Recipe, tables: Sequence[Table]) -> Iterator[pl.DataFrame]:
    """Rows of a day with ROW, their number, and FILE, that of their file; at least one piece, if without rows."""
    data = recipe.data
    known = [column.name for column in data.rows.columns if column.known == "before"]
    columns = list(dict.fromkeys([*known, *data.rows.key, data.label.column]))
    first_row, first_file = 0, 0
    yield _typed(data.rows, columns).with_columns(
        pl.lit(None, pl.Int64).alias(ROW), pl.lit(None, pl.UInt32).alias(FILE)
    )
    for table in tables:
        row = 0
        ends = np.cumsum([rows for _, rows in table.files], dtype=np.int64)
        with pq.ParquetFile(table.path) as parquet:
            for batch in parquet.iter_batches(_piece_rows(parquet, columns), columns=columns):
                frame = pl.DataFrame(pl.from_arrow(batch))
                numbers = np.arange(row, row + len(frame))
                file = np.searchsorted(ends, numbers, side="right") + first_file
                yield frame.with_columns(pl.Series(ROW, numbers + first_row), pl.Series(FILE, file, dtype=pl.UInt32))
                row += len(frame)
        if row != table.rows or (table.files and row != ends[-1]):
            raise DataError(
                f"{table.path} holds {row} rows, its table's manifest says {table.rows}, "
                f"{sum(rows for _, rows in table.files)} by file; remove the table so that it is made again"
            )
        first_row, first_file = first_row + row, first_file + len(table.files)


def _piece_rows(parquet: pq.ParquetFile, columns: Sequence[str]) -> int:
    """Rows of a piece: about PIECE_BYTES of these columns."""
    meta = parquet.metadata
    size = sum(
        chunk.total_uncompressed_size
        for group in range(meta.num_row_groups)
        for chunk in map(meta.row_group(group).column, range(meta.num_columns))
        if chunk.path_in_schema in columns
    )
    row_bytes = size / max(1, meta.num_rows)
    return int(max(LEAST_PIECE_ROWS, min(MOST_PIECE_ROWS, PIECE_BYTES / max(1.0, row_bytes))))


def _typed(source: Source, columns: Sequence[str]) -> pl.DataFrame:
    """No row of these columns of a source."""
    types: dict[str, Any] = {column.name: POLARS_TYPES[column.type] for column in source.columns}
    return pl.DataFrame(schema={name: types[name] for name in columns})


def _write_shards(recipe: Recipe, counts: DayCounts, buckets: Buckets, empty: pl.DataFrame, folder: Path) -> list[Path]:
    """The files of all shards, each sorted by id."""
    sharding = recipe.data.sharding
    place = build_place(sharding, counts)
    schema = empty.drop(FILE, strict=False)
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(
                ShardFile(
                    folder / f"shard-{number:03d}.parquet",
                    schema,
                    limits=group_limits(sharding.shards_per_day),
                )
            )
            for number in range(sharding.shards_per_day)
        ]
        for samples in buckets.by_id():
            _check_ids(samples[ID], counts.day)
            numbers = place(samples)
            for number in np.unique(numbers).tolist():
                mine = samples if len(files) == 1 else samples.filter(pl.Series(numbers == number))
                files[number].add(mine.drop(FILE, strict=False))
    return [file.path for file in files]


def _check_ids(ids: pl.Series, day: str) -> None:
    """Raises DataError where one of these sorted ids stands twice."""
    array = ids.to_numpy()
    twice = np.flatnonzero(array[1:] == array[:-1])
    if len(twice):
        raise DataError(
            f"{len(np.unique(array[twice]))} sample ids stand for more than one row of {day}, {array[twice[0]]:#x} "
            "first; data.rows.key must tell rows apart: add a column to it"
        )


def _look_at(path: Path) -> DayShard:
    """A shard as it stands on the disk."""
    rows, total = 0, 0
    for ids in read_ids(path):
        rows += len(ids)
        total = (total + sample_hash(ids)) & MASK
    return DayShard(path=path, rows=rows, sample_hash=total)
