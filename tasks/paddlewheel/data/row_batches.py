"""Columns of a Parquet file a batch at a time, so that a file larger than memory passes through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from paddlewheel.errors import StorageError

BATCH_BYTES = 64 << 20
BATCH_ROWS = 262_144


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The rows of a file in their order, in frames of about 64 MiB at the most. Raises StorageError naming the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(_batch_rows(file.metadata, columns), columns=list(columns)):
                yield pl.DataFrame(batch)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def _batch_rows(metadata: Any, columns: Sequence[str]) -> int:
    wanted, size = set(columns), 0
    for group in range(metadata.num_row_groups):
        described = metadata.row_group(group)
        for index in range(described.num_columns):
            column = described.column(index)
            if column.path_in_schema in wanted:
                size += column.total_uncompressed_size
    return max(1, min(BATCH_ROWS, BATCH_BYTES * max(1, metadata.num_rows) // max(1, size)))
