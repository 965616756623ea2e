"""Tensor parallelism (Shoeybi and others 2019, Megatron-LM): layers of a plain model split over ranks, from outside.

A Linear by column computes some of its outputs, one by row takes some inputs, an Embedding holds some rows, and the
last Linear's classes go with a cross-entropy over all ranks. Names of parameters stay those of the plain model.
Rejected: fleet's parallel layers, which a model must be written with and which fail on a CPU.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Split
from paddlewheel.training.groups import Group
from paddlewheel.training.models.losses import CrossEntropy
from paddlewheel.training.pieces import Piece
from paddlewheel.training.strategies.conjugates import Spread, collect
from paddlewheel.training.strategies.split_check import gradients_of, same_gradients

EXAMPLE = "[{layers: deep.layers.0, by: column}, {layers: deep.layers.2, by: row}]"
IGNORED = -100  # Paddle's ignore_index


def split_model(model: Any, plan: Sequence[Split], group: Group, sample: Callable[[], Any]) -> dict[str, Piece]:
    """Split the layers that the plan names, in place; where each of this rank's pieces lies, by parameter.

    plan: the model's own `tensor_plan` where it is empty. sample: gives a few rows, by which the split model is held
    against the plain one. Raises RecipeError for a plan that names nothing, or layers that cannot be split so, and
    where loss or gradients come out otherwise.
    """
    told = tuple(plan) or tuple(getattr(model, "tensor_plan", tuple)())
    if not told:
        raise RecipeError(
            f"training.parallel.plan: {type(model).__name__} has no plan of its own; name its layers, such as {EXAMPLE}"
        )
    chosen = _chosen(model, told)
    before = gradients_of(model, sample)
    splitting = _Splitting(model, group)
    for name, by in chosen.items():
        splitting.split(name, by)
    wrong = same_gradients(model, sample, before, splitting.pieces, group)
    if wrong:
        split = ", ".join(f"{one.layers} by {one.by}" for one in told)
        raise RecipeError(
            f"training.parallel.plan ({split}): the split network is not the plain one, {wrong}. What is split by "
            "column must be read by a layer split by row, element by element in between"
        )
    splitting.spread.forget()
    return splitting.pieces


def _chosen(model: Any, plan: Sequence[Split]) -> dict[str, str]:
    """How each layer is split, by its name."""
    names = [name for name, _ in model.named_sublayers()]
    found: dict[str, str] = {}
    for split in plan:
        matching = [name for name in names if fnmatch.fnmatchcase(name, split.layers)]
        if not matching:
            some = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            raise RecipeError(f"training.parallel.plan: no layer is called {split.layers!r}; there are {some}")
        for name in matching:
            if found.setdefault(name, split.by) != split.by:
                raise RecipeError(f"training.parallel.plan: {name} is split by {found[name]} and by {split.by}")
    return found


class _Splitting:
    """The layers of one model that are split, and where the pieces lie."""

    def __init__(self, model: Any, group: Group) -> None:
        self.model, self.group = model, group
        self.spread = Spread(group)
        self.layers: dict[str, Any] = dict(model.named_sublayers())
        self.pieces: dict[str, Piece] = {}

    def split(self, name: str, by: str) -> None:
        layer = self.layers[name]
        kinds = {nn.Linear: {"column", "row", "vocabulary"}, nn.Embedding: {"vocabulary"}}
        kind = next((one for one in kinds if isinstance(layer, one)), None)
        if kind is None or by not in kinds[kind]:
            raise RecipeError(
                f"training.parallel.plan: {name}, a {type(layer).__name__}, cannot be split by {by}: a Linear can by "
                "column, row and (the last one) vocabulary, an Embedding by vocabulary"
            )
        if kind is nn.Embedding:
            self._embedding(name, layer)
        elif by == "row":
            self._row(name, layer)
        else:
            self._column(name, layer, even=by == "column")
            if by == "vocabulary":
                self._classes(name, int(self.pieces[f"{name}.weight"].shape[1]))

    def _column(self, name: str, layer: Any, *, even: bool) -> None:
        """Whole inputs, some outputs."""
        span = self._span(name, layer.weight.shape[1], even=even)
        self._cut(name, layer, "weight", 1, span)
        if layer.bias is not None:
            self._cut(name, layer, "bias", 0, span)
        plain = layer.forward
        layer.forward = lambda whole: plain(self.spread(whole))

    def _row(self, name: str, layer: Any) -> None:
        """Some inputs, whole outputs; the bias is whole, and added once."""
        self._cut(name, layer, "weight", 0, self._span(name, layer.weight.shape[0], even=True))

        def forward(part: Any) -> Any:
            total = collect(functional.linear(part, layer.weight), self.group)
            return total if layer.bias is None else total + layer.bias

        layer.forward = forward

    def _embedding(self, name: str, layer: Any) -> None:
        """Some rows; what the others hold comes from them."""
        set_ = ("_padding_idx", "_max_norm", "_scale_grad_by_freq", "_sparse")
        found = [one.removeprefix("_") for one in set_ if getattr(layer, one, None) not in (None, False)]
        if found:
            raise RecipeError(
                f"training.parallel.plan: {name} has {' and '.join(found)}, with which it is not split; leave it whole"
            )
        rows_in_all = int(layer.weight.shape[0])
        start, size = self._span(name, rows_in_all, even=False)
        self._cut(name, layer, "weight", 0, (start, size))

        def forward(ids: Any) -> Any:
            _check_range(f"an id of {name}", ids, rows_in_all)
            local = ids - start
            mine = paddle.logical_and(local >= 0, local < size)
            rows = functional.embedding(local.clip(0, size - 1), layer.weight)
            return collect(rows * mine.astype(rows.dtype).unsqueeze(-1), self.group)

        layer.forward = forward

    def _classes(self, name: str, classes: int) -> None:
        """A cross-entropy over all ranks' classes in the place of the model's."""
        plain: Any = getattr(self.model, "cross_entropy", None)
        if not isinstance(plain, CrossEntropy):
            raise RecipeError(
                f"training.parallel.plan: {name} can be split by vocabulary only where the network has the layer "
                "cross_entropy, a paddlewheel.training.models.losses.CrossEntropy, and its loss goes through that"
            )
        span = self._span(name, classes, even=False)
        self.layers["cross_entropy"].forward = _cross_entropy(self.group, *span, classes, plain.smoothing)

    def _span(self, name: str, length: int, *, even: bool) -> tuple[int, int]:
        """(start, size) of this rank's part."""
        size, rank = self.group.size, self.group.rank
        if length < size or (even and length % size):
            raise RecipeError(
                f"training.parallel.plan: {name} has a side of {length}, which {size} ranks do not divide; change the "
                "width, training.parallel.tensor or the plan"
            )
        start = length * rank // size
        return start, length * (rank + 1) // size - start

    def _cut(self, name: str, layer: Any, parameter: str, axis: int, span: tuple[int, int]) -> None:
        """Put this rank's part of a parameter in its place."""
        whole = getattr(layer, parameter)
        start, size = [0] * len(whole.shape), list(whole.shape)
        start[axis], size[axis] = span
        piece = Piece(shape=tuple(whole.shape), start=tuple(start), size=tuple(size))
        owners = [
            other for other, one in self.layers.items() if any(one_of is whole for one_of in one._parameters.values())
        ]
        if len(owners) > 1:
            raise RecipeError(
                f"training.parallel.plan: {name}.{parameter} is a parameter of {' and '.join(owners)} at once, which "
                "cannot be split; leave those layers whole"
            )
        part = layer.create_parameter(size, dtype=whole.dtype, is_bias=parameter == "bias")
        part.set_value(np.ascontiguousarray(piece.cut(whole.numpy())))
        for told in ("stop_gradient", "optimize_attr", "regularizer", "need_clip"):
            setattr(part, told, getattr(whole, told))
        setattr(layer, parameter, part)
        self.pieces[f"{name}.{parameter}"] = piece


