"""Guard, validation, shares and loss scaling: what cannot work together is told when the recipe is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlewheel.errors import RecipeError
from paddlewheel.recipe_check import load_recipe

FLIGHTS = Path(__file__).parents[2] / "recipes/flights_delay.yaml"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["training.sync=local_sgd", "training.guard.norm_factor=10"],
            "training.guard.norm_factor: 10.0: local_sgd never forms the gradient of all ranks; leave it out",
        ),
        (
            ["training.sync=local_sgd", "training.precision=fp16", "resources.device=gpu"],
            "training.precision: 'fp16': the scale of a loss must be one on all ranks, which local_sgd cannot keep",
        ),
        (
            ["training.validation.patience=2"],
            "training.validation.patience: 2: nothing is measured without rows kept aside; set training.validation.f",
        ),
        (
            ["training.epochs=3", "training.validation.fraction=0.1", "training.validation.every_epochs=4"],
            "training.validation.every_epochs: 4: is never reached in 3 epochs; use at most that many",
        ),
        (
            ["training.validation.fraction=0.1", "model={name: resnet18, params: {image: [3, 2, 2], classes: 2}}"],
            "training.validation.metric: 'log_loss': is of networks that give one logit a row (wide_deep, deepfm); use",
        ),
        (
            ["training.validation={fraction: 0.1, patience: 2}", "training.keep_best=false"],
            "training.keep_best: False: with training.validation.patience the best commit is the result; leave it out",
        ),
        (
            ["training.parallel.shares=[1, 2]", "resources.ranks_per_node=3"],
            "training.parallel.shares: [1.0, 2.0]: needs a weight for each of the 3 data ranks that resources ask for",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_told_with_the_way_out(overrides: list[str], told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(FLIGHTS, overrides)
    assert any(told in line for line in str(caught.value).splitlines()), str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.guard.norm_factor=10", "training.guard.max_skips=0"],
        ["training.validation.fraction=0.1", "training.validation.patience=2", "training.validation.metric=auc"],
        ["training.parallel.shares=[1, 2, 1]", "resources.ranks_per_node=3"],
        ["training.parallel.shares=measured", "resources.ranks_per_node=2"],
        ["training.precision=fp16", "resources.device=gpu"],
    ],
)
def test_a_setting_that_works_is_taken(overrides: list[str]) -> None:
    load_recipe(FLIGHTS, overrides)
