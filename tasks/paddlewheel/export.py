"""The bundle: a trained network with its fitted features and a signature, and scoring of raw rows by it.

The exported network gives probabilities, runs through Paddle Inference, and needs no code of the model. Rejected:
serving by the training code, which would tie every published version to the code of the day it was trained.
"""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlewheel.errors import DataError, StorageError
from paddlewheel.lineage import nearest
from paddlewheel.manifest import (
    Manifest,
    code_digest,
    find_done,
    input_of,
    publish_file,
    publish_manifest,
    read_manifest,
    verify,
)
from paddlewheel.signature import SIGNATURE_VERSION, describe_missing_joins, describe_signature
from paddlewheel.storage import Store

if TYPE_CHECKING:
    import polars as pl

    from paddlewheel.data.encoding.fitted import FittedFeatures
    from paddlewheel.recipe import Recipe

BATCH_ROWS = 4096
NETWORK, WEIGHTS, FEATURES, SIGNATURE = "network.json", "network.pdiparams", "features.json", "signature.json"
# Paddle notes for each operator which layer made it and counts the process's exports in that: equal networks would not
# have equal bytes.
LAYER_NOTE = re.compile(rb'("D":"/)[^"]*("\},"N":"struct_name"\})')
log = logging.getLogger(__name__)


def export_bundle(recipe: Recipe, run_uri: str, *, store: Store) -> str:
    """Export a finished run's network for inference; the URI of the `bundle` manifest.

    Raises StorageError where the run has no result yet, CheckpointError where its weights do not fit the network.
    """
    run = read_manifest(store, run_uri)
    folder = f"{run.key}/bundle"
    if find_done(store, f"{folder}/manifest.json"):
        return store.uri(f"{folder}/manifest.json")
    features = read_fitted(store, nearest(store, run_uri, "features"))
    layer = build_trained(recipe, run, features, store)
    signature = describe_signature(recipe, features)
    with store.staging() as staging:
        save_network(layer, staging, num_ids=len(features.id_sizes), num_dense=len(features.dense_names))
        (staging / FEATURES).write_bytes(features.to_json())
        (staging / SIGNATURE).write_text(json.dumps(signature, sort_keys=True, indent=1) + "\n")
        files = tuple(
            publish_file(store, f"{folder}/{name}", staging / name) for name in (NETWORK, WEIGHTS, FEATURES, SIGNATURE)
        )
    log.info("export: %s, %d bytes", store.uri(folder), sum(file.bytes for file in files))
    manifest = Manifest(
        kind="bundle",
        name=recipe.name,
        key=folder,
        files=files,
        inputs=(input_of(store, run_uri), input_of(store, f"{run.key}/result.json")),
        recipe=recipe.digest,
        code=code_digest(__name__),
        facts={"signature": signature},
    )
    return publish_manifest(store, manifest)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A loaded bundle. Not for several threads at once: a Paddle predictor holds its inputs."""

    features: FittedFeatures
    signature: dict[str, Any]
    predictor: Any

    def predict(self, frame: pl.DataFrame) -> np.ndarray:
        """Probability of label 1 for each raw row, float64[B], in the rows' order.

        Raises DataError that tells every column that is missing or holds what is not of its type.
        """
        try:
            inputs = self.features.apply(frame)
        except DataError as error:
            if joined := describe_missing_joins(self.signature, frame.columns):
                raise DataError(f"{error}. {joined}") from error
            raise
        return self.predict_inputs(inputs.ids_BF, inputs.dense_BD)

    def predict_inputs(self, ids_BF: np.ndarray, dense_BD: np.ndarray) -> np.ndarray:
        """The same from model inputs, int32 and float32."""
        parts = [
            self._run(ids_BF[start : start + BATCH_ROWS], dense_BD[start : start + BATCH_ROWS])
            for start in range(0, len(ids_BF), BATCH_ROWS)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _run(self, ids_BF: np.ndarray, dense_BD: np.ndarray) -> np.ndarray:
        for name, array in (("ids", ids_BF), ("dense", dense_BD)):
            if array.shape[1]:
                self.predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(array))
        self.predictor.run()
        output: np.ndarray = self.predictor.get_output_handle(self.predictor.get_output_names()[0]).copy_to_cpu()
        return output


def load_bundle(store: Store, key_or_uri: str) -> Bundle:
    """The bundle of a `bundle` or `model` manifest, its files' digests verified, ready to predict on the CPU."""
    from paddlewheel.data.encoding.fitted import FittedFeatures

    key = store.key(key_or_uri) if "://" in key_or_uri or key_or_uri.startswith("/") else key_or_uri
    if store.stat(key) is None:
        raise StorageError(f"{store.uri(key)} is missing; a bundle or a model is needed")
    manifest = read_manifest(store, key)
    if manifest.kind not in ("bundle", "model"):
        raise StorageError(f"{store.uri(key)} is a manifest of kind {manifest.kind!r}; a bundle or a model is needed")
    verify(store, manifest)
    files = {shard.key.rpartition("/")[2]: shard.key for shard in manifest.files}
    missing = [name for name in (NETWORK, WEIGHTS, FEATURES, SIGNATURE) if name not in files]
    if missing:
        raise StorageError(f"{store.uri(key)} lists no {', '.join(missing)}; export the run again")
    signature = json.loads(store.read(files[SIGNATURE]))
    if signature["version"] != SIGNATURE_VERSION:
        raise StorageError(
            f"{store.uri(files[SIGNATURE])} has version {signature['version']}, this program reads {SIGNATURE_VERSION}"
        )
    return Bundle(
        features=FittedFeatures.from_json(store.read(files[FEATURES])),
        signature=signature,
        predictor=open_predictor(store.local_path(files[NETWORK]), store.local_path(files[WEIGHTS])),
    )


