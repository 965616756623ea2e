"""Packed rows: what is written is read back, batch by batch."""

from __future__ import annotations

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlewheel.data.encoding.fitted import Inputs
from paddlewheel.data.features import fit_features, load_features
from paddlewheel.data.packed import Compression, Layout, PackedWriter, iter_packed, read_packed, write_packed
from paddlewheel.data.preprocess import plan_batches, preprocess
from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.manifest import Manifest, read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_data import Feature
from paddlewheel.storage.local import LocalStore

from .conftest import World, make_recipe
from .every_kind import EVERY_KIND, draw_rows
from .shards_by_hand import publish_shards, recipe_of, samples

DAY = "2013-10-31"


def write(
    path: Path, rows: int, num_ids: int, num_dense: int, compression: Compression = "lz4"
) -> tuple[np.ndarray, np.ndarray, Inputs]:
    draw = np.random.default_rng(7)
    sample_ids = draw.integers(0, 2**64, rows, dtype=np.uint64)
    labels = draw.integers(0, 2, rows).astype(np.float32)
    inputs = Inputs(
        ids_BF=draw.integers(0, 2**31, (rows, num_ids), dtype=np.int32),
        dense_BD=draw.standard_normal((rows, num_dense), dtype=np.float32),
    )
    write_packed(path, sample_ids, labels, inputs, compression=compression)
    return sample_ids, labels, inputs


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
@pytest.mark.parametrize(
    ("rows", "num_ids", "num_dense"), [(0, 3, 2), (1, 0, 0), (5, 3, 0), (5, 0, 4), (70_000, 10, 26)]
)
def test_rows_come_back_when_written(
    tmp_path: Path, rows: int, num_ids: int, num_dense: int, compression: Compression
) -> None:
    sample_ids, labels, inputs = write(tmp_path / "p", rows, num_ids, num_dense, compression)
    if rows:
        told = pq.ParquetFile(tmp_path / "p").metadata.row_group(0).column(0).compression
        assert told == {"lz4": "LZ4", "zstd": "ZSTD", "none": "UNCOMPRESSED"}[compression]
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


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 9000), max_size=4))
def test_bytes_depend_on_the_rows_alone_when_they_come_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paddlewheel.data.packed.ROW_GROUP_ROWS", 2000)
        sample_ids, labels, inputs = write(folder / "whole", 9000, 3, 2)
        with PackedWriter(folder / "pieces", Layout(num_ids=3, num_dense=2)) as writer:
            for start, end in itertools.pairwise([0, *sorted(cuts), 9000]):
                piece = Inputs(ids_BF=inputs.ids_BF[start:end], dense_BD=inputs.dense_BD[start:end])
                writer.add(sample_ids[start:end], labels[start:end], piece)
    assert (folder / "pieces").read_bytes() == (folder / "whole").read_bytes()
    assert [len(rows) for rows in iter_packed(folder / "whole")] == [2000, 2000, 2000, 2000, 1000]


def test_row_groups_are_of_64_mib_at_the_most_when_rows_are_wide() -> None:
    assert Layout(num_ids=26, num_dense=13).row_group_rows == 65_536
    assert Layout(num_ids=65_536, num_dense=0).row_group_rows == 255  # 12 + 4 * 65,536 bytes, to a multiple of 8


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


def publish_nights(store: LocalStore, *, drift: int = 0) -> tuple[str, str]:
    """Shards of two nights, one day apart: four days each, two shards a day, of 300 and of 0 rows."""
    days = {}
    for number in range(5):
        frame = samples(draw_rows(300, seed=number + drift), 1000 * number)
        days[f"2013-10-{27 + number}"] = [frame, frame.clear()]
    first, second = dict(list(days.items())[:4]), dict(list(days.items())[1:])
    return (
        publish_shards(store, first, holdout=["2013-10-30"], night="first"),
        publish_shards(store, second, holdout=["2013-10-31"], night="second"),
    )


def pack(store: LocalStore, recipe: Recipe, shards: str) -> tuple[Manifest, list[Manifest]]:
    """The manifests of the features and of the packed batches."""
    features = fit_features(recipe, shards, store=store)
    batches = plan_batches(recipe, shards, store=store)
    packed = [preprocess(recipe, shards, features, batch, store=store) for batch in batches]
    return read_manifest(store, features), [read_manifest(store, uri) for uri in packed]


def files_of(store: LocalStore, part: str) -> dict[str, int]:
    """Files of all datasets of one part, with their modification times."""
    found = [stat.key for stat in store.list(f"datasets/mini.{part}")]
    return {key: (store.folder / key).stat().st_mtime_ns for key in found}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


@pytest.mark.parametrize(("max_batches", "sizes"), [(1, [8]), (3, [3, 2, 3]), (8, [1] * 8), (20, [1] * 8)])
def test_each_shard_is_in_one_batch_when_planned(store: LocalStore, max_batches: int, sizes: list[int]) -> None:
    first, _ = publish_nights(store)
    _, packed = pack(store, recipe_of(data__max_batches=max_batches), first)
    assert [len(manifest.files) for manifest in packed] == sizes
    assert [manifest.facts["batch"] for manifest in packed] == list(range(len(sizes)))
    told = [(file.facts["shard_key"], file.facts["role"], file.rows) for manifest in packed for file in manifest.files]
    assert told == [(file.key, file.facts["role"], file.rows) for file in read_manifest(store, first).files]


