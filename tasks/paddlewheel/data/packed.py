"""Packed rows: Parquet with one fixed-width binary column, so that a batch is one gather and columns are views.

Turning columns into rows is the dear part of tabular batches; it is done once here instead of in each epoch. A row is
sample_id uint64, label float32, F ids int32, D dense float32 at fixed offsets, padded to 8 bytes, little endian.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from paddlewheel.errors import StorageError

if TYPE_CHECKING:
    from paddlewheel.data.encoding.fitted import Inputs

Compression = Literal["lz4", "zstd", "none"]
LAYOUT_VERSION = 1
LAYOUT_METADATA = b"paddlewheel.layout"
ROW_COLUMN = "row"
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 65_536, 64 << 20


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the parts of a row of `row_bytes` lie, in bytes. Stored in the file's schema metadata."""

    num_ids: int
    num_dense: int
    version: int = LAYOUT_VERSION

    @property
    def ids_offset(self) -> int:
        return 12

    @property
    def dense_offset(self) -> int:
        return self.ids_offset + 4 * self.num_ids

    @property
    def row_bytes(self) -> int:
        return -(-(self.dense_offset + 4 * self.num_dense) // 8) * 8

    @property
    def row_group_rows(self) -> int:
        """Rows of a row group, which is what a writer or a reader holds of them at a time."""
        return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // self.row_bytes))

    def to_facts(self) -> dict[str, int]:
        """The layout as plain JSON, offsets included, for metadata and manifests."""
        return asdict(self) | {
            "sample_id_offset": 0,
            "label_offset": 8,
            "ids_offset": self.ids_offset,
            "dense_offset": self.dense_offset,
            "row_bytes": self.row_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """B rows: sample_ids_B uint64, labels_B float32, ids_BF int32, dense_BD float32: views of rows_BW, uint8.

    Those of a file are read-only. Gather `rows_BW[indices]` once and cut it with `split_rows`.
    """

    sample_ids_B: np.ndarray
    labels_B: np.ndarray
    ids_BF: np.ndarray
    dense_BD: np.ndarray
    rows_BW: np.ndarray
    layout: Layout

    def __len__(self) -> int:
        return len(self.rows_BW)


def split_rows(rows_BW: np.ndarray, layout: Layout) -> PackedRows:
    """The parts of packed rows as views of them."""
    ids_end, dense_end = layout.dense_offset, layout.dense_offset + 4 * layout.num_dense
    return PackedRows(
        sample_ids_B=rows_BW[:, 0:8].view("<u8")[:, 0],
        labels_B=rows_BW[:, 8:12].view("<f4")[:, 0],
        ids_BF=rows_BW[:, layout.ids_offset : ids_end].view("<i4"),
        dense_BD=rows_BW[:, layout.dense_offset : dense_end].view("<f4"),
        rows_BW=rows_BW,
        layout=layout,
    )


class PackedWriter:
    """A file of packed rows, written as they come by. Its bytes depend on the rows in their order alone."""

    def __init__(self, path: Path, layout: Layout, *, compression: Compression = "lz4") -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.layout, self.rows = layout, 0
        self._kind = pa.binary(layout.row_bytes)
        metadata: dict[bytes | str, bytes | str] = {
            LAYOUT_METADATA: json.dumps(layout.to_facts(), sort_keys=True).encode()
        }
        self._schema = pa.schema([pa.field(ROW_COLUMN, self._kind, nullable=False)], metadata=metadata)
        self._waiting_BW = np.zeros((layout.row_group_rows, layout.row_bytes), np.uint8)
        self._num_waiting = 0
        self._writer: Any = pq.ParquetWriter(
            path,
            self._schema,
            compression=compression,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and (self._num_waiting or not self.rows):
            self._write()
        self._writer.close()

    def add(self, sample_ids_B: np.ndarray, labels_B: np.ndarray, inputs: Inputs) -> None:
        """Append B rows."""
        start, count = 0, len(sample_ids_B)
        while start < count:
            end = min(count, start + len(self._waiting_BW) - self._num_waiting)
            at = slice(self._num_waiting, self._num_waiting + end - start)
            parts = split_rows(self._waiting_BW[at], self.layout)
            parts.sample_ids_B[:] = sample_ids_B[start:end]
            parts.labels_B[:] = labels_B[start:end]
            parts.ids_BF[:] = inputs.ids_BF[start:end]
            parts.dense_BD[:] = inputs.dense_BD[start:end]
            self._num_waiting, start = at.stop, end
            if self._num_waiting == len(self._waiting_BW):
                self._write()
        self.rows += count

    def _write(self) -> None:
        import pyarrow as pa

        flat: Any = self._waiting_BW[: self._num_waiting]
        column = pa.FixedSizeBinaryArray.from_buffers(self._kind, self._num_waiting, [None, pa.py_buffer(flat)])
        self._writer.write_table(pa.table([column], schema=self._schema), row_group_size=len(self._waiting_BW))
        self._num_waiting = 0


def write_packed(
    path: Path, sample_ids_B: np.ndarray, labels_B: np.ndarray, inputs: Inputs, *, compression: Compression = "lz4"
) -> Layout:
    """Write B rows to a local file; returns their layout. Equal rows give equal bytes."""
    layout = Layout(num_ids=inputs.ids_BF.shape[1], num_dense=inputs.dense_BD.shape[1])
    with PackedWriter(path, layout, compression=compression) as writer:
        writer.add(sample_ids_B, labels_B, inputs)
    return layout


def read_packed(path: Path) -> PackedRows:
    """All rows of a packed file, in the order they were written. Raises StorageError for a damaged or foreign file."""
    groups = list(iter_packed(path))
    if len(groups) == 1:
        return groups[0]
    return split_rows(np.concatenate([group.rows_BW for group in groups]), groups[0].layout)


def iter_packed(path: Path) -> Iterator[PackedRows]:
    """The rows of a packed file a row group at a time, at least one. Raises StorageError as `read_packed`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            layout = _layout_of(file.schema_arrow, path)
            for group in range(file.num_row_groups):
                column = file.read_row_group(group, columns=[ROW_COLUMN]).column(ROW_COLUMN)
                yield split_rows(_rows_of(column, layout), layout)
            if not file.num_row_groups:
                yield split_rows(np.zeros((0, layout.row_bytes), np.uint8), layout)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged or not a file of packed rows: {error}") from error


def _rows_of(column: Any, layout: Layout) -> np.ndarray:
    """uint8[B, W] of a column of fixed-width rows: a view, where it lies in one piece."""
    parts = [np.zeros((0, layout.row_bytes), np.uint8)]
    for chunk in column.chunks:
        start = chunk.offset * layout.row_bytes
        flat = np.frombuffer(chunk.buffers()[1], np.uint8)[start : start + len(chunk) * layout.row_bytes]
        parts.append(flat.reshape(len(chunk), layout.row_bytes))
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def _layout_of(schema: Any, path: Path) -> Layout:
    facts = json.loads(schema.metadata[LAYOUT_METADATA])
    if facts["version"] != LAYOUT_VERSION:
        raise StorageError(f"{path} has packed rows of layout {facts['version']}, this program reads {LAYOUT_VERSION}")
    layout = Layout(num_ids=facts["num_ids"], num_dense=facts["num_dense"])
    if schema.field(ROW_COLUMN).type.byte_width != layout.row_bytes:
        raise ValueError(f"rows have {schema.field(ROW_COLUMN).type.byte_width} bytes, not {layout.row_bytes}")
    return layout
