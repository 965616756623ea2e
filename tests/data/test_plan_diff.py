"""What one plan lists that another does not."""

from __future__ import annotations

import pytest

from paddlewheel.data.landing.plan_diff import diff_plans, newest_other
from paddlewheel.data.plan import plan
from paddlewheel.errors import RecipeError

from .conftest import World, make_recipe, trip

DAYS = ["2013-10-28", "2013-10-29", "2013-10-30", "2013-10-31", "2013-11-01"]
MANY = {"data__rows__path": "trips/{partition}/*.csv.gz"}


def write(world: World, day: str, name: str, numbers: range) -> None:
    world.write(f"trips/{day}/{name}.csv.gz", "\n".join(["date,number", *(trip(day, n) for n in numbers)]))


@pytest.fixture
def many(world: World) -> World:
    """Two files of trips a day."""
    world.write_days(DAYS[0], 5)
    for day in DAYS:
        for name in ("a", "b"):
            write(world, day, name, range(1, 3))
    return world


def test_every_difference_is_told_when_a_day_passed_and_files_came_went_and_changed(many: World) -> None:
    older = plan(make_recipe(**MANY), DAYS[3], store=many.store)
    write(many, DAYS[1], "b", range(1, 4))
    write(many, DAYS[2], "c", range(1, 3))
    (many.landing / f"trips/{DAYS[3]}/a.csv.gz").unlink()
    newer = plan(make_recipe(**MANY), DAYS[4], store=many.store)
    diff = diff_plans(newer, older, store=many.store)
    trips = next(one for one in diff.sources if one.source == "trips")
    assert trips.to_json() == {
        "source": "trips",
        "new": [f"trips/{DAYS[2]}/c.csv.gz", f"trips/{DAYS[4]}/a.csv.gz", f"trips/{DAYS[4]}/b.csv.gz"],
        "changed": [f"trips/{DAYS[1]}/b.csv.gz"],
        "gone": [f"trips/{DAYS[3]}/a.csv.gz"],
        "left": 2,
        "unchanged": 4,
    }
    assert {one.source: (one.new, one.unchanged) for one in diff.sources if one.source != "trips"} == {
        "planes": ([], 1),
        "weather": ([f"weather/{DAYS[4]}.csv.gz"], 4),
    }
    assert diff.lines()[0] == f"against the plan of {DAYS[3]} ({older}):"
    assert "trips: 3 new, 1 changed, 1 gone, 4 as before, 2 left with their days" in diff.lines()
    assert f"  changed trips/{DAYS[1]}/b.csv.gz" in diff.lines()


def test_the_plan_made_last_is_compared_with_when_none_is_named(many: World) -> None:
    first = plan(make_recipe(**MANY), DAYS[3], store=many.store)
    assert newest_other(first, store=many.store) is None
    second = plan(make_recipe(**MANY), DAYS[4], store=many.store)
    assert newest_other(second, store=many.store) == first
    third = plan(make_recipe(**MANY, training__epochs=2), DAYS[3], store=many.store)
    assert newest_other(first, store=many.store) == third


def test_recipe_error_when_the_plans_are_of_two_recipes(many: World) -> None:
    first = plan(make_recipe(), DAYS[3], store=many.store)
    other = plan(make_recipe(name="other"), DAYS[3], store=many.store)
    with pytest.raises(RecipeError, match=r"is a plan of mini, .* one of other: nothing to compare"):
        diff_plans(first, other, store=many.store)
