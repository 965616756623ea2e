"""One rank's training under way: what steps change, made at the start or from a commit, and its copy for a commit."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import paddle

from paddlewheel.data.loader import Batch, Loader, to_tensors
from paddlewheel.data.order import MASK
from paddlewheel.errors import DataError
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store
from paddlewheel.training.acceleration import prepare_model
from paddlewheel.training.checkpoint import AVERAGE, Commit, open_arrays, open_own
from paddlewheel.training.commit_writer import Snapshot
from paddlewheel.training.guard import StepGuard
from paddlewheel.training.host_copies import HostCopies
from paddlewheel.training.models import InputSpec, build_model
from paddlewheel.training.optimizer import build_optimizer
from paddlewheel.training.pieces import Piece
from paddlewheel.training.precision import LossScale, build_scale
from paddlewheel.training.seeds import seed_all
from paddlewheel.training.shares import Shares
from paddlewheel.training.state import (
    Average,
    is_power,
    model_tensors,
    optimizer_tensors,
    set_tensors,
    trainable,
)
from paddlewheel.training.strategies import Strategy
from paddlewheel.training.sync import Sync, build_sync
from paddlewheel.training.sync.flat import shared_buffers
from paddlewheel.training.validation import Scores

LAYOUT = "layout"  # the part of a commit's progress that is the strategy's
SAMPLE_ROWS = 4


@dataclass(kw_only=True)
class Fit:
    """order: hash sums that the resumed commit had; mine: this rank's since then. scale: of an fp16 loss. buffers:
    running means of the model, which a step changes before anybody knows whether it counts."""

    recipe: Recipe
    loader: Loader
    strategy: Strategy
    model: Any
    optimizer: Any
    sync: Sync
    average: Average | None
    guard: StepGuard
    scale: LossScale | None
    shares: Shares
    scores: Scores
    buffers: list[Any]
    total_steps: int
    step: int = 0
    averaged: int = 0  # the step at which the running average took the parameters in
    copies: HostCopies = field(default_factory=HostCopies)
    order: dict[int, int] = field(default_factory=dict)
    mine: dict[int, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether the training has come to its regular end: all steps, or an early stop."""
        return self.step >= self.total_steps or self.scores.stopped


def prepare(
    recipe: Recipe, run: Manifest, commit: Commit | None, *, store: Store, loader: Loader, strategy: Strategy
) -> Fit:
    """Model, optimizer and exchange, equal on all ranks of a data group, with the state of `commit` in them."""
    training = recipe.training
    seed_all(loader.seed)
    spec = InputSpec(id_sizes=tuple(run.facts["id_sizes"]), num_dense=int(run.facts["num_dense"]))
    if (len(spec.id_sizes), spec.num_dense) != (loader.layout.num_ids, loader.layout.num_dense):
        raise DataError(
            f"the packed rows have {loader.layout.num_ids} ids and {loader.layout.num_dense} numbers, the "
            f"run's features {len(spec.id_sizes)} and {spec.num_dense}; run preprocess again"
        )
    model = build_model(recipe.model.name, spec, recipe.model.params)
    model = prepare_model(model, training, paddle.get_device().partition(":")[0])
    laid = commit.progress.get(LAYOUT, {}) if commit is not None else {}
    model = strategy.wrap(model, functools.partial(_sample, loader), laid)
    model.train()
    total_steps = training.epochs * loader.steps_per_epoch
    owned = strategy.owned(model)
    fit = Fit(
        recipe=recipe,
        loader=loader,
        strategy=strategy,
        model=model,
        optimizer=build_optimizer(training.optimizer, owned, whole_axes=whole_axes(strategy, owned)),
        sync=build_sync(training, model, strategy, total_steps),
        average=Average(model, training.average_decay) if training.average_decay else None,
        guard=StepGuard(training.guard),
        scale=build_scale(training.precision),
        shares=Shares(training.parallel.shares, strategy.data_group.size),
        scores=Scores(training.validation),
        buffers=shared_buffers(model),
        total_steps=total_steps,
    )
    if commit is not None:
        restore(fit, commit, store)
        fit.guard.load(commit.progress.get("guard", {}))
        fit.shares.load(commit.progress.get("shares", {}))
    return fit


def _sample(loader: Loader) -> Batch:
    """The first few rows of the first step, as tensors; the same on all ranks."""
    batch = loader.batch(1, 0, 0, 1)
    return to_tensors(
        replace(
            batch,
            sample_ids_B=batch.sample_ids_B[:SAMPLE_ROWS],
            labels_B=batch.labels_B[:SAMPLE_ROWS],
            ids_BF=batch.ids_BF[:SAMPLE_ROWS],
            dense_BD=batch.dense_BD[:SAMPLE_ROWS],
        )
    )


