"""How ranks that hold the same parameters agree on gradients, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddlewheel.training.strategies import Strategy
from paddlewheel.training.sync.dense import Dense

SYNCS: dict[str, Callable[[Any, Strategy, float | None], Dense]] = {"dense": Dense}


def build_sync(name: str, model: Any, strategy: Strategy, clip_norm: float | None) -> Dense:
    """The exchange of gradients of this name."""
    from paddlewheel.training.models import import_name

    sync: Dense = (SYNCS.get(name) or import_name(name, "training.sync"))(model, strategy, clip_norm)
    return sync
