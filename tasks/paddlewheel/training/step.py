"""One step of a training on one rank, and the state that steps change.

Order, learning rate and random numbers are pure functions of (seed, step, rank), so that a commit holds no state of
theirs: each step reseeds Paddle, numpy and random (about 10 µs), and a resumed training draws what the uninterrupted
one drew. On the same number of ranks it is bit for bit the same; on another the global batches and the mathematics are
the same, and only dropout draws otherwise. Rejected: saving the state of every generator of every rank.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

from paddlewheel.data.loader import Batch, Loader, to_tensors
from paddlewheel.data.order import mix, sample_hash
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import MODEL_NAME, OPTIMIZER_NAME, Commit, Snapshot, read_arrays
from paddlewheel.training.events import EndStepEvent
from paddlewheel.training.models import InputSpec, build_model
from paddlewheel.training.monitor import resident_bytes
from paddlewheel.training.optimizer import build_optimizer, learning_rate
from paddlewheel.training.state import Average, copy_arrays, model_tensors, optimizer_tensors, set_tensors
from paddlewheel.training.strategies import Strategy
from paddlewheel.training.sync import build_sync
from paddlewheel.training.sync.dense import Dense

MASK = (1 << 64) - 1


@dataclass(kw_only=True)
class Fit:
    """One rank's training under way. `order`: hash sums that the resumed commit had; `mine`: this rank's since then."""

    recipe: Recipe
    loader: Loader
    strategy: Strategy
    model: Any
    optimizer: Any
    sync: Dense
    average: Average | None
    total_steps: int
    step: int = 0
    order: dict[int, int] = field(default_factory=dict)
    mine: dict[int, int] = field(default_factory=dict)


def prepare(
    recipe: Recipe, run: Manifest, commit: Commit | None, *, store: Store, loader: Loader, strategy: Strategy
) -> Fit:
    """Model, optimizer and exchange, equal on all ranks, with the state of `commit` in them."""
    training = recipe.training
    if training.precision == "fp16":
        raise RecipeError("training.precision fp16 is not in this version; use bf16 or float32")
    seed_all(loader.seed)
    spec = InputSpec(id_sizes=tuple(run.facts["id_sizes"]), num_dense=int(run.facts["num_dense"]))
    if (len(spec.id_sizes), spec.num_dense) != (loader.layout.num_ids, loader.layout.num_dense):
        raise DataError(
            f"the packed rows have {loader.layout.num_ids} ids and {loader.layout.num_dense} numbers, the "
            f"run's features {len(spec.id_sizes)} and {spec.num_dense}; run preprocess again"
        )
    model = strategy.wrap(build_model(recipe.model.name, spec, recipe.model.params))
    model.train()
    optimizer = build_optimizer(training.optimizer, model)
    average = Average(model, training.average_decay) if training.average_decay else None
    fit = Fit(
        recipe=recipe,
        loader=loader,
        strategy=strategy,
        model=model,
        optimizer=optimizer,
        sync=build_sync(training.sync, model, strategy, training.optimizer.clip_norm),
        average=average,
        total_steps=training.epochs * loader.steps_per_epoch,
    )
    if commit is not None:
        tensors = model_tensors(model) | (average.tensors() if average else {})
        set_tensors(tensors, read_arrays(store, commit, MODEL_NAME), f"{commit.key}/{MODEL_NAME}")
        arrays = read_arrays(store, commit, OPTIMIZER_NAME)
        set_tensors(optimizer_tensors(optimizer, model), arrays, f"{commit.key}/{OPTIMIZER_NAME}")
        fit.step, fit.order = commit.step, dict(commit.order)
    return fit


def run_step(fit: Fit, epoch: int, step_in_epoch: int, who: dict[str, int], *, stop: bool) -> tuple[EndStepEvent, bool]:
    """One global step on this rank's slice, which may be empty: what is told of it, whether all agreed to stop."""
    strategy, training = fit.strategy, fit.recipe.training
    seed_all(fit.loader.seed, fit.step + 1, strategy.data_rank)
    clock = Clock()
    batch = fit.loader.batch(epoch, step_in_epoch, strategy.data_rank, strategy.data_world_size)
    fit.mine[epoch] = (fit.mine.get(epoch, 0) + sample_hash(batch.sample_ids_B)) & MASK
    tensors = to_tensors(batch)
    clock.lap("data")
    weight = len(batch) / batch.global_rows
    scaled_loss = forward(fit, tensors, weight)
    clock.lap("forward")
    if scaled_loss is not None:
        scaled_loss.backward()
    clock.lap("backward")
    exchanged = fit.sync.exchange(scaled_loss, weight=weight, stop=stop)
    clock.lap("exchange")
    if not (math.isfinite(exchanged.loss) and math.isfinite(exchanged.norm)):
        raise ArithmeticError(
            f"at step {fit.step + 1} the loss is {exchanged.loss} and the gradients' norm {exchanged.norm}: the "
            "training diverged; lower training.optimizer.learning_rate, or set training.optimizer.clip_norm"
        )
    rate = learning_rate(
        fit.step, total_steps=fit.total_steps, peak=training.optimizer.learning_rate, schedule=training.schedule
    )
    fit.optimizer.set_lr(rate)
    fit.optimizer.step()
    fit.optimizer.clear_grad(set_to_zero=False)
    fit.step += 1
    if fit.average is not None:
        fit.average.update(fit.step)
    clock.lap("optimizer")
    event = EndStepEvent(
        **who,
        epoch=epoch,
        step=fit.step,
        loss=exchanged.loss,
        learning_rate=rate,
        rows=batch.global_rows,
        seconds=clock.total,
        parts=clock.parts,
        rss_bytes=resident_bytes(),
    )
    return event, exchanged.stop