def read_fitted(store: Store, manifest: Manifest) -> FittedFeatures:
    """The fitted features of a `features` manifest."""
    from paddlewheel.data.encoding.fitted import FittedFeatures

    return FittedFeatures.from_json(store.read(manifest.files[0].key))


def build_trained(recipe: Recipe, run: Manifest, features: FittedFeatures, store: Store) -> Any:
    """The run's network as a paddle.nn.Layer with the weights of its result, in evaluation mode."""
    paddle = import_paddle()
    from paddlewheel.training.checkpoint import load_weights
    from paddlewheel.training.models import InputSpec, build_model
    from paddlewheel.training.result import result_commit
    from paddlewheel.training.state import model_tensors, set_tensors

    commit = result_commit(store, run)
    spec = InputSpec(id_sizes=features.id_sizes, num_dense=len(features.dense_names))
    with paddle.utils.unique_name.guard():  # equal names of parameters, so equal bytes, however often it is exported
        layer = build_model(recipe.model.name, spec, recipe.model.params)
    set_tensors(model_tensors(layer), load_weights(store, commit), store.uri(commit.key))
    layer.eval()
    return layer


def trained_probabilities(layer: Any, ids_BF: np.ndarray, dense_BD: np.ndarray) -> np.ndarray:
    """What the trained layer itself says of model inputs: probabilities, float64[B]."""
    paddle = import_paddle()
    with paddle.no_grad():
        logits_B = layer(paddle.to_tensor(ids_BF), paddle.to_tensor(dense_BD)).numpy().astype(np.float64)
    probabilities: np.ndarray = 1 / (1 + np.exp(-logits_B))
    return probabilities


def save_network(layer: Any, folder: Path, *, num_ids: int, num_dense: int) -> None:
    """Write network.json and network.pdiparams: (ids int32[B, F], dense float32[B, D]) -> probabilities float64[B].

    An input of width 0 is left out of the exported network: Paddle refuses one that nothing is computed from.
    """
    paddle = import_paddle()
    wrapped = _wrap(layer, num_ids=num_ids, num_dense=num_dense)
    wrapped.eval()
    for name, buffer in wrapped.named_buffers():  # Paddle counts them over the life of the process
        buffer.name = name
    specs = [
        paddle.static.InputSpec([None, width], dtype, name)
        for name, dtype, width in (("ids", "int32", num_ids), ("dense", "float32", num_dense))
        if width
    ]
    with paddle.utils.unique_name.guard():
        paddle.jit.save(wrapped, str(folder / "network"), input_spec=specs)
    program = (folder / NETWORK).read_bytes()
    (folder / NETWORK).write_bytes(LAYER_NOTE.sub(rb"\1\2", program))


def _wrap(layer: Any, *, num_ids: int, num_dense: int) -> Any:
    """The network followed by a sigmoid in float64. Paddle's tracer takes no `*inputs`: one class a set of inputs."""
    paddle = import_paddle()
    sigmoid, base = paddle.nn.functional.sigmoid, paddle.nn.Layer

    class FromBoth(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.network = layer

        def forward(self, ids: Any, dense: Any) -> Any:
            return sigmoid(self.network(ids, dense).astype("float64"))

    class FromIds(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.network = layer

        def forward(self, ids: Any) -> Any:
            dense = paddle.zeros([ids.shape[0], 0], "float32")
            return sigmoid(self.network(ids, dense).astype("float64"))

    class FromDense(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.network = layer

        def forward(self, dense: Any) -> Any:
            ids = paddle.zeros([dense.shape[0], 0], "int32")
            return sigmoid(self.network(ids, dense).astype("float64"))

    return FromBoth() if num_ids and num_dense else FromIds() if num_ids else FromDense()


def open_predictor(network: Path, weights: Path) -> Any:
    """A Paddle Inference predictor on the CPU, one thread."""
    import_paddle()
    from paddle import inference

    config = inference.Config(str(network), str(weights))
    config.disable_gpu()
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(1)
    config.enable_new_ir(True)
    config.enable_new_executor(True)
    config.enable_memory_optim()  # without the two lines above it it is refused
    return inference.create_predictor(config)


def import_paddle() -> Any:
    """Paddle without its notes on ccache and on each converted operator."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle
    return paddle
