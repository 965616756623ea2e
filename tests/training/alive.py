"""How many micro-batches' activations each stage of a pipeline of two holds at the most: test_pipeline's ranks."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
from staged import Staged

from paddlewheel.recipe import Parallel
from paddlewheel.training.strategies import Compute
from paddlewheel.training.strategies.mesh import build_pipeline


class Rows(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.labels_B)


def rows(count: int) -> Any:
    generator = np.random.default_rng(count)
    return Rows(
        ids_BF=paddle.to_tensor(generator.integers(0, 11, (count, 3))),
        dense_BD=paddle.to_tensor(generator.normal(size=(count, 3)).astype(np.float32)),
        labels_B=paddle.to_tensor(generator.integers(0, 2, count).astype(np.float32)),
    )


def main() -> None:
    schedule, stages = sys.argv[1], int(sys.argv[2])
    strategy = build_pipeline(
        paddle.distributed.get_rank(),
        stages,
        Parallel(pipeline=stages, schedule=schedule),  # type: ignore[arg-type]
    )
    strategy.setup()
    paddle.seed(1)
    model = strategy.wrap(Staged(), lambda: rows(4), {})
    compute = Compute(cast=contextlib.nullcontext, lap=lambda name: None)
    for count in (6, 1, 0):  # more micro-batches than stages, fewer, and none
        strategy.backward(model, [rows(4)] * count, [1 / 6] * count, compute)
    held = strategy._pipeline.most_alive
    strategy.close()
    print(held)


if __name__ == "__main__":
    main()