def _cross_entropy(group: Group, start: int, size: int, classes: int, smoothing: float) -> Callable[[Any, Any], Any]:
    """Cross-entropy in nats of softmax over all ranks' classes: (this rank's logits [..., size], classes) -> [...].

    The greatest logit is taken off first, so that no exponential overflows. A class of IGNORED counts as in Paddle's
    cross_entropy.
    """

    def forward(logits: Any, wanted: Any) -> Any:
        logits = logits.astype("float32")
        greatest = logits.detach().max(axis=-1)
        for other in group.gather(greatest):
            greatest = paddle.maximum(greatest, other)
        shifted = logits - greatest.unsqueeze(-1)
        ignored = wanted == IGNORED
        _check_range("a class", paddle.where(ignored, paddle.zeros_like(wanted), wanted), classes)
        local = wanted - start
        mine = paddle.logical_and(local >= 0, local < size)
        picked = paddle.take_along_axis(shifted, local.clip(0, size - 1).unsqueeze(-1), axis=-1).squeeze(-1)
        parts = [shifted.exp().sum(axis=-1), paddle.where(mine, picked, paddle.zeros_like(picked))]
        parts += [shifted.sum(axis=-1)] if smoothing else []
        sums = collect(paddle.stack(parts), group)
        losses = paddle.where(ignored, paddle.zeros_like(sums[0]), sums[0].log() - sums[1])
        if not smoothing:
            return losses
        evenly = sums[0].log() - sums[2] / classes
        return (1 - smoothing) * losses + smoothing * evenly

    return forward


def _check_range(what: str, values: Any, count: int) -> None:
    """Raises ValueError for one outside of [0, count), as the plain layer does on a CPU; a GPU does not look either."""
    if values.place.is_cpu_place() and values.size:
        found = values.numpy()
        if found.min() < 0 or found.max() >= count:
            raise ValueError(
                f"{what} is {int(found.min() if found.min() < 0 else found.max())}, outside of 0 to {count - 1}"
            )
