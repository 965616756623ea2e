"""What the DAG files decide themselves: the partition, the form's changes, the card's address, the schema file."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from chain_wiring import FIELDS, choose_partition, read_recipe_tree, read_schema
from paddle_cluster.card_link import link_of
from paddle_cluster.form import build_params, find_node, read_changes
from paddlewheel.recipe_check import load_recipe
from paddlewheel.recipe_schema import schema_text

RECIPES = Path(__file__).parents[2] / "recipes"
FLIGHTS = RECIPES / "flights_delay.yaml"
NIGHT = datetime.datetime(2013, 11, 3, tzinfo=datetime.UTC)
DUE = datetime.datetime(2013, 11, 9, 4, 5, tzinfo=datetime.UTC)


def test_the_partition_is_the_logical_date_when_there_is_one() -> None:
    assert choose_partition(asked=None, logical_date=NIGHT, run_after=DUE) == ("2013-11-03", "the run's logical date")


def test_the_partition_is_the_forms_when_it_is_filled_in() -> None:
    assert choose_partition(asked="2013-11-05", logical_date=NIGHT, run_after=DUE) == (
        "2013-11-05",
        "the run's parameters",
    )


def test_the_partition_is_the_day_due_when_nothing_else_says_it() -> None:
    partition, origin = choose_partition(asked=None, logical_date=None, run_after=DUE)
    assert partition == "2013-11-09"
    assert "no logical date" in origin


def test_only_what_was_changed_in_the_form_overrides_the_recipe() -> None:
    tree, schema = read_recipe_tree(FLIGHTS), read_schema()
    params = {name: param.value for name, param in build_params(schema, tree, FIELDS).items()}
    assert read_changes(params, schema, tree, FIELDS) == {}
    changed = {**params, "training.epochs": 1, "gate.max_loss": 0.5, "partition": "2013-11-01"}
    changes = read_changes(changed, schema, tree, FIELDS)
    assert changes == {"training.epochs": 1, "gate.max_loss": 0.5}
    assert load_recipe(FLIGHTS, changes).training.epochs == 1


def test_every_field_of_the_form_exists_in_a_recipe() -> None:
    schema = read_schema()
    for field in FIELDS:
        assert "type" in find_node(schema, field.path) or "enum" in find_node(schema, field.path), field.path
    with pytest.raises(KeyError):
        find_node(schema, "training.epoch")


def test_the_schema_file_is_what_the_recipe_says() -> None:
    committed = (RECIPES / "recipe.schema.json").read_text()
    assert committed == schema_text(), "run: python -m paddlewheel.recipe_schema recipes/recipe.schema.json"


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ({"uri": "file:///x/var/runs/0a1b2c3d4e/result.json", "steps": 3}, "/paddlewheel/runs/0a1b2c3d4e/card"),
        ("file:///x/var/runs/0a1b2c3d4e/cards/77aa88bb/manifest.json", "/paddlewheel/runs/0a1b2c3d4e/card"),
        ("file:///x/runs/<script>/card", ""),
        ({"other": 1}, ""),
        (None, ""),
    ],
)
def test_the_link_leads_to_the_runs_card(value: object, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080/")
    assert link_of(value) == (f"http://127.0.0.1:8080{address}" if address else "")
