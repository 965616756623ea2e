"""Packed rows: what is written is read back, batch by batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from paddlewheel.data.features import load_features
from paddlewheel.data.fitted import Inputs
from paddlewheel.data.packed import read_packed, write_packed
from paddlewheel.data.preprocess import plan_batches, preprocess
from paddlewheel.errors import RecipeError, StorageError

from .conftest import World, make_recipe

DAY = "2013-10-31"


def write(path: Path, rows: int, num_ids: int, num_dense: int) -> tuple[np.ndarray, np.ndarray, Inputs]:
    draw = np.random.default_rng(7)
    sample_ids = draw.integers(0, 2**64, rows, dtype=np.uint64)
    labels = draw.integers(0, 2, rows).astype(np.float32)
    inputs = Inputs(
        ids_BF=draw.integers(0, 2**31, (rows, num_ids), dtype=np.int32),
        dense_BD=draw.standard_normal((rows, num_dense), dtype=np.float32),
    )
    write_packed(path, sample_ids, labels, inputs)
    return sample_ids, labels, inputs


@pytest.mark.parametrize(
    ("rows", "num_ids", "num_dense"), [(0, 3, 2), (1, 0, 0), (5, 3, 0), (5, 0, 4), (70_000, 10, 26)]
)
def test_rows_come_back_when_written(tmp_path: Path, rows: int, num_ids: int, num_dense: int) -> None:
    sample_ids, labels, inputs = write(tmp_path / "p", rows, num_ids, num_dense)
    packed = read_packed(tmp_path / "p")
    assert len(packed) == rows
    np.testing.assert_array_equal(packed.sample_ids_B, sample_ids)
    np.testing.assert_array_equal(packed.labels_B, labels)
    np.testing.assert_array_equal(packed.ids_BF, inputs.ids_BF)
    np.testing.assert_array_equal(packed.dense_BD, inputs.dense_BD)
    assert [array.dtype for array in (packed.sample_ids_B, packed.labels_B, packed.ids_BF, packed.dense_BD)] == [
        np.uint64, np.float32, np.int32, np.float32,
    ]  # fmt: skip


def test_row_lies_at_the_offsets_of_the_layout_when_read_by_another_program(tmp_path: Path) -> None:
    inputs = Inputs(ids_BF=np.array([[3, 4]], np.int32), dense_BD=np.array([[0.5]], np.float32))
    write_packed(tmp_path / "p", np.array([2**63 + 5], np.uint64), np.array([1.0]), inputs)
    row = pq.read_table(tmp_path / "p")["row"][0].as_py()
    assert row == (2**63 + 5).to_bytes(8, "little") + bytes.fromhex("0000803f 03000000 04000000 0000003f")
    assert b'"row_bytes": 24' in pq.read_schema(tmp_path / "p").metadata[b"paddlewheel.layout"]


def test_columns_are_views_of_the_rows_when_read(tmp_path: Path) -> None:
    write(tmp_path / "p", 5, 3, 2)
    packed = read_packed(tmp_path / "p")
    for part in (packed.sample_ids_B, packed.labels_B, packed.ids_BF, packed.dense_BD):
        assert np.shares_memory(part, packed.rows_BW)


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_storage_error_when_a_packed_file_is_damaged(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "p"
    write(path, 2000, 3, 2)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-100])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        pl.DataFrame({"row": [1]}).write_parquet(path)
    with pytest.raises(StorageError, match=f"{path} is damaged or not a file of packed rows"):
        read_packed(path)


@pytest.mark.parametrize(("max_batches", "sizes"), [(1, [4]), (2, [2, 2]), (3, [2, 1, 1]), (4, [1] * 4), (9, [1] * 4)])
def test_each_shard_is_in_one_batch_when_planned(world: World, max_batches: int, sizes: list[int]) -> None:
    world.write_days("2013-10-28", 4)
    recipe = make_recipe(data__max_batches=max_batches)
    made = world.chain(recipe, DAY)
    manifests = [world.manifest(uri) for uri in made["packed"]]
    assert sorted(len(manifest.files) for manifest in manifests) == sorted(sizes)
    assert plan_batches(recipe, made["shard"], store=world.store) == list(range(len(sizes)))
    packed = [(file.facts["role"], file.facts["day"], file.rows) for one in manifests for file in one.files]
    shards = [(file.facts["role"], file.facts["day"], file.rows) for file in world.manifest(made["shard"]).files]
    assert sorted(packed) == sorted(shards)


def test_packed_rows_are_the_features_of_the_samples_when_preprocessed(world: World) -> None:
    world.write_days("2013-10-28", 4)
    made = world.chain(make_recipe(), DAY)
    features = load_features(world.store, made["features"])
    for uri in made["packed"]:
        for file in world.manifest(uri).files:
            packed = read_packed(world.store.local_path(file.key))
            frame = pl.read_parquet(world.store.local_path(file.facts["shard_key"]))
            expected = features.apply(frame)
            np.testing.assert_array_equal(packed.sample_ids_B, frame["sample_id"].to_numpy())
            np.testing.assert_array_equal(packed.labels_B, frame["label"].to_numpy())
            np.testing.assert_array_equal(packed.ids_BF, expected.ids_BF)
            np.testing.assert_array_equal(packed.dense_BD, expected.dense_BD)
            assert len(packed) == file.rows


def test_recipe_error_when_there_is_no_such_batch(world: World) -> None:
    world.write_days("2013-10-28", 4)
    made = world.chain(make_recipe(), DAY)
    with pytest.raises(RecipeError, match="there is no batch 4: these shards have the batches 0 to 3"):
        preprocess(make_recipe(), made["shard"], made["features"], 4, store=world.store)


def test_packed_files_are_the_same_when_only_resources_differ(world: World) -> None:
    world.write_days("2013-10-28", 4)
    digests = []
    for recipe in (make_recipe(), make_recipe(resources__ranks_per_node=2, training__epochs=9)):
        made = world.chain(recipe, DAY)
        manifests = [world.manifest(uri) for uri in (made["features"], *made["packed"])]
        digests.append([file.digest for manifest in manifests for file in manifest.files])
    assert digests[0] == digests[1]
