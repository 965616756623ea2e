"""Parquet, row group by row group and batch by batch, so that a row group larger than memory passes too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from paddlewheel.data.calendar import drop_beyond
from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile
from paddlewheel.data.readers.columns import column_faults
from paddlewheel.data.tables.compressed import local_path

BATCH_ROWS: Final = 1 << 14
BUFFER_BYTES: Final = 1 << 20  # of a column's pages, instead of the whole column of a row group


def read(job: ReadJob, *, batch_rows: int = BATCH_ROWS) -> Iterator[Chunk]:
    """The file's rows of the declared columns, at most `batch_rows` a chunk, in the types that they have in the file.

    Raises UnreadableFile for one that is cut off, empty, damaged (by its pages' checksums, where it has them),
    encrypted or without a required column.
    """
    path = local_path(job)
    if not path.exists():
        raise UnreadableFile(f"{job.name}: cannot be read: No such file or directory; deliver the file, then run again")
    size = path.stat().st_size
    if not size:
        raise UnreadableFile(f"{job.name}: the file is empty (0 bytes); deliver it again")
    try:
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True) as file:
            names = list(file.schema_arrow.names)
            if faults := column_faults(job.source, names):
                raise UnreadableFile(
                    f"{job.name}: {'; '.join(faults)}. It has: {', '.join(names[:40])}. Deliver the file with its "
                    f"columns, or change the columns of {job.source.name!r} in the recipe"
                )
            taken = [column.name for column in job.source.columns if column.name in names]
            extra = tuple(name for name in names if name not in taken)
            first = 1
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_rows, row_groups=[group], columns=taken, use_threads=False):
                    yield _chunk(batch, group, first, extra)
                    first += len(batch)
            if first == 1:
                yield _chunk(pa.RecordBatch.from_pylist([], schema=file.schema_arrow), 0, 1, extra)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(
            f"{job.name}: not a sound Parquet file of {size} bytes ({_first_line(error)}); deliver it again"
        ) from error


def _chunk(batch: pa.RecordBatch, group: int, first: int, extra: tuple[str, ...]) -> Chunk:
    """A batch as a chunk; its rows are counted from `first` in the file."""
    names = [name for name in batch.schema.names if name not in extra]
    frame, broken = drop_beyond(pl.DataFrame([pl.Series(name, pl.from_arrow(batch.column(name))) for name in names]))

    def raws(rows: Sequence[int]) -> list[str]:
        return [json.dumps(row, default=_shown, ensure_ascii=False) for row in frame[list(rows)].iter_rows(named=True)]

    return Chunk(
        frame=frame,
        places=pl.int_range(first, first + len(batch), dtype=pl.Int64, eager=True),
        raws=raws,
        broken=broken,
        extra_columns=extra,
        unit="row",
        row_group=group,
    )


def _shown(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
