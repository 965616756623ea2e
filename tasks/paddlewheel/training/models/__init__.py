"""Networks by name, the way to a user's own by `package.module:name`, and what a network is.

A network is a paddle.nn.Layer that knows nothing of ranks. What it must have is `Model`; one that pipeline parallelism
cuts by layers is `Staged` too, and one with a `tensor_plan` can be split without a plan in the recipe. A user's own
loss takes the place of `loss_of`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Split


class Model(Protocol):
    """What a training needs. Its loss is a mean over rows: a global batch's is the weighted mean of its parts'."""

    def loss(self, batch: Any) -> Any:
        """Mean loss of the batch's rows, a tensor of one element."""


class Staged(Model, Protocol):
    """A network that is a row of layers: `loss(batch)` is `loss_of(last(… first(inputs(batch))), batch)`.

    Each layer but those without parameters is the model's sublayer of that name, which holds all that it uses.
    """

    def stages(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """Names and layers in order; what one gives, a tensor or a tuple of tensors, is what the next one takes."""

    def inputs(self, batch: Any) -> Any:
        """What the first layer takes: a tensor or a tuple of tensors."""

    def loss_of(self, outputs: Any, batch: Any) -> Any:
        """Mean loss of the batch's rows from what the last layer gave.

        Where the last layer's classes may be split over ranks it goes through the sublayer `cross_entropy`.
        """


class Splittable(Protocol):
    """A network that says itself how its layers are split over ranks."""

    def tensor_plan(self) -> Sequence[Split]:
        """Patterns of names of sublayers, each split by column, row or vocabulary."""


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """What a network reads: `id_sizes[f]` ids in column f, 0 = unknown, and `num_dense` numbers."""

    id_sizes: tuple[int, ...]
    num_dense: int


def build_model(name: str, spec: InputSpec, params: Mapping[str, Any]) -> Any:
    """A new network with random weights from Paddle's current seed.

    Raises RecipeError that tells every parameter that the network does not take, or whose value is out of range.
    """
    build = MODELS.get(name) or import_name(name, "model.name")
    return build(spec, params)


def import_name(name: str, path: str) -> Any:
    """What `package.module:name` names. Raises RecipeError, naming the recipe's field, where there is none."""
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(f"{path}: {name!r} cannot be imported: {error}") from error


def outputs_of(model: Any, batch: Any) -> Any:
    """What a network says of a batch. One without `inputs` takes (ids_BF, dense_BD)."""
    inputs = model.inputs(batch) if hasattr(model, "inputs") else (batch.ids_BF, batch.dense_BD)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def use_loss(model: Any, name: str) -> None:
    """Let the function `package.module:name` be the network's loss: loss(outputs, batch) -> mean over the rows."""
    own = import_name(name, "training.loss")
    model.loss_of = own
    model.loss = lambda batch: model.loss_of(outputs_of(model, batch), batch)


def check_params(params: Mapping[str, Any], known: Mapping[str, Callable[[Any], bool]], model: str) -> None:
    """Raises RecipeError with every parameter that is unknown (and the nearest known one) or out of range."""
    faults = []
    for name, value in params.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            faults.append(f"model.params.{name}: {model} takes {', '.join(sorted(known))}{hint}")
        elif not known[name](value):
            faults.append(f"model.params.{name}: {value!r} is not {known[name].__doc__}")
    if faults:
        raise RecipeError("\n".join(faults))


def is_width(value: Any) -> bool:
    """a whole number from 1"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def are_widths(value: Any) -> bool:
    """a list of whole numbers from 1"""
    return isinstance(value, list | tuple) and all(is_width(one) for one in value)


def is_classes(value: Any) -> bool:
    """a whole number from 2"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 2


def is_rate(value: Any) -> bool:
    """a number from 0 and below 1"""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _wide_deep(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    from paddlewheel.training.models.wide_deep import build

    return build(spec, params)


def _deepfm(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    from paddlewheel.training.models.deepfm import build

    return build(spec, params)


def _resnet18(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    from paddlewheel.training.models.resnet import build_resnet18

    return build_resnet18(spec, params)


def _resnet50(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    from paddlewheel.training.models.resnet import build_resnet50

    return build_resnet50(spec, params)


def _gpt(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    from paddlewheel.training.models.gpt import build

    return build(spec, params)


MODELS: dict[str, Callable[[InputSpec, Mapping[str, Any]], Any]] = {
    "wide_deep": _wide_deep,
    "deepfm": _deepfm,
    "resnet18": _resnet18,
    "resnet50": _resnet50,
    "gpt": _gpt,
}
