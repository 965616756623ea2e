"""A training in fp16 on a CUDA device: an overflow is left out and halves the scale, and the training learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_cuda() -> None:
    import paddle

    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        pytest.skip("no CUDA device, or the CPU wheel of Paddle: see requirements-gpu.txt")


def test_first_steps_overflow_until_the_scale_fits_and_the_loss_falls(tmp_path: Path) -> None:
    """A loss times 65536 whose gradients pass 65504 in float16: the rows' numbers are about 30, not 1."""
    import paddle

    from paddlewheel.data.loader import Loader
    from paddlewheel.data.packed import Layout, split_rows
    from paddlewheel.manifest import Manifest
    from paddlewheel.recipe_check import load_recipe
    from paddlewheel.storage.local import LocalStore
    from paddlewheel.training.events import AnomalyEvent, EndStepEvent
    from paddlewheel.training.fit import prepare, progress_of
    from paddlewheel.training.step import Clock, run_step
    from paddlewheel.training.strategies import build_strategy

    paddle.set_device("gpu")
    generator = np.random.default_rng(3)
    layout = Layout(num_ids=1, num_dense=4)
    rows_NW = np.zeros((256, layout.row_bytes), np.uint8)
    parts = split_rows(rows_NW, layout)
    parts.sample_ids_B[:] = np.arange(256)
    parts.dense_BD[:] = 30 * generator.normal(size=(256, 4))
    parts.labels_B[:] = parts.dense_BD[:, 0] > 0
    loader = Loader(rows_NW=rows_NW, layout=layout, seed=1, global_batch=64)
    tree: dict[str, Any] = {
        "name": "small",
        "title": "Small",
        "data": {
            "landing": "landing",
            "rows": {
                "name": "rows",
                "path": "{partition}.csv",
                "columns": [
                    {"name": "a", "type": "int64"},
                    {"name": "label", "type": "int64", "known": "after"},
                ],
            },
            "label": {"column": "label", "above": 0},
            "window": {"train_days": 1, "holdout_days": 1},
        },
        "features": [{"name": "a", "kind": "standard", "columns": ["a"]}],
        "model": {"name": "wide_deep", "params": {"embedding": 4, "hidden": [64]}},
        "training": {"epochs": 10, "global_batch": 64, "precision": "fp16", "strategy": "single"},
        "resources": {"device": "gpu"},
    }
    recipe = load_recipe(tree)
    run = Manifest(kind="run", name="small", key="runs/k", facts={"id_sizes": [1], "num_dense": 4})
    strategy = build_strategy(recipe.training, 0, 1)
    strategy.setup()
    fit = prepare(recipe, run, None, store=LocalStore(tmp_path), loader=loader, strategy=strategy)
    events = []
    while not fit.done:
        epoch, step = 1 + fit.step // loader.steps_per_epoch, fit.step % loader.steps_per_epoch
        who = {"attempt": 1, "rank": 0}
        event, _ = run_step(fit, epoch, step, who, stop=False, commit=False, clock=Clock())
        events.append(event)
    overflows = [one for one in events if isinstance(one, AnomalyEvent)]
    losses = [one.loss for one in events if isinstance(one, EndStepEvent)]
    assert overflows
    assert {one.kind for one in overflows} == {"overflow"}
    assert progress_of(fit)["scale"]["value"] == 65536.0 / 2 ** len(overflows)
    assert progress_of(fit)["guard"]["skipped"] == 0
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.7 * losses[0]
    assert all(parameter.dtype == paddle.float32 for parameter in fit.model.parameters())
