"""Export and Paddle Inference, with a real Paddle and tiny networks of the test's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from paddlewheel import export
from paddlewheel.data.encoding.fitted import FittedFeatures
from paddlewheel.data.features import fit
from paddlewheel.errors import DataError, StorageError
from paddlewheel.export import Bundle, load_bundle, open_predictor, save_network, trained_probabilities
from paddlewheel.manifest import Manifest, publish_file, publish_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.signature import describe_signature
from paddlewheel.storage.local import LocalStore

ROWS = pl.DataFrame(
    {
        "carrier": ["UA", "AA", "UA", None, "HA", "B6"] * 20,
        "distance": [float(100 + 37 * number % 900) for number in range(120)],
    }
)


def build_network(id_sizes: tuple[int, ...], num_dense: int, seed: int = 1) -> Any:
    """Embeddings and numbers into one layer; the offsets are a buffer that is not saved, as in a wide network."""
    paddle = export.import_paddle()

    class Network(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            offsets = np.concatenate([[0], np.cumsum(id_sizes)[:-1]]) if id_sizes else np.zeros(0)
            self.register_buffer("offsets", paddle.to_tensor(offsets.astype("int32")), persistable=False)
            self.embedding = paddle.nn.Embedding(max(1, sum(id_sizes)), 3)
            self.dropout = paddle.nn.Dropout(0.5)
            self.linear = paddle.nn.Linear(3 * len(id_sizes) + num_dense, 1)

        def forward(self, ids_BF: Any, dense_BD: Any) -> Any:
            parts = [self.embedding(ids_BF + self.offsets).flatten(1)] if id_sizes else []
            parts += [dense_BD] if num_dense else []
            return self.linear(self.dropout(paddle.concat(parts, 1))).squeeze(-1)

    paddle.seed(seed)
    with paddle.utils.unique_name.guard():
        network = Network()
    network.eval()
    return network


def draw_inputs(id_sizes: tuple[int, ...], num_dense: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    ids = [generator.integers(0, size, rows) for size in id_sizes]
    ids_BF = np.stack(ids, axis=1).astype(np.int32) if ids else np.zeros((rows, 0), np.int32)
    return ids_BF, generator.normal(size=(rows, num_dense)).astype(np.float32)


@pytest.mark.parametrize(("id_sizes", "num_dense"), [((5, 7), 3), ((5, 7), 0), ((), 3)])
def test_exported_network_says_what_the_layer_says_when_inputs_are_of_both_kinds_or_one(
    tmp_path: Path, id_sizes: tuple[int, ...], num_dense: int
) -> None:
    network = build_network(id_sizes, num_dense)
    save_network(network, tmp_path, num_ids=len(id_sizes), num_dense=num_dense)
    predictor = open_predictor(tmp_path / "network.json", tmp_path / "network.pdiparams")
    bundle = Bundle(features=FittedFeatures(features=(), column_types={}), signature={}, predictor=predictor)
    ids_BF, dense_BD = draw_inputs(id_sizes, num_dense, 5000)  # more than one batch
    served = bundle.predict_inputs(ids_BF, dense_BD)
    assert served.dtype == np.float64
    np.testing.assert_allclose(served, trained_probabilities(network, ids_BF, dense_BD), atol=1e-6, rtol=0)
    assert 0 < served.min() < served.max() < 1
    np.testing.assert_allclose(bundle.predict_inputs(ids_BF[4990:], dense_BD[4990:]), served[4990:], atol=1e-6, rtol=0)


def test_exported_bytes_are_the_same_when_a_process_exports_again(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        save_network(build_network((5, 7), 3), folder, num_ids=2, num_dense=3)
    for name in ("network.json", "network.pdiparams"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalStore, Any, FittedFeatures]:
    """A store with a bundle of a tiny network on fitted features."""
    from paddlewheel.recipe_check import load_recipe

    store = LocalStore(tmp_path_factory.mktemp("bundled"))
    recipe = _recipe(load_recipe)
    features = fit(ROWS, recipe.features)
    network = build_network(features.id_sizes, len(features.dense_names))
    with store.staging() as staging:
        save_network(network, staging, num_ids=len(features.id_sizes), num_dense=len(features.dense_names))
        (staging / "features.json").write_bytes(features.to_json())
        (staging / "signature.json").write_text(json.dumps(describe_signature(recipe, features)))
        names = ("network.json", "network.pdiparams", "features.json", "signature.json")
        files = tuple(publish_file(store, f"runs/r1/bundle/{name}", staging / name) for name in names)
    publish_manifest(store, Manifest(kind="bundle", name="late", key="runs/r1/bundle", files=files))
    return store, network, features


def _recipe(load: Any) -> Recipe:
    rows = {
        "name": "flights",
        "path": "{partition}.csv.gz",
        "columns": [
            {"name": "carrier", "type": "string"},
            {"name": "distance", "type": "float64"},
            {"name": "delay", "type": "float64", "known": "after"},
        ],
    }
    tree = {
        "name": "late",
        "title": "Late",
        "data": {
            "landing": "landing",
            "label": {"column": "delay", "above": 15},
            "window": {"train_days": 1, "holdout_days": 1},
            "rows": rows,
        },
        "features": [
            {"name": "carrier", "kind": "category", "columns": ["carrier"]},
            {"name": "distance", "kind": "standard", "columns": ["distance"]},
        ],
        "model": {"name": "deepfm"},
        "training": {"epochs": 1, "global_batch": 8},
    }
    recipe: Recipe = load(tree)
    return recipe


def test_bundle_scores_raw_rows_as_features_and_layer_do(bundled: tuple[LocalStore, Any, FittedFeatures]) -> None:
    store, network, features = bundled
    bundle = load_bundle(store, "runs/r1/bundle/manifest.json")
    inputs = features.apply(ROWS)
    expected = trained_probabilities(network, inputs.ids_BF, inputs.dense_BD)
    np.testing.assert_allclose(bundle.predict(ROWS), expected, atol=1e-6, rtol=0)
    np.testing.assert_allclose(bundle.predict(ROWS.reverse()), expected[::-1], atol=1e-6, rtol=0)
    assert bundle.predict(ROWS.head(0)).shape == (0,)
    texts = ROWS.select(pl.col("carrier"), pl.col("distance").cast(pl.String))  # as read from a CSV
    np.testing.assert_allclose(bundle.predict(texts), expected, atol=1e-6, rtol=0)
    assert load_bundle(store, store.uri("runs/r1/bundle/manifest.json")).signature == bundle.signature


def test_signature_tells_columns_types_and_the_question(bundled: tuple[LocalStore, Any, FittedFeatures]) -> None:
    store, _, _ = bundled
    signature = json.loads(store.read("runs/r1/bundle/signature.json"))
    assert signature["columns"] == [
        {"name": "carrier", "type": "string"},
        {"name": "distance", "type": "float64"},
    ]
    assert signature["output"]["meaning"] == "probability that delay is above 15"
    assert signature["network"]["ids"] == {"type": "int32", "names": ["carrier"], "sizes": [5]}


def test_error_names_every_column_when_rows_do_not_fit(bundled: tuple[LocalStore, Any, FittedFeatures]) -> None:
    bundle = load_bundle(bundled[0], "runs/r1/bundle/manifest.json")
    with pytest.raises(DataError, match=r"column 'carrier' \(string\) is missing.*'far' is not a finite number"):
        bundle.predict(pl.DataFrame({"distance": ["100", "far"]}))


def test_damaged_bundle_is_not_loaded(bundled: tuple[LocalStore, Any, FittedFeatures], tmp_path: Path) -> None:
    source, _, _ = bundled
    store = LocalStore(tmp_path / "copy")
    for stat in source.list("runs/r1"):
        store.publish(stat.key, source.read(stat.key))
    weights = store.local_path("runs/r1/bundle/network.pdiparams")
    raw = bytearray(weights.read_bytes())
    raw[-3] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(raw)
    with pytest.raises(StorageError, match=r"network\.pdiparams has the digest"):
        load_bundle(store, "runs/r1/bundle/manifest.json")
    with pytest.raises(StorageError, match="is missing; a bundle or a model is needed"):
        load_bundle(store, "runs/r2/bundle/manifest.json")


def test_import_and_export_write_nothing_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_network(build_network((5,), 2), tmp_path, num_ids=1, num_dense=2)
    open_predictor(tmp_path / "network.json", tmp_path / "network.pdiparams")
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
