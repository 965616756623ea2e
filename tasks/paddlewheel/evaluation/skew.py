"""The skew check: what will be served, from raw rows, must say what training's own network says on its packed rows.

It runs both whole ways apart: raw rows, fitted features and Paddle Inference on one side, packed rows and the trained
layer on the other. A difference means that the model in service would not be the model that was trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from paddlewheel.errors import StorageError
from paddlewheel.lineage import ancestors
from paddlewheel.manifest import Manifest, verify
from paddlewheel.storage import Store

# Fused kernels add in another order: an FM term of large inputs cancels to about 2e-5 of a probability in float32;
# features applied in two ways, or a layer that the export lost, move some row by far more.
LIMIT = 1e-4
BATCH_ROWS = 4096


def check_skew(
    layer: Any, packed: Iterable[Manifest], sample_ids_B: np.ndarray, served_B: np.ndarray, *, store: Store
) -> dict[str, Any]:
    """Compare served probabilities with the trained layer's on the packed rows of the same samples; facts of the check.

    Raises StorageError where a sample is not among the packed rows, or the two differ by more than LIMIT.
    """
    packed_ids, trained = _predict_packed(layer, packed, store)
    order = np.argsort(packed_ids, kind="stable")
    places = np.searchsorted(packed_ids[order], sample_ids_B).clip(max=max(len(order) - 1, 0))
    found = packed_ids[order][places] == sample_ids_B if len(order) else np.zeros(len(sample_ids_B), bool)
    if not found.all():
        raise StorageError(
            f"{np.sum(~found)} of {len(sample_ids_B)} holdout rows are not among the packed rows (the first has the "
            f"sample id {sample_ids_B[np.argmin(found)]}): shards and packed rows are not of one partition"
        )
    differences = np.abs(trained[order][places] - served_B)
    worst = int(np.argmax(differences))
    if not differences[worst] <= LIMIT:
        raise StorageError(
            f"the exported bundle does not serve what was trained: on the sample {sample_ids_B[worst]} it says "
            f"{served_B[worst]:.6f}, the trained network {trained[order][places][worst]:.6f}; "
            f"{np.sum(~(differences <= LIMIT))} of {len(served_B)} rows differ by more than {LIMIT:g}. Either the "
            "features are applied in two ways, or the export lost something of the network (a custom layer?); nothing "
            "is promoted"
        )
    return {"rows": len(served_B), "largest_difference": float(differences[worst]), "limit": LIMIT}


def packed_of(store: Store, run_uri: str) -> list[Manifest]:
    """The packed manifests that a run was trained from, their files verified."""
    packed = [manifest for manifest in ancestors(store, run_uri) if manifest.kind == "packed"]
    for manifest in packed:
        verify(store, manifest)
    return packed


def _predict_packed(layer: Any, packed: Iterable[Manifest], store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Sample ids and the trained network's probabilities of every packed holdout row: uint64[P], float64[P]."""
    from paddlewheel.data.packed import read_packed
    from paddlewheel.export import trained_probabilities

    ids, probabilities = [np.zeros(0, np.uint64)], [np.zeros(0)]
    for manifest in packed:
        for shard in manifest.files:
            if shard.facts["role"] == "holdout":
                rows = read_packed(store.local_path(shard.key))
                ids.append(rows.sample_ids_B)
                probabilities += [
                    trained_probabilities(
                        layer, rows.ids_BF[start : start + BATCH_ROWS], rows.dense_BD[start : start + BATCH_ROWS]
                    )
                    for start in range(0, len(rows), BATCH_ROWS)
                ]
    return np.concatenate(ids), np.concatenate(probabilities)
