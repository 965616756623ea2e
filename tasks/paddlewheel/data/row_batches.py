"""Columns of a Parquet file a batch at a time, so that a file larger than memory passes through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from paddlewheel.errors import StorageError

BATCH_BYTES = 64 << 20
BATCH_ROWS = 262_144
SAMPLE_ROWS = 64


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The rows of a file in their order, in frames of about 64 MiB at the most. Raises StorageError naming the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            rows = _batch_rows(file, list(columns))
            for batch in file.iter_batches(rows, columns=list(columns)):
                yield pl.DataFrame(batch)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def _batch_rows(file: Any, columns: list[str]) -> int:
    """How many rows a batch may have, by what the columns take in the file and what its first rows take in memory.

    The file alone does not tell: a long text that comes again and again stands in it once.
    """
    wanted, stored = set(columns), 0
    for group in range(file.metadata.num_row_groups):
        described = file.metadata.row_group(group)
        for index in range(described.num_columns):
            column = described.column(index)
            if column.path_in_schema in wanted:
                stored += column.total_uncompressed_size
    first = next(file.iter_batches(SAMPLE_ROWS, columns=columns), None)
    held = first.nbytes / len(first) if first is not None and len(first) else 0.0
    row_bytes = max(1.0, held, stored / max(1, file.metadata.num_rows))
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / row_bytes)))
