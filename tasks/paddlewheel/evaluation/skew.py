"""The skew check: what will be served, from raw rows, must say what training's own network says on its packed rows.

It runs both whole ways apart: raw rows, the bundle's features and Paddle Inference on one side, packed rows and the
trained layer on the other. The inputs must be the same bits; what the two networks say of them may differ by rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlewheel.errors import StorageError
from paddlewheel.lineage import ancestors
from paddlewheel.manifest import Manifest, verify
from paddlewheel.storage import Store

if TYPE_CHECKING:
    from paddlewheel.data.encoding.fitted import FittedFeatures, Inputs
    from paddlewheel.data.packed import PackedRows

# Fused kernels add in another order: an FM term of large inputs cancels to about 2e-5 of a probability in float32; a
# layer that the export lost moves some row by far more.
LIMIT = 1e-4
BATCH_ROWS = 4096


def check_skew(
    layer: Any,
    packed: Iterable[Manifest],
    sample_ids_B: np.ndarray,
    served_B: np.ndarray,
    *,
    features: FittedFeatures,
    inputs: Inputs,
    store: Store,
) -> dict[str, Any]:
    """Compare served inputs and probabilities with the packed rows and the trained layer's; facts of the check.

    features, inputs: the bundle's, and what they made of the samples' raw rows. Raises StorageError where a sample is
    not among the packed rows, an input differs by a bit, or a probability by more than LIMIT.
    """
    from paddlewheel.data.packed import iter_packed
    from paddlewheel.export import trained_probabilities

    order = np.argsort(sample_ids_B, kind="stable")
    found_B, trained_B = np.zeros(len(order), bool), np.zeros(len(order))
    for manifest in packed:
        for shard in manifest.files:
            if shard.facts["role"] != "holdout":
                continue
            for rows in iter_packed(store.local_path(shard.key)):
                places = np.searchsorted(sample_ids_B[order], rows.sample_ids_B).clip(max=max(len(order) - 1, 0))
                mine = sample_ids_B[order][places] == rows.sample_ids_B if len(order) else np.zeros(len(rows), bool)
                served = order[places[mine]]
                check_inputs(features, inputs, served, rows, mine)
                found_B[served] = True
                trained_B[served] = _predict(layer, rows, trained_probabilities)[mine]
    if not found_B.all():
        raise StorageError(
            f"{np.sum(~found_B)} of {len(sample_ids_B)} holdout rows are not among the packed rows (the first has the "
            f"sample id {sample_ids_B[np.argmin(found_B)]}): shards and packed rows are not of one partition"
        )
    differences = np.abs(trained_B - served_B)
    worst = int(np.argmax(differences))
    if not differences[worst] <= LIMIT:
        raise StorageError(
            f"the exported bundle does not serve what was trained: on the sample {sample_ids_B[worst]} it says "
            f"{served_B[worst]:.6f}, the trained network {trained_B[worst]:.6f}; "
            f"{np.sum(~(differences <= LIMIT))} of {len(served_B)} rows differ by more than {LIMIT:g}. The inputs are "
            "the same, so the export lost something of the network (a custom layer?); nothing is promoted"
        )
    return {"rows": len(served_B), "largest_difference": float(differences[worst]), "limit": LIMIT}


def check_inputs(
    features: FittedFeatures, inputs: Inputs, served: np.ndarray, rows: PackedRows, mine: np.ndarray
) -> None:
    """Raises StorageError where `inputs[served]` are not, bit for bit, the inputs of the packed `rows[mine]`."""
    sides = (
        (features.id_names, inputs.ids_BF[served], rows.ids_BF[mine]),
        (features.dense_names, inputs.dense_BD[served], rows.dense_BD[mine]),
    )
    for names, from_raw, from_packed in sides:
        if from_raw.shape != from_packed.shape:
            raise StorageError(
                f"the bundle's features give {from_raw.shape[1]} columns, the packed rows have {from_packed.shape[1]}: "
                "they are of other features; run preprocess and train again"
            )
        differ = _bits(from_raw) != _bits(from_packed)
        if differ.any():
            row, column = np.argwhere(differ)[0]
            raise StorageError(
                f"raw rows through the bundle give other inputs than training saw: {names[column]} of the sample "
                f"{rows.sample_ids_B[mine][row]} is {from_raw[row, column]}, it was packed as "
                f"{from_packed[row, column]}; {differ.any(axis=1).sum()} of {len(differ)} rows there differ. The "
                "features' code or its libraries changed since preprocess: run preprocess and train again; nothing is "
                "promoted"
            )


def packed_of(store: Store, run_uri: str) -> list[Manifest]:
    """The packed manifests that a run was trained from, their files verified."""
    packed = [manifest for manifest in ancestors(store, run_uri) if manifest.kind == "packed"]
    for manifest in packed:
        verify(store, manifest)
    return packed


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


def _predict(layer: Any, rows: PackedRows, predict: Any) -> np.ndarray:
    """The trained network's probability of every packed row: float64[P]."""
    parts = [
        predict(layer, rows.ids_BF[start : start + BATCH_ROWS], rows.dense_BD[start : start + BATCH_ROWS])
        for start in range(0, len(rows), BATCH_ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)