def restore(fit: Fit, commit: Commit, store: Store) -> None:
    """Put the state of a commit, made by however many ranks under whatever strategy, into this rank's.

    But for the guard and the shares, which a training that goes back keeps as it has come to know them.
    """
    model, optimizer, pieces = tensors_of(fit)
    # What was split when it was saved may be whole now; a rank that holds a part asks for a part.
    complete = fit.strategy.model_group.size == 1
    where = f"{store.uri(commit.key)}/model"
    set_tensors(model, open_arrays(store, commit, "model"), where, pieces=pieces["model"], complete=complete)
    where = f"{store.uri(commit.key)}/optimizer"
    arrays = open_arrays(store, commit, "optimizer")
    owns_all = complete and num_elements(fit.strategy.owned(fit.model)) == num_elements(trainable(fit.model))
    set_tensors(optimizer, arrays, where, pieces=pieces["optimizer"], complete=owns_all)
    fit.sync.load(commit.step, open_own(store, commit), optimizer)
    fit.step, fit.order, fit.mine = commit.step, dict(commit.order), {}
    fit.averaged = commit.step
    fit.scores.load(commit.progress.get("validation", {}))
    if fit.scale is not None:
        fit.scale.load(commit.progress.get("scale", {}))


def progress_of(fit: Fit) -> dict[str, Any]:
    """What a resume needs besides tensors, plain JSON; the same on all ranks."""
    parts = {
        "guard": fit.guard.to_json(),
        LAYOUT: fit.strategy.kept(),
        "scale": fit.scale.to_json() if fit.scale is not None else {},
        "shares": fit.shares.to_json(),
        "validation": fit.scores.to_json(),
    }
    return {name: part for name, part in parts.items() if part}


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
    for name in optimizer:
        parameter = name.rpartition(".")[0]
        if not is_power(name):
            piece = strategy.owned_piece(parameter, parameters[parameter])
            if piece is not None:
                pieces["optimizer"][name] = piece
    return model, optimizer, pieces


def snapshot(fit: Fit, epoch: int) -> Snapshot | None:
    """A host copy of what this rank gives to a commit, with the order's sums over all ranks; None where it gives
    nothing. All ranks must call.

    `ready` waits for it: until then parameters and the optimizer's tensors must stay as they are (`fit.copies.wait`).
    The next one takes this one's memory.
    """
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
    model = {
        name: tensor
        for name, tensor in model.items()
        if strategy.writes(name.removeprefix(AVERAGE), piece=name in pieces["model"])
    }
    owned = dict(strategy.owned(fit.model))
    optimizer = {
        name: tensor
        for name, tensor in optimizer.items()
        if writes_state(strategy, name, owned, piece=name in pieces["optimizer"])
    }
    # A forward pass moves running means, an exchange may move what a rank holds of its own.
    passing = {name for name, tensor in model.items() if tensor.stop_gradient and not name.startswith(AVERAGE)}
    copies = fit.copies
    model_arrays = copies.copy("model", {name: tensor for name, tensor in model.items() if name in passing})
    lasting = {name: tensor for name, tensor in model.items() if name not in passing}
    model_arrays |= copies.copy("model", lasting, later=True)
    optimizer_arrays = copies.copy("optimizer", optimizer, later=True)
    own_arrays = copies.copy("own", own)
    copies.start()
    return Snapshot(
        step=fit.step,
        epoch=epoch,
        step_in_epoch=fit.step - (epoch - 1) * fit.loader.steps_per_epoch,
        order={one: (fit.order.get(one, 0) + total) & MASK for one, total in zip(epochs, sums, strict=True)},
        model=model_arrays,
        optimizer=optimizer_arrays,
        own=own_arrays,
        ready=copies.wait,
        pieces={
            part: {name: piece for name, piece in of_part.items() if name in tensors}
            for part, of_part, tensors in (
                ("model", pieces["model"], model),
                ("optimizer", pieces["optimizer"], optimizer),
            )
        },
        progress=progress_of(fit),
    )


def writes_state(strategy: Strategy, name: str, owned: Mapping[str, Any], *, piece: bool) -> bool:
    """Whether this rank gives an optimizer's tensor to a commit; piece: whether it is one.

    What it keeps once for a parameter that ranks have pieces of, the one with the first element gives.
    """
    parameter = name.rpartition(".")[0]
    own = strategy.owned_piece(parameter, owned[parameter])
    return strategy.writes(parameter, piece=own is not None) and (own is None or piece or not any(own.start))


def whole_axes(strategy: Strategy, owned: Sequence[tuple[str, Any]]) -> dict[str, int]:
    """Axes of owned parameters as the model has them, by name."""
    return {name: len((strategy.owned_piece(name, parameter) or parameter).shape) for name, parameter in owned}


def num_elements(named: Sequence[tuple[str, Any]]) -> int:
    """Of all these parameters."""
    return sum(int(parameter.size) for _, parameter in named)


def writers(fit: Fit) -> Sequence[int]:
    """The ranks of the world that give files to a commit."""
    return fit.strategy.world.ranks if fit.sync.own else fit.strategy.writers
