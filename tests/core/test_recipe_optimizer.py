"""How a network is fitted: what a recipe may not say of optimizers, schedules, compiled graphs and losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlewheel.errors import RecipeError
from paddlewheel.recipe_check import load_recipe

FLIGHTS = Path(__file__).parents[2] / "recipes/flights_delay.yaml"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["training.optimizer.name=adamw", "training.optimizer.params.bata1=0.9"],
            "training.optimizer.params.bata1: 0.9: adamw takes beta1, beta2, epsilon, amsgrad; did you mean 'beta1'?",
        ),
        (
            ["training.optimizer.name=sgd", "training.optimizer.params.momentum=0.9"],
            "training.optimizer.params.momentum: 0.9: sgd takes no params",
        ),
        (
            ["training.optimizer.name=momentum", "training.optimizer.params.momentum=1.5"],
            "training.optimizer.params.momentum: 1.5: must be a number from 0 and below 1",
        ),
        (
            ["training.optimizer.name=adam", "training.optimizer.params.epsilon=0"],
            "training.optimizer.params.epsilon: 0: must be a number above 0",
        ),
        (
            ["training.optimizer.name=rmsprop", "training.optimizer.params.centered=1"],
            "training.optimizer.params.centered: 1: must be true or false",
        ),
        (["training.optimizer.name=adan"], "training.optimizer.name: 'adan'"),
        (
            ["training.optimizer.learning_rate=0.01", "training.schedule.floor=0.02"],
            "training.schedule.floor: 0.02: must not be above the peak of the learning rate, 0.01",
        ),
        (["training.schedule={name: multistep}"], "multistep needs the shares of the training after which the rate"),
        (
            ["training.schedule={name: cosine, milestones: [0.5]}"],
            "training.schedule.milestones: [0.5]: cosine has none; use training.schedule.name: multistep",
        ),
        (
            ["resources.device=gpu", "training.to_static=true", "training.recompute=[deep.*]"],
            "training.recompute: ['deep.*']: a compiled graph keeps what its layers computed",
        ),
        (
            ["resources.device=gpu", "training.to_static=true", "training.strategy=pipeline_parallel"],
            "training.to_static: True: compiles whole networks, and pipeline_parallel splits them; leave it out",
        ),
        (
            ["training.to_static=true"],
            "training.to_static: True: brings nothing on a CPU; leave it out, or use resources.device: gpu",
        ),
        (["training.fused=true"], "training.fused: True: brings nothing on a CPU; leave it out, or use"),
        (["training.precision=fp16"], "training.precision: 'fp16': a CPU computes in float32 only; use float32, or"),
        (["training.loss=no.such.module:loss"], "training.loss: 'no.such.module:loss': there is no module"),
    ],
)
def test_a_fault_of_how_a_network_is_fitted_says_the_way_out(overrides: list[str], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(FLIGHTS, overrides)
    assert words in str(caught.value)


def test_floor_is_held_against_the_scaled_peak_when_a_base_batch_is_given() -> None:
    scaled = ["training.optimizer.learning_rate=0.01", "training.global_batch=1024", "training.schedule.floor=0.02"]
    recipe = load_recipe(FLIGHTS, [*scaled, "training.optimizer.base_batch=256"])
    assert recipe.training.schedule.floor == 0.02
