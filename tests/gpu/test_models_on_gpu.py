"""The networks on a CUDA device say what they say on the CPU. Needs paddlepaddle-gpu (requirements-gpu.txt)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_cuda() -> None:
    import paddle

    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        pytest.skip("no CUDA device, or the CPU wheel of Paddle: see requirements-gpu.txt")


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("resnet18", {"image": [3, 16, 16], "classes": 5}),
        ("resnet50", {"image": [3, 16, 16], "classes": 5}),
        ("gpt", {"layers": 2, "width": 16, "heads": 2}),
    ],
)
def test_a_loss_is_alike_on_both_devices(name: str, params: dict[str, Any]) -> None:
    import paddle

    from paddlewheel.training.models import InputSpec, build_model

    generator = np.random.default_rng(7)
    spec = InputSpec(id_sizes=(20,) * 12, num_dense=0) if name == "gpt" else InputSpec(id_sizes=(), num_dense=768)
    rows = {
        "ids_BF": generator.integers(1, 20, (4, 12)).astype(np.int32),
        "dense_BD": generator.normal(size=(4, 768)).astype(np.float32),
        "labels_B": np.array([0, 4, 2, 1], np.float32),
    }
    losses, weights = [], None
    for device in ("cpu", "gpu"):
        paddle.set_device(device)
        layer = build_model(name, spec, params)
        weights = weights or {key: value.numpy() for key, value in layer.state_dict().items()}
        layer.set_state_dict(weights)
        layer.eval()
        losses.append(float(layer.loss(SimpleNamespace(**{key: paddle.to_tensor(row) for key, row in rows.items()}))))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("name", ["deepfm", "wide_deep"])
def test_a_network_scores_alike_on_both_devices(name: str) -> None:
    import paddle

    from paddlewheel.training.models import InputSpec, build_model

    generator = np.random.default_rng(7)
    ids_BF = generator.integers(0, 5, (64, 3)).astype(np.int32)
    dense_BD = generator.normal(size=(64, 4)).astype(np.float32)
    scores, weights = [], None
    for device in ("cpu", "gpu"):
        paddle.set_device(device)
        layer = build_model(name, InputSpec(id_sizes=(5, 5, 5), num_dense=4), {"embedding": 4, "hidden": [8]})
        weights = weights or {key: value.numpy() for key, value in layer.state_dict().items()}
        layer.set_state_dict(weights)
        layer.eval()
        scores.append(layer(paddle.to_tensor(ids_BF), paddle.to_tensor(dense_BD)).numpy())
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-5)
