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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import paddle

from paddlewheel.data.loader import Batch, Loader, to_tensors
from paddlewheel.data.order import MASK, mix_one, sample_hash
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store
from paddlewheel.training.acceleration import prepare_model
from paddlewheel.training.checkpoint import AVERAGE, Commit, open_arrays, open_own
from paddlewheel.training.commit_writer import Snapshot
from paddlewheel.training.events import EndStepEvent
from paddlewheel.training.models import InputSpec, build_model
from paddlewheel.training.monitor import resident_bytes
from paddlewheel.training.optimizer import build_optimizer, learning_rate, peak_rate
from paddlewheel.training.pieces import Piece
from paddlewheel.training.state import (
    Average,
    copy_arrays,
    model_tensors,
    optimizer_tensors,
    set_tensors,
    trainable,
)
from paddlewheel.training.strategies import Compute, Strategy
from paddlewheel.training.sync import Exchanged, Sync, build_sync


@dataclass(kw_only=True)
class Fit:
    """One rank's training under way. `order`: hash sums that the resumed commit had; `mine`: this rank's since then.

    averaged: the step at which the running average took the parameters in.
    """

    recipe: Recipe
    loader: Loader
    strategy: Strategy
    model: Any
    optimizer: Any
    sync: Sync
    average: Average | None
    total_steps: int
    step: int = 0
    averaged: int = 0
    order: dict[int, int] = field(default_factory=dict)
    mine: dict[int, int] = field(default_factory=dict)


def prepare(
    recipe: Recipe, run: Manifest, commit: Commit | None, *, store: Store, loader: Loader, strategy: Strategy
) -> Fit:
    """Model, optimizer and exchange, equal on all ranks of a data group, with the state of `commit` in them."""
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
    device = paddle.get_device().partition(":")[0]
    model = prepare_model(build_model(recipe.model.name, spec, recipe.model.params), training, device)
    model = strategy.wrap(model)
    model.train()
    total_steps = training.epochs * loader.steps_per_epoch
    fit = Fit(
        recipe=recipe,
        loader=loader,
        strategy=strategy,
        model=model,
        optimizer=build_optimizer(training.optimizer, strategy.owned(model)),
        sync=build_sync(training, model, strategy, total_steps),
        average=Average(model, training.average_decay) if training.average_decay else None,
        total_steps=total_steps,
    )
    if commit is not None:
        restore(fit, commit, store)
    return fit


def restore(fit: Fit, commit: Commit, store: Store) -> None:
    """Put the state of a commit, made by however many ranks under whatever strategy, into this rank's."""
    model, optimizer, pieces = tensors_of(fit)
    # What was split when it was saved may be whole now; a rank that holds a part asks for a part.
    complete = fit.strategy.model_group.size == 1
    where = f"{store.uri(commit.key)}/model"
    set_tensors(model, open_arrays(store, commit, "model"), where, pieces=pieces["model"], complete=complete)
    where = f"{store.uri(commit.key)}/optimizer"
    arrays = open_arrays(store, commit, "optimizer")
    owns_all = complete and len(fit.strategy.owned(fit.model)) == len(trainable(fit.model))
    set_tensors(optimizer, arrays, where, pieces=pieces["optimizer"], complete=owns_all)
    fit.sync.load(commit.step, open_own(store, commit), optimizer)
    fit.step = fit.averaged = commit.step
    fit.order, fit.mine = dict(commit.order), {}


def run_step(
    fit: Fit, epoch: int, step_in_epoch: int, who: dict[str, int], *, stop: bool, commit: bool, clock: Clock
) -> tuple[EndStepEvent, Exchanged]:
    """One global step on this rank's slice, which may be empty: what is told of it, what all ranks agreed on.

    clock: begun by the caller, with what the step waited for before it began as its first part.
    """
    strategy, training = fit.strategy, fit.recipe.training
    group = strategy.data_group
    seed_all(fit.loader.seed, fit.step + 1, group.rank)
    batch = fit.loader.batch(epoch, step_in_epoch, group.rank, group.size)
    fit.mine[epoch] = (fit.mine.get(epoch, 0) + sample_hash(batch.sample_ids_B)) & MASK
    batches = [to_tensors(one) for one in micro_batches(batch, training.micro_batch)]
    clock.lap("data")
    weights = [len(one) / batch.global_rows for one in batches]
    loss = strategy.backward(fit.model, batches, weights, Compute(cast=caster(training.precision), lap=clock.lap))
    clock.lap("backward")
    weight = len(batch) / batch.global_rows
    exchanged = fit.sync.exchange(loss, weight=weight, scale=1.0, stop=stop, commit=commit)
    clock.lap("exchange")
    if not (math.isfinite(exchanged.loss) and math.isfinite(exchanged.norm)):
        raise ArithmeticError(
            f"at step {fit.step + 1} the loss is {exchanged.loss} and the gradients' norm {exchanged.norm}: the "
            "training diverged; lower training.optimizer.learning_rate, or set training.optimizer.clip_norm"
        )
    rate = learning_rate(fit.step, total_steps=fit.total_steps, peak=peak_rate(training), schedule=training.schedule)
    fit.optimizer.set_lr(rate)
    fit.optimizer.step()
    fit.optimizer.clear_grad(set_to_zero=False)
    fit.step += 1
    clock.lap("optimizer")
    sent_bytes = exchanged.sent_bytes + strategy.after_update(fit.model) + fit.sync.after_update(fit.step)
    clock.lap("exchange")
    if fit.average is not None and fit.sync.settled(fit.step):
        fit.average.update(fit.step, steps=fit.step - fit.averaged)
        fit.averaged = fit.step
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
        norm=exchanged.norm,
        sent_bytes=sent_bytes,
    )
    return event, exchanged


