"""Compiled and fused networks, and bfloat16, on a CUDA device: gradients as without, less memory. Needs
paddlepaddle-gpu (requirements-gpu.txt)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
TOKENS, VOCABULARY = 256, 100


@pytest.fixture(autouse=True)
def needs_cuda() -> None:
    import paddle

    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        pytest.skip("no CUDA device, or the CPU wheel of Paddle: see requirements-gpu.txt")
    paddle.set_device("gpu")


def learn(*, bf16: bool = False, **settings: Any) -> tuple[float, dict[str, np.ndarray], int]:
    """Loss and gradients of a small GPT, and the most bytes that the device held during the step."""
    import paddle

    from paddlewheel.recipe import Training
    from paddlewheel.training.acceleration import prepare_model
    from paddlewheel.training.models import InputSpec, build_model

    paddle.seed(3)
    spec = InputSpec(id_sizes=(VOCABULARY,) * TOKENS, num_dense=0)
    model = build_model("gpt", spec, {"layers": 4, "width": 64, "heads": 4})
    model = prepare_model(model, Training(epochs=1, global_batch=8, **settings), "gpu")
    model.train()
    ids_BF = np.random.default_rng(3).integers(1, VOCABULARY, (8, TOKENS)).astype(np.int32)
    batch = SimpleNamespace(ids_BF=paddle.to_tensor(ids_BF))
    paddle.device.cuda.empty_cache()
    paddle.device.cuda.reset_max_memory_allocated()
    before = paddle.device.cuda.memory_allocated()
    with paddle.amp.auto_cast(enable=bf16, dtype="bfloat16"):
        loss = model.loss(batch)
    loss.backward()
    gradients = {name: one.grad.astype("float32").numpy() for name, one in model.named_parameters()}
    return float(loss), gradients, paddle.device.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(
    "settings", [{"to_static": True}, {"fused": True}, {"recompute": ("blocks.?",)}, {"fused": True, "to_static": True}]
)
def test_gradients_are_the_same_in_float32(settings: dict[str, Any]) -> None:
    loss, gradients, _ = learn()
    found_loss, found, _ = learn(**settings)
    assert found_loss == pytest.approx(loss, rel=1e-4)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-2, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"recompute": ("blocks.?",)}])
def test_gradients_are_near_in_bfloat16(settings: dict[str, Any]) -> None:
    loss, gradients, _ = learn()
    found_loss, found, _ = learn(bf16=True, **settings)
    assert found_loss == pytest.approx(loss, rel=1e-2)
    for name, gradient in gradients.items():
        off = np.linalg.norm(found[name] - gradient) / np.linalg.norm(gradient)
        if not name.endswith("key.bias"):  # its gradient is zero but for rounding: softmax does not see it
            assert off < 0.1, (name, off)


def test_recomputed_blocks_take_less_than_half_of_the_memory() -> None:
    assert learn(recompute=("blocks.?",))[2] < 0.5 * learn()[2]
