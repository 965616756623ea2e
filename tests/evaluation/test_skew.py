"""Raw rows through an exported bundle give, bit for bit, the inputs that training saw: 10,000 rows, every kind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard

from paddlewheel import export
from paddlewheel.data.features import fit_features, load_features
from paddlewheel.data.packed import read_packed
from paddlewheel.data.preprocess import plan_batches, preprocess
from paddlewheel.errors import DataError
from paddlewheel.export import Bundle, load_bundle, save_network
from paddlewheel.manifest import Manifest, publish_file, publish_manifest, read_manifest
from paddlewheel.predict import read_rows
from paddlewheel.signature import describe_signature
from paddlewheel.storage.local import LocalStore

from ..data.every_kind import draw_rows
from ..data.shards_by_hand import publish_shards, recipe_of, samples

DAYS = ["2013-10-28", "2013-10-29", "2013-10-30", "2013-10-31"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, pl.DataFrame, np.ndarray, np.ndarray]:
    """A bundle on features of every kind; 10,000 raw rows; their packed ids_BF and dense_BD, in the rows' order."""
    store, recipe = LocalStore(tmp_path_factory.mktemp("served")), recipe_of(data__max_batches=3)
    frames = {day: [samples(draw_rows(2500, seed=number), 2500 * number)] for number, day in enumerate(DAYS)}
    shards = publish_shards(store, frames, holdout=["2013-10-31"])
    features_uri = fit_features(recipe, shards, store=store)
    files = [
        file
        for batch in plan_batches(recipe, shards, store=store)
        for file in read_manifest(store, preprocess(recipe, shards, features_uri, batch, store=store)).files
    ]
    packed = [read_packed(store.local_path(file.key)) for file in files]
    assert np.concatenate([rows.sample_ids_B for rows in packed]).tolist() == list(range(10_000))
    features = load_features(store, features_uri)
    with store.staging() as staging:
        network = _network(features.id_sizes, len(features.dense_names))
        save_network(network, staging, num_ids=len(features.id_sizes), num_dense=len(features.dense_names))
        (staging / "features.json").write_bytes(features.to_json())
        (staging / "signature.json").write_text(json.dumps(describe_signature(recipe, features)))
        names = ("network.json", "network.pdiparams", "features.json", "signature.json")
        published = tuple(publish_file(store, f"runs/r/bundle/{name}", staging / name) for name in names)
    publish_manifest(store, Manifest(kind="bundle", name="mini", key="runs/r/bundle", files=published))
    bundle = load_bundle(store, "runs/r/bundle/manifest.json")
    raw = pl.concat(frame for frames_of_day in frames.values() for frame in frames_of_day)
    ids, dense = [rows.ids_BF for rows in packed], [rows.dense_BD for rows in packed]
    return bundle, raw, np.concatenate(ids), np.concatenate(dense)


def _network(id_sizes: tuple[int, ...], num_dense: int) -> Any:
    """A network that reads all inputs and does little with them."""
    paddle = export.import_paddle()

    class Network(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = paddle.nn.Linear(len(id_sizes) + num_dense, 1)

        def forward(self, ids_BF: Any, dense_BD: Any) -> Any:
            return self.linear(paddle.concat([ids_BF.astype("float32") * 1e-9, dense_BD], 1)).squeeze(-1)

    return Network()


def _write(raw: pl.DataFrame, path: Path) -> None:
    """Raw rows as somebody else's program writes them."""
    stem = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    frame = raw.drop("picture", "label")
    if stem.suffix == ".parquet":
        frame.write_parquet(stem)
    elif stem.suffix == ".jsonl":
        frame.write_ndjson(stem)
    else:
        frame.write_csv(stem, separator="\t" if stem.suffix == ".tsv" else ",")
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(stem.read_bytes()))
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.compress(stem.read_bytes()))