def micro_batches(batch: Batch, rows: int | None) -> list[Batch]:
    """A rank's slice in order, in batches of at most `rows` rows; none where the slice is empty."""
    rows = rows or max(1, len(batch))
    return [
        replace(
            batch,
            sample_ids_B=batch.sample_ids_B[start : start + rows],
            labels_B=batch.labels_B[start : start + rows],
            ids_BF=batch.ids_BF[start : start + rows],
            dense_BD=batch.dense_BD[start : start + rows],
        )
        for start in range(0, len(batch), rows)
    ]


def caster(precision: str) -> Callable[[], AbstractContextManager[Any]]:
    """The context in which a forward pass computes."""
    if precision == "bf16":
        return lambda: paddle.amp.auto_cast(dtype="bfloat16")
    return contextlib.nullcontext


def tensors_of(fit: Fit) -> tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Piece]]]:
    """Tensors of the model and of the optimizer that this rank holds, by name, and where those lie that are pieces."""
    strategy, owned = fit.strategy, fit.strategy.owned(fit.model)
    model = model_tensors(fit.model) | (fit.average.tensors() if fit.average else {})
    optimizer = optimizer_tensors(fit.optimizer, owned)
    parameters = dict(owned)
    pieces: dict[str, dict[str, Piece]] = {"model": {}, "optimizer": {}}
    for name, tensor in model.items():
        piece = strategy.piece(name.removeprefix(AVERAGE), tensor)
        if piece is not None:
            pieces["model"][name] = piece
    for name, tensor in optimizer.items():
        parameter = name.rpartition(".")[0]
        # Others are single numbers, such as the powers of Adam's betas.
        if list(tensor.shape) == list(parameters[parameter].shape):
            piece = strategy.piece(parameter, parameters[parameter])
            if piece is not None:
                pieces["optimizer"][name] = piece
    return model, optimizer, pieces


def snapshot(fit: Fit, epoch: int) -> Snapshot | None:
    """A host copy of what this rank gives to a commit, with the order's sums over all ranks; None where it gives
    nothing. All ranks must call."""
    epochs = sorted({*fit.order, *fit.mine})
    mine = [fit.mine.get(one, 0) for one in epochs]
    # Paddle has no uint64, and gloo may not wrap: halves of 32 bits summed in 64.
    halves = paddle.to_tensor(np.array([[value & 0xFFFFFFFF, value >> 32] for value in mine], np.int64))
    strategy = fit.strategy
    strategy.data_group.sum_(halves)
    if strategy.world.rank not in writers(fit):
        return None
    sums = [(low + (high << 32)) & MASK for low, high in halves.numpy().tolist()]
    model, optimizer, pieces = tensors_of(fit)
    own = fit.sync.state(optimizer) if fit.sync.own else {}
    model = {name: tensor for name, tensor in model.items() if strategy.writes(name.removeprefix(AVERAGE))}
    optimizer = {
        name: tensor
        for name, tensor in optimizer.items()
        if name in pieces["optimizer"] or strategy.writes(name.rpartition(".")[0])
    }
    return Snapshot(
        step=fit.step,
        epoch=epoch,
        step_in_epoch=fit.step - (epoch - 1) * fit.loader.steps_per_epoch,
        order={one: (fit.order.get(one, 0) + total) & MASK for one, total in zip(epochs, sums, strict=True)},
        model=copy_arrays(model),
        optimizer=copy_arrays(optimizer),
        own=copy_arrays(own),
        pieces={
            part: {name: piece for name, piece in of_part.items() if name in tensors}
            for part, of_part, tensors in (
                ("model", pieces["model"], model),
                ("optimizer", pieces["optimizer"], optimizer),
            )
        },
    )


def writers(fit: Fit) -> Sequence[int]:
    """The ranks of the world that give files to a commit."""
    return fit.strategy.world.ranks if fit.sync.own else fit.strategy.writers


def seed_all(*numbers: int) -> None:
    """Seed Paddle, numpy and random by a hash of the numbers."""
    state = 0
    for number in numbers:
        state = mix_one((state * 31 + number + 1) & MASK)
    paddle.seed(state >> 1)
    np.random.seed(state & 0xFFFFFFFF)
    random.seed(state)


class Clock:
    """Seconds since its making, in parts. `checkpoint`: what it waited for before, no part of the total."""

    def __init__(self, *, checkpoint: float = 0.0) -> None:
        self.parts: dict[str, float] = {"checkpoint": round(checkpoint, 6)} if checkpoint else {}
        self.last = self.begin = time.perf_counter()

    def lap(self, name: str) -> None:
        """Ends a part of this name, which may come several times."""
        now = time.perf_counter()
        self.parts[name] = round(self.parts.get(name, 0.0) + now - self.last, 6)
        self.last = now

    @property
    def total(self) -> float:
        return self.last - self.begin
