"""A network that is a row of layers, cut into stages: where, by the measured cost of its layers, and one stage kept.

Rejected: cutting by the number of parameters, which takes an embedding, one lookup, for the dearest layer of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Parallel
from paddlewheel.training.groups import Group
from paddlewheel.training.seeds import seed_all
from paddlewheel.training.sync.flat import drop_gradients

RUNS = 3  # of which the fastest counts


def check_stages(model: Any) -> None:
    """Raises RecipeError for a network that is not a row of layers, or has parameters outside of them."""
    kind = type(model).__name__
    lacking = [name for name in ("stages", "inputs", "loss_of") if not hasattr(model, name)]
    if lacking:
        raise RecipeError(
            f"training.parallel.pipeline: {kind} has no {', '.join(lacking)} and cannot be cut by layers (see "
            "docs/models.md); use data_parallel"
        )
    names = [name for name, _ in model.stages()]
    outside = [
        name
        for name, tensor in model.state_dict().items()
        if not any(name.startswith(f"{layer}.") for layer in names) and not tensor.stop_gradient
    ]
    if outside:
        raise RecipeError(
            f"training.parallel.pipeline: {', '.join(outside)} of {kind} are in none of its layers {', '.join(names)}"
        )


def cut_stages(
    model: Any, parallel: Parallel, kept: Sequence[str], sample: Callable[[], Any], world: Group
) -> tuple[str, ...]:
    """Name of each stage's first layer: as the recipe says, as a commit says that is gone on from, or as measured.

    kept: the commit's; another number of stages, or layers that are no more, count as none. What rank 0 measured
    holds for all. Raises RecipeError for names that are not layers in their order, or more stages than layers.
    """
    names = [name for name, _ in model.stages()]
    count = parallel.pipeline
    if len(names) < count:
        raise RecipeError(
            f"training.parallel.pipeline: {count} stages of {len(names)} layers ({', '.join(names)}); use at most "
            f"{len(names)}"
        )
    if parallel.stages:
        places = [names.index(name) if name in names else -1 for name in parallel.stages]
        if len(places) != count - 1 or min(places) < 1 or places != sorted(set(places)):
            raise RecipeError(
                f"training.parallel.stages: {', '.join(parallel.stages)} must be {count - 1} of the layers behind the "
                f"first, in their order: {', '.join(names)}"
            )
        return (names[0], *parallel.stages)
    if len(kept) == count and kept[0] == names[0] and [name for name in names if name in kept] == list(kept):
        return tuple(kept)
    costs = paddle.zeros([len(names)], "float64")
    if world.rank == 0:
        costs = paddle.to_tensor(np.array(costs_of(model, sample), np.float64))
    world.broadcast_(costs)
    return tuple(names[start] for start in balance(costs.numpy().tolist(), count))


def costs_of(model: Any, sample: Callable[[], Any]) -> list[float]:
    """Seconds of forward and backward of each layer over the sample's rows; running means are left as they were."""
    batch = sample()
    buffers = [(one, one.clone()) for one in model.state_dict().values() if one.stop_gradient]
    best = [float("inf")] * len(model.stages())
    for run in range(RUNS):
        seed_all(run)
        hidden = model.inputs(batch)
        for place, (_, layer) in enumerate(model.stages()):
            begin = time.perf_counter()
            taken = as_tuple(hidden)
            given = [one.detach() for one in taken]
            for one in given:
                one.stop_gradient = not one.is_floating_point()
            hidden = layer(given[0] if not isinstance(hidden, tuple) else tuple(given))
            outputs = [one for one in as_tuple(hidden) if not one.stop_gradient]
            if outputs:
                paddle.autograd.backward(outputs, [paddle.ones_like(one) for one in outputs])
            best[place] = min(best[place], time.perf_counter() - begin)
            hidden = tuple(one.detach() for one in hidden) if isinstance(hidden, tuple) else hidden.detach()
    drop_gradients(model.parameters())
    with paddle.no_grad():
        for buffer, before in buffers:
            buffer.set_value(before)
    return best


def balance(costs: Sequence[float], count: int) -> list[int]:
    """Where each of `count` runs of the costs begins, so that the dearest run is as cheap as can be; none is empty.

    By dynamic programming over (runs, first costs); of equal ones the earliest cut.
    """
    size = len(costs)
    sums = np.concatenate([[0.0], np.cumsum(costs)])
    best = np.full((count + 1, size + 1), np.inf)
    cut = np.zeros((count + 1, size + 1), np.int64)
    best[0, 0] = 0.0
    for runs in range(1, count + 1):
        for stop in range(runs, size + 1):
            for start in range(runs - 1, stop):
                dearest = max(best[runs - 1, start], sums[stop] - sums[start])
                if dearest < best[runs, stop]:
                    best[runs, stop], cut[runs, stop] = dearest, start
    starts, stop = [], size
    for runs in range(count, 0, -1):
        stop = int(cut[runs, stop])
        starts.append(stop)
    return starts[::-1]


def keep_stage(model: Any, firsts: Sequence[str], stage: int) -> list[Callable[[Any], Any]]:
    """The layers of one stage; those of the others are taken out of the model, whose other names stay as they are."""
    layers = model.stages()
    names = [name for name, _ in layers]
    bounds = [*(names.index(first) for first in firsts), len(names)]
    mine = names[bounds[stage] : bounds[stage + 1]]
    for name in names:
        if name in mine:
            continue
        *parents, own = name.split(".")
        parent = model
        for one in parents:
            parent = parent._sub_layers[one]
        parent._sub_layers.pop(own, None)
    return [layer for name, layer in layers if name in mine]


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tensor as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)