@pytest.mark.parametrize(
    "name", ["r.parquet", "r.csv", "r.csv.gz", "r.tsv.zst", "r.jsonl", "r.jsonl.gz", "r.jsonl.zst"]
)
def test_inputs_are_the_bits_that_were_packed_whatever_file_the_rows_come_in(
    served: tuple[Bundle, pl.DataFrame, np.ndarray, np.ndarray], tmp_path: Path, name: str
) -> None:
    bundle, raw, ids_BF, dense_BD = served
    _write(raw, tmp_path / name)
    rows = read_rows(tmp_path / name)
    inputs = bundle.features.apply(rows)
    assert (inputs.ids_BF.dtype, inputs.dense_BD.dtype) == (np.int32, np.float32)
    differ = np.argwhere(inputs.ids_BF != ids_BF)
    assert not len(differ), [(bundle.features.id_names[column], raw.row(int(row))) for row, column in differ[:3]]
    assert inputs.ids_BF.tobytes() == ids_BF.tobytes()
    assert inputs.dense_BD.tobytes() == dense_BD.tobytes()
    np.testing.assert_array_equal(bundle.predict(rows), bundle.predict_inputs(ids_BF, dense_BD))


def test_inputs_are_the_same_bits_when_rows_are_asked_for_alone_or_shuffled(
    served: tuple[Bundle, pl.DataFrame, np.ndarray, np.ndarray],
) -> None:
    bundle, raw, ids_BF, dense_BD = served
    order = np.random.default_rng(1).permutation(len(raw))
    shuffled = bundle.features.apply(raw[order])
    assert shuffled.ids_BF.tobytes() == ids_BF[order].tobytes()
    assert shuffled.dense_BD.tobytes() == dense_BD[order].tobytes()
    for row in order[:25]:
        alone = bundle.features.apply(raw[int(row) : int(row) + 1])
        assert alone.ids_BF.tobytes() == ids_BF[row : row + 1].tobytes()
        assert alone.dense_BD.tobytes() == dense_BD[row : row + 1].tobytes()


def test_every_input_takes_more_than_one_value_over_these_rows(
    served: tuple[Bundle, pl.DataFrame, np.ndarray, np.ndarray],
) -> None:
    bundle, _, ids_BF, dense_BD = served
    assert (ids_BF.shape[1], dense_BD.shape[1]) == (len(bundle.features.id_names), len(bundle.features.dense_names))
    assert (ids_BF.min(axis=0) < ids_BF.max(axis=0)).all()
    assert (dense_BD.min(axis=0) < dense_BD.max(axis=0)).all()


def test_error_says_where_columns_come_from_when_rows_were_not_joined(
    served: tuple[Bundle, pl.DataFrame, np.ndarray, np.ndarray],
) -> None:
    bundle, raw, _, _ = served
    join = {"source": "weather", "kind": "asof", "keys": {"s": "station"}, "columns": {"x": "wind", "d": "day"}}
    joined = Bundle(features=bundle.features, signature={**bundle.signature, "joins": [join]}, predictor=None)
    with pytest.raises(DataError) as told:
        joined.predict(raw.drop("x"))
    assert str(told.value) == (
        "the rows do not fit the model's features: column 'x' (float64) is missing. Join to the rows first, as the "
        "shards have it: x (wind) of the source 'weather', the last row up to the moment of s = station"
    )
    with pytest.raises(DataError, match=r"column 's' \(string\) is missing$"):
        bundle.predict(raw.drop("s"))


@pytest.mark.parametrize("name", ["x[1].csv", "x*.tsv", "x?.jsonl", "x[1].parquet", "x[1].csv.gz", "x*.jsonl.zst"])
def test_a_file_is_read_alone_when_its_name_could_mean_others(tmp_path: Path, name: str) -> None:
    suffix = name.partition(".")[2]
    for path, value in ((tmp_path / name, 1), (tmp_path / f"x1.{suffix}", 2)):
        frame = pl.DataFrame({"a": [value]})
        if suffix == "parquet":
            frame.write_parquet(path)
            continue
        raw = frame.write_ndjson().encode() if "json" in suffix else frame.write_csv().encode()
        pack = gzip.compress if suffix.endswith("gz") else zstandard.compress if suffix.endswith("zst") else bytes
        path.write_bytes(pack(raw))
    assert read_rows(tmp_path / name)["a"].cast(pl.Int64).to_list() == [1]


def test_a_folder_is_no_file_of_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it is a folder; name a file"):
        read_rows(tmp_path)