def forward(fit: Fit, batch: Batch, weight: float) -> Any | None:
    """This rank's mean loss times its share of the global batch, so that the ranks' sum is the global mean; None for
    no rows."""
    if not len(batch):
        return None
    precision = fit.recipe.training.precision
    cast = paddle.amp.auto_cast(dtype="bfloat16") if precision == "bf16" else contextlib.nullcontext()
    with cast:
        loss = fit.model.loss(batch)
    return loss if weight == 1.0 else loss * weight


def snapshot(fit: Fit, epoch: int) -> Snapshot | None:
    """A host copy of the whole state, with the order's sums over all ranks; rank 0's alone, but all ranks must call."""
    epochs = sorted({*fit.order, *fit.mine})
    mine = [fit.mine.get(one, 0) for one in epochs]
    # Paddle has no uint64, and gloo may not wrap: halves of 32 bits summed in 64.
    halves = paddle.to_tensor(np.array([[value & 0xFFFFFFFF, value >> 32] for value in mine], np.int64))
    fit.strategy.sum_over_ranks(halves)
    if fit.strategy.data_rank != 0:
        return None
    sums = [(low + (high << 32)) & MASK for low, high in halves.numpy().tolist()]
    model = model_tensors(fit.model) | (fit.average.tensors() if fit.average else {})
    return Snapshot(
        step=fit.step,
        epoch=epoch,
        step_in_epoch=fit.step - (epoch - 1) * fit.loader.steps_per_epoch,
        order={one: (fit.order.get(one, 0) + total) & MASK for one, total in zip(epochs, sums, strict=True)},
        model=copy_arrays(model),
        optimizer=copy_arrays(optimizer_tensors(fit.optimizer, fit.model)),
    )


def seed_all(*numbers: int) -> None:
    """Seed Paddle, numpy and random by a hash of the numbers."""
    state = 0
    for number in numbers:
        state = int(mix(np.array([(state * 31 + number + 1) & MASK], np.uint64))[0])
    paddle.seed(state >> 1)
    np.random.seed(state & 0xFFFFFFFF)
    random.seed(state)


class Clock:
    """Seconds since its making, in parts."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.last = self.begin = time.perf_counter()

    def lap(self, name: str) -> None:
        """Ends the part of this name."""
        now = time.perf_counter()
        self.parts[name] = round(now - self.last, 6)
        self.last = now

    @property
    def total(self) -> float:
        return self.last - self.begin
