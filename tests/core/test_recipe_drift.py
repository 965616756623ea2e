"""Drift limits that cannot be meant are told when the recipe is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlewheel.errors import RecipeError
from paddlewheel.recipe_check import load_recipe

FLIGHTS = Path(__file__).parents[2] / "recipes/flights_delay.yaml"


def told(*overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(FLIGHTS, list(overrides))
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_limits_are_told_when_they_stand_in_the_wrong_order() -> None:
    assert told("data.drift.psi={warn: 0.5, fail: 0.25}") == ["data.drift.psi.fail: 0.25: must not be below warn 0.5"]


@pytest.mark.parametrize("name", ["missing", "outside", "divergence", "new"])
def test_limit_is_told_when_no_value_passes_it(name: str) -> None:
    (line,) = told(f"data.drift.{name}={{fail: 1.0}}")
    assert line.startswith(f"data.drift.{name}.fail: 1.0: must be below 1")


def test_columns_limit_is_told_when_its_type_has_no_such_measure() -> None:
    lines = told("data.rows.columns.18.drift={psi: {warn: 0.4}, new: {fail: 0.2}}")  # time_hour
    assert sorted(lines) == [
        "data.rows.columns.18.drift.new: {'warn': None, 'fail': 0.2}: is measured of columns of type string, bool; "
        "this is a timestamp",
        "data.rows.columns.18.drift.psi: {'warn': 0.4, 'fail': None}: is measured of columns of type string, bool, "
        "int64, float64, binary; this is a timestamp",
    ]


def test_limits_are_taken_when_they_can_be_meant() -> None:
    recipe = load_recipe(FLIGHTS, ["data.drift.psi={warn: 0.5, fail: 3}", "data.rows.columns.18.drift={psi: {}}"])
    assert recipe.data.drift.psi.fail == 3.0
    own = recipe.data.rows.columns[18].drift
    assert own is not None
    assert own.psi.warn is None