def test_packed_rows_are_the_features_of_the_samples_when_preprocessed(store: LocalStore) -> None:
    first, _ = publish_nights(store)
    features, packed = pack(store, recipe_of(), first)
    fitted = load_features(store, store.uri(f"{features.key}/manifest.json"))
    assert features.facts["rows"] == 900
    for file in (file for manifest in packed for file in manifest.files):
        rows = read_packed(store.local_path(file.key))
        frame = pl.read_parquet(store.local_path(file.facts["shard_key"]))
        expected = fitted.apply(frame)
        np.testing.assert_array_equal(rows.sample_ids_B, frame["sample_id"].to_numpy())
        np.testing.assert_array_equal(rows.labels_B, frame["label"].to_numpy())
        np.testing.assert_array_equal(rows.ids_BF, expected.ids_BF)
        np.testing.assert_array_equal(rows.dense_BD, expected.dense_BD)
        assert len(rows) == file.rows


def test_recipe_error_when_there_is_no_such_batch(store: LocalStore) -> None:
    first, _ = publish_nights(store)
    features = fit_features(recipe_of(), first, store=store)
    with pytest.raises(RecipeError, match="there is no batch 4: these shards have the batches 0 to 3"):
        preprocess(recipe_of(), first, features, 4, store=store)


def test_neither_features_nor_rows_are_made_again_when_only_the_model_differs(store: LocalStore) -> None:
    first, _ = publish_nights(store)
    _, packed = pack(store, recipe_of(), first)
    before = files_of(store, "fitted"), files_of(store, "rows")
    other = recipe_of(model__params={"embedding": 4}, training__epochs=9, data__max_batches=2)
    _, again = pack(store, other, first)
    assert (files_of(store, "fitted"), files_of(store, "rows")) == before
    assert [file.digest for one in again for file in one.files] == [file.digest for one in packed for file in one.files]


def test_other_features_or_compression_are_packed_anew(store: LocalStore) -> None:
    first, _ = publish_nights(store)
    pack(store, recipe_of(EVERY_KIND[:3]), first)
    pack(store, recipe_of(EVERY_KIND[:3], data__compression="zstd"), first)
    assert len({key.rpartition("/")[0] for key in files_of(store, "fitted")}) == 1
    assert (
        len({key.rpartition("/")[0] for key in files_of(store, "rows")}) == 10
    )  # four days and the empty shard, twice
    pack(store, recipe_of(EVERY_KIND[:4]), first)
    assert len({key.rpartition("/")[0] for key in files_of(store, "fitted")}) == 2


def test_only_the_new_day_is_packed_when_the_next_night_has_the_same_features(store: LocalStore) -> None:
    first, second = publish_nights(store)
    nothing_to_learn = recipe_of([one for one in EVERY_KIND if one.kind in ("hash", "cross", "words", "bytes")])
    pack(store, nothing_to_learn, first)
    before = files_of(store, "rows")
    _, packed = pack(store, nothing_to_learn, second)
    made = {key: time for key, time in files_of(store, "rows").items() if key not in before}
    assert {key: time for key, time in files_of(store, "rows").items() if key in before} == before
    assert sorted(key.rpartition("/")[2] for key in made) == ["manifest.json", "rows.parquet"]
    roles = {file.facts["day"]: file.facts["role"] for manifest in packed for file in manifest.files}
    assert roles["2013-10-30"] == "train"


def test_features_are_found_again_when_the_same_rows_are_cut_into_other_files(store: LocalStore) -> None:
    frame = samples(draw_rows(500, seed=3), 0)
    whole = publish_shards(store, {"2013-10-01": [frame], "2013-10-02": [frame]}, holdout=["2013-10-02"], night="a")
    halves = [frame[250:], frame[:250]]
    split = publish_shards(store, {"2013-10-03": halves, "2013-10-04": [frame]}, holdout=["2013-10-04"], night="b")
    digests = [pack(store, recipe_of(), uri)[0].files[0].digest for uri in (whole, split)]
    assert digests[0] == digests[1]


def test_error_names_the_part_and_its_removal_mends_it_when_a_packed_file_is_damaged(store: LocalStore) -> None:
    first, _ = publish_nights(store)
    _, packed = pack(store, recipe_of(), first)
    key = packed[1].files[0].key
    path = store.folder / key
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    folder = path.parent
    with pytest.raises(StorageError, match=f"has the digest .*remove {store.uri(key.rpartition('/')[0])} so that"):
        pack(store, recipe_of(), first)
    shutil.rmtree(folder)
    _, again = pack(store, recipe_of(), first)
    assert again == packed


def test_workers_that_make_the_same_at_once_make_the_same(store: LocalStore) -> None:
    first, _ = publish_nights(store)
    with ThreadPoolExecutor(4) as pool:
        features = set(pool.map(lambda _: fit_features(recipe_of(), first, store=store), range(4)))
        (uri,) = features
        batches = [0, 1, 2, 3, 3, 2, 1, 0]
        packed = list(pool.map(lambda batch: preprocess(recipe_of(), first, uri, batch, store=store), batches))
    assert packed[:4] == packed[:3:-1]
    assert len({key.rpartition("/")[0] for key in files_of(store, "rows")}) == 5  # four days, and the empty shard once


def test_recipe_error_when_the_ids_of_all_features_pass_what_a_table_takes(store: LocalStore) -> None:
    first, _ = publish_nights(store)
    wide = Feature(name="wide", kind="words", columns=("s",), length=5, buckets=2**29)
    with pytest.raises(RecipeError, match=r"2,684,354,565 ids together.*'wide' has 2,684,354,565 of them"):
        fit_features(recipe_of([wide]), first, store=store)


def test_the_whole_chain_packs_what_it_sampled(world: World) -> None:
    world.write_days("2013-10-28", 4)
    made = world.chain(make_recipe(), DAY)
    packed = [file for uri in made["packed"] for file in world.manifest(uri).files]
    shards = world.manifest(made["shard"]).files
    assert [(file.facts["shard_key"], file.rows) for file in packed] == [(file.key, file.rows) for file in shards]
