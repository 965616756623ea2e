"""One rank of a round of local SGD whose steps were all passed over: it tells the bytes that the round's end sent."""

from __future__ import annotations

import os
import sys

import paddle

from paddlewheel.recipe import Training
from paddlewheel.training.strategies import build_strategy
from paddlewheel.training.sync import build_sync


def main() -> None:
    """A linear layer of six weights and two biases."""
    training = Training(epochs=1, global_batch=8, sync="local_sgd")
    strategy = build_strategy(training, int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"]))
    strategy.setup()
    sync = build_sync(training, strategy.wrap(paddle.nn.Linear(3, 2), dict, {}), strategy, 1)
    sys.stdout.write(f"{sync.after_update(1)}\n")
    strategy.close()


if __name__ == "__main__":
    main()
