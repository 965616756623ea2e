"""Packed rows: Parquet with one fixed-width binary column, so that a batch is one gather and columns are views.

Turning columns into rows is the dear part of tabular batches; it is done once here instead of in each epoch. A row is
sample_id uint64, label float32, F ids int32, D dense float32 at fixed offsets, padded to 8 bytes, little endian.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlewheel.errors import StorageError

if TYPE_CHECKING:
    from paddlewheel.data.features import Inputs

LAYOUT_VERSION = 1
LAYOUT_METADATA = b"paddlewheel.layout"
ROW_COLUMN = "row"
ROW_GROUP_ROWS = 65_536


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

    The arrays are read-only. Gather `rows_BW[indices]` once and cut it with `split_rows`.
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


def write_packed(path: Path, sample_ids_B: np.ndarray, labels_B: np.ndarray, inputs: Inputs) -> Layout:
    """Write B rows to a local file; returns their layout. Equal rows give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = len(sample_ids_B)
    layout = Layout(num_ids=inputs.ids_BF.shape[1], num_dense=inputs.dense_BD.shape[1])
    rows_BW = np.zeros((rows, layout.row_bytes), np.uint8)
    parts = split_rows(rows_BW, layout)
    parts.sample_ids_B[:] = sample_ids_B
    parts.labels_B[:] = labels_B
    parts.ids_BF[:] = inputs.ids_BF
    parts.dense_BD[:] = inputs.dense_BD
    kind = pa.binary(layout.row_bytes)
    flat: Any = rows_BW
    column = pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, pa.py_buffer(flat)])
    metadata: dict[bytes | str, bytes | str] = {LAYOUT_METADATA: json.dumps(layout.to_facts(), sort_keys=True).encode()}
    schema = pa.schema([pa.field(ROW_COLUMN, kind, nullable=False)], metadata=metadata)
    pq.write_table(
        pa.table([column], schema=schema),
        path,
        compression="lz4",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
        row_group_size=ROW_GROUP_ROWS,
    )
    return layout


def read_packed(path: Path) -> PackedRows:
    """The rows of a packed file, in the order they were written. Raises StorageError for a damaged or foreign file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=[ROW_COLUMN], page_checksum_verification=True)
        layout = _layout_of(table.schema, path)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged or not a file of packed rows: {error}") from error
    column = table.column(ROW_COLUMN).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    rows_BW = np.zeros((0, layout.row_bytes), np.uint8)
    if len(column):
        start = column.offset * layout.row_bytes
        buffer: Any = column.buffers()[1]
        flat = np.frombuffer(buffer, np.uint8)[start : start + len(column) * layout.row_bytes]
        rows_BW = flat.reshape(len(column), layout.row_bytes)
    return split_rows(rows_BW, layout)


def _layout_of(schema: Any, path: Path) -> Layout:
    facts = json.loads(schema.metadata[LAYOUT_METADATA])
    if facts["version"] != LAYOUT_VERSION:
        raise StorageError(f"{path} has packed rows of layout {facts['version']}, this program reads {LAYOUT_VERSION}")
    layout = Layout(num_ids=facts["num_ids"], num_dense=facts["num_dense"])
    if schema.field(ROW_COLUMN).type.byte_width != layout.row_bytes:
        raise ValueError(f"rows have {schema.field(ROW_COLUMN).type.byte_width} bytes, not {layout.row_bytes}")
    return layout
