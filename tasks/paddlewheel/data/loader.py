"""Batches of a run: all packed training rows in memory, a global batch gathered by index, a rank's slice of it.

Rejected: Paddle's DataLoader. Its workers' transport costs more than the gather of packed rows, and its distributed
sampler pads, so that some samples would be trained on twice.
Axes: B rows, F id columns, D numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paddlewheel.data.order import batch_indices, kept_aside, rank_slice, steps_per_epoch
from paddlewheel.data.packed import Layout, PackedRows, iter_packed, split_rows
from paddlewheel.errors import DataError
from paddlewheel.manifest import Manifest, Shard, read_manifest, verify
from paddlewheel.storage import Store


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A rank's slice of a global batch of `global_rows` rows; numpy arrays, or Paddle tensors after `to_tensors`."""

    sample_ids_B: Any
    labels_B: Any
    ids_BF: Any
    dense_BD: Any
    global_rows: int

    def __len__(self) -> int:
        return int(self.sample_ids_B.shape[0])


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Packed rows of a training in memory, and the order in which they are visited.

    train_N, aside_V: places in `rows_NW` of the rows that are trained on, and of those that are kept for validation;
    None: all of them, and none.
    """

    rows_NW: np.ndarray
    layout: Layout
    seed: int
    global_batch: int
    train_N: np.ndarray | None = None
    aside_V: np.ndarray | None = None

    @property
    def num_samples(self) -> int:
        return len(self.rows_NW) if self.train_N is None else len(self.train_N)

    @property
    def num_aside(self) -> int:
        return 0 if self.aside_V is None else len(self.aside_V)

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.num_samples, self.global_batch)

    def batch(
        self, epoch: int, step: int, rank: int, world_size: int, *, shares: Sequence[float] | None = None
    ) -> Batch:
        """The rank's slice of the `step`-th (from 0) global batch of `epoch` (from 1), numpy; it may be empty.

        shares: a weight for each rank; None: equal.
        """
        indices_B = batch_indices(self.seed, epoch, step, num_samples=self.num_samples, global_batch=self.global_batch)
        mine = indices_B[rank_slice(len(indices_B), rank, world_size, shares)]
        return self._gather(mine if self.train_N is None else self.train_N[mine], len(indices_B))

    def aside(self, start: int, stop: int) -> Batch:
        """Rows `start` to `stop` of those that are kept for validation, in the order of the data, numpy."""
        if self.aside_V is None:
            raise IndexError("no rows are kept aside")
        return self._gather(self.aside_V[start:stop], len(self.aside_V))

    def _gather(self, places_B: np.ndarray, global_rows: int) -> Batch:
        parts = split_rows(self.rows_NW[places_B], self.layout)
        return Batch(
            sample_ids_B=parts.sample_ids_B,
            labels_B=parts.labels_B,
            ids_BF=parts.ids_BF,
            dense_BD=parts.dense_BD,
            global_rows=global_rows,
        )


def to_tensors(batch: Batch) -> Batch:
    """The same batch as Paddle tensors on the current device (sample ids stay numpy: Paddle has no uint64)."""
    import paddle

    return Batch(
        sample_ids_B=batch.sample_ids_B,
        labels_B=paddle.to_tensor(np.ascontiguousarray(batch.labels_B)),
        ids_BF=paddle.to_tensor(np.ascontiguousarray(batch.ids_BF)),
        dense_BD=paddle.to_tensor(np.ascontiguousarray(batch.dense_BD)),
        global_rows=batch.global_rows,
    )


def load_training_rows(store: Store, packed: Sequence[Manifest]) -> tuple[np.ndarray, Layout]:
    """Rows of every training file of the packed manifests, uint8[N, W], in the manifests' order, and their layout.

    No more is held than these and one row group. Raises as `iter_training_rows`.
    """
    told = sum(shard.rows or 0 for shard in training_files(packed))
    rows_NW, layout, filled = np.zeros((0, 0), np.uint8), None, 0
    for part in iter_training_rows(store, packed):
        if layout is None:
            rows_NW, layout = np.empty((told, part.layout.row_bytes), np.uint8), part.layout
        rows_NW[filled : filled + len(part)] = part.rows_BW[: told - filled]
        filled += len(part)
    if layout is None or filled != told:
        raise DataError(f"the packed files hold {filled} training rows, their manifests tell of {told}")
    return rows_NW, layout


def iter_training_rows(store: Store, packed: Sequence[Manifest]) -> Iterator[PackedRows]:
    """The training rows of the packed manifests in their order, a row group at a time.

    Raises StorageError for a damaged file, DataError where there are no rows or files of different layouts.
    """
    files, layout = training_files(packed), None
    if not sum(shard.rows or 0 for shard in files):
        raise DataError("the packed data hold no training rows; widen data.window, or look at the shard step's counts")
    for shard in files:
        for part in iter_packed(store.local_path(shard.key)):
            layout = layout or part.layout
            if part.layout != layout:
                raise DataError("packed files of different layouts in one run; run preprocess again for all of them")
            yield part


def open_loader(store: Store, run: Manifest, *, seed: int, global_batch: int, aside: float = 0.0) -> Loader:
    """The loader of a run: the packed manifests among its inputs, their digests verified.

    aside: the part of the rows that is kept for validation (`order.kept_aside`).
    """
    packed = [
        manifest for manifest in (read_manifest(store, one.key) for one in run.inputs) if manifest.kind == "packed"
    ]
    for manifest in packed:
        verify(store, manifest)
    rows_NW, layout = load_training_rows(store, packed)
    loader = Loader(rows_NW=rows_NW, layout=layout, seed=seed, global_batch=global_batch)
    if not aside:
        return loader
    aside_N = kept_aside(seed, split_rows(rows_NW, layout).sample_ids_B, aside)
    return replace(loader, train_N=np.flatnonzero(~aside_N), aside_V=np.flatnonzero(aside_N))


def training_files(packed: Iterable[Manifest]) -> list[Shard]:
    """Files of role train, in the manifests' order."""
    return [shard for manifest in packed for shard in manifest.files if shard.facts.get("role") == "train"]
