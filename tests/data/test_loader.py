"""Batches over packed files, real ones in a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paddlewheel.data.encoding.fitted import Inputs
from paddlewheel.data.loader import Loader, open_loader
from paddlewheel.data.packed import write_packed
from paddlewheel.errors import DataError, StorageError
from paddlewheel.manifest import Manifest, input_of, publish_file, publish_manifest
from paddlewheel.storage.local import LocalStore


def publish_packed(
    store: LocalStore, name: str, first_id: int, rows: int, *, role: str, width: int = 2, told: int | None = None
) -> str:
    """A packed manifest of `rows` rows (it tells of `told`) whose every value is told by their sample id."""
    ids_B = np.arange(first_id, first_id + rows, dtype=np.uint64)
    inputs = Inputs(
        ids_BF=np.stack([ids_B * (1 + column) for column in range(width)], 1).astype(np.int32),
        dense_BD=(ids_B[:, None] / 2).astype(np.float32),
    )
    with store.staging() as staging:
        write_packed(staging / "rows.parquet", ids_B, (ids_B % 2).astype(np.float32), inputs)
        key = f"datasets/x.packed/{name}"
        rows = rows if told is None else told
        shard = publish_file(store, f"{key}/rows.parquet", staging / "rows.parquet", rows=rows, facts={"role": role})
    return publish_manifest(store, Manifest(kind="packed", name="x", key=key, files=(shard,)))


def open_run(store: LocalStore, *packed: str, aside: float = 0.0) -> Loader:
    """A loader over a run of these packed manifests, global batches of 4."""
    inputs = tuple(input_of(store, one) for one in packed)
    run = Manifest(kind="run", name="x", key="runs/k", inputs=inputs)
    return open_loader(store, run, seed=3, global_batch=4, aside=aside)


def test_every_training_row_comes_whole_and_once_when_an_epoch_is_read_by_three_ranks(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    loader = open_run(
        store,
        publish_packed(store, "a", 0, 6, role="train"),
        publish_packed(store, "b", 100, 3, role="holdout"),
        publish_packed(store, "c", 6, 7, role="train"),
    )
    assert (loader.num_samples, loader.steps_per_epoch) == (13, 4)
    seen, sizes = [], []
    for step in range(4):
        for rank in range(3):
            batch = loader.batch(1, step, rank, 3)
            ids = batch.sample_ids_B.astype(np.int64)
            assert batch.labels_B.tolist() == (ids % 2).tolist()
            assert batch.ids_BF.tolist() == [[one, 2 * one] for one in ids]
            assert batch.dense_BD.tolist() == [[one / 2] for one in ids]
            seen += ids.tolist()
            sizes.append((len(batch), batch.global_rows))
    assert sorted(seen) == list(range(13))
    assert sizes[:3] == [(1, 4), (1, 4), (2, 4)]
    assert sizes[-3:] == [(0, 1), (0, 1), (1, 1)]


def test_rows_kept_aside_are_in_no_batch_and_keep_the_order_of_the_data(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    loader = open_run(store, publish_packed(store, "a", 0, 40, role="train"), aside=0.25)
    seen = []
    for step in range(loader.steps_per_epoch):
        for rank in range(2):
            seen += loader.batch(1, step, rank, 2, shares=(3, 1)).sample_ids_B.tolist()
    aside = loader.aside(0, loader.num_aside)
    assert (loader.num_samples, loader.num_aside) == (len(seen), len(aside)) == (40 - len(aside), len(aside))
    assert sorted([*seen, *aside.sample_ids_B.tolist()]) == list(range(40))
    assert aside.sample_ids_B.tolist() == sorted(aside.sample_ids_B.tolist())
    assert aside.dense_BD[:, 0].tolist() == [one / 2 for one in aside.sample_ids_B.tolist()]
    assert loader.aside(2, 5).sample_ids_B.tolist() == aside.sample_ids_B[2:5].tolist()
    assert [len(loader.batch(1, 0, rank, 2, shares=(3, 1))) for rank in range(2)] == [3, 1]


def test_no_training_rows_are_told_when_all_are_holdout(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(DataError, match="no training rows"):
        open_run(store, publish_packed(store, "a", 0, 6, role="holdout"))


def test_damaged_file_is_named_when_a_byte_has_flipped(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    uri = publish_packed(store, "a", 0, 600, role="train")
    path = tmp_path / "datasets/x.packed/a/rows.parquet"
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StorageError, match=r"a/rows\.parquet has the digest"):
        open_run(store, uri)


def test_rows_keep_their_order_when_they_lie_in_many_row_groups(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paddlewheel.data.packed.ROW_GROUP_ROWS", 7)
        loader = open_run(store, publish_packed(store, "a", 0, 50, role="train"))
    assert loader.rows_NW[:, 0].tolist() == list(range(50))


@pytest.mark.parametrize("told", [5, 7])
def test_rows_are_counted_against_the_manifest(tmp_path: Path, told: int) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(DataError, match=f"hold 6 training rows, their manifests tell of {told}"):
        open_run(store, publish_packed(store, "a", 0, 6, role="train", told=told))


def test_files_of_different_layouts_are_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    narrow, wide = (
        publish_packed(store, "a", 0, 6, role="train"),
        publish_packed(store, "b", 6, 6, role="train", width=3),
    )
    with pytest.raises(DataError, match="different layouts"):
        open_run(store, narrow, wide)
