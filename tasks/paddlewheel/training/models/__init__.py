"""Networks by name, and the way to a user's own by `package.module:name`.

A network is a paddle.nn.Layer: `layer(ids_BF, dense_BD) -> logits_B`, and `layer.loss(batch) -> mean loss`. It knows
nothing of ranks.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paddlewheel.errors import RecipeError


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


def is_rate(value: Any) -> bool:
    """a number from 0 and below 1"""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _wide_deep(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    from paddlewheel.training.models.wide_deep import build

    return build(spec, params)


def _deepfm(spec: InputSpec, params: Mapping[str, Any]) -> Any:
    from paddlewheel.training.models.deepfm import build

    return build(spec, params)


MODELS: dict[str, Callable[[InputSpec, Mapping[str, Any]], Any]] = {"wide_deep": _wide_deep, "deepfm": _deepfm}
