"""On a CUDA device too, parts of parameters are updated in the memory of the parameters."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_cuda() -> None:
    import paddle

    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        pytest.skip("no CUDA device, or the CPU wheel of Paddle: see requirements-gpu.txt")


def test_ten_updates_of_parts_equal_those_of_the_whole_when_two_optimizers_share_a_layer() -> None:
    import paddle

    from paddlewheel.recipe import Optimizer
    from paddlewheel.training.optimizer import build_optimizer
    from paddlewheel.training.state import trainable
    from paddlewheel.training.strategies.parameter_buffer import ParameterBuffer
    from paddlewheel.training.strategies.zero import build_shard, cut_pieces

    paddle.set_device("gpu")
    recipe = Optimizer(name="adamw", learning_rate=0.01, weight_decay=0.1)
    whole, cut = paddle.nn.Linear(30, 20), paddle.nn.Linear(30, 20)
    cut.set_state_dict(whole.state_dict())
    optimizer = build_optimizer(recipe, trainable(whole))
    named = trainable(cut)
    buffer = ParameterBuffer([parameter for _, parameter in named])
    starts = dict(zip(dict(named), buffer.starts, strict=True))
    parameters, halves = dict(named), []
    for begin, end in ((0, 311), (311, 620)):
        shards = {
            name: build_shard(parameters[name], piece, buffer, starts[name] + piece.start[0])
            for name, piece in cut_pieces(named, begin, end).items()
        }
        owned = [(name, shard.tensor) for name, shard in shards.items()]
        halves.append((shards, build_optimizer(recipe, owned, whole_axes={"weight": 2, "bias": 1})))
    generator = np.random.default_rng(0)
    for _ in range(10):
        for name, parameter in trainable(whole):
            parameter.grad = paddle.to_tensor(generator.normal(size=parameter.shape).astype(np.float32))
            for shards, _ in halves:
                if name in shards:
                    shards[name].tensor.grad = parameter.grad.reshape([-1])[shards[name].elements]
        optimizer.step()
        for _, of_half in halves:
            of_half.step()
    for (_, one), (_, other) in zip(trainable(whole), named, strict=True):
        assert np.abs(one.numpy() - other.numpy()).max() <= 1e-6
