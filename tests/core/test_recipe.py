"""Recipes: five mistakes are told as five, each with path, value, what is allowed and the nearest right name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import dump
from paddlewheel.recipe_check import load_recipe

FLIGHTS = Path(__file__).parents[2] / "recipes/flights_delay.yaml"
DISTANCE = next(i for i, one in enumerate(yaml.safe_load(FLIGHTS.read_text())["features"]) if one["name"] == "distance")


def _told(overrides: list[str]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(FLIGHTS, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_five_mistakes_are_told_at_once() -> None:
    told = _told(
        [
            "training.epochs=0",
            "model.nmae=x",
            "gate.metric=acu",
            "features.0.kind=categry",
            "training.strategy=data_paralel",
        ]
    )
    assert told[0].endswith("flights_delay.yaml: 5 faults:")
    assert sorted(line.strip() for line in told[1:]) == [
        "features.0.kind: 'categry': must be one of category, hash, cross, standard, log1p, clip, quantile, clock, "
        "cyclic, hour, weekday, month, year_day, age, multi, words, characters, bytes; did you mean 'category'?",
        "gate.metric: 'acu': must be one of auc, log_loss; did you mean 'auc'?",
        "model.nmae: 'x': no such field; here stand params, name; did you mean 'name'?",
        "training.epochs: 0: must be greater than or equal to 1",
        "training.strategy: 'data_paralel': must be one of single, data_parallel, zero, tensor_parallel, "
        "pipeline_parallel, mesh (or package.module:name of your "
        "own); did you mean 'data_parallel'?",
    ]


@pytest.mark.parametrize("column", ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"])
def test_a_feature_that_is_known_only_after_is_refused_by_name(column: str) -> None:
    told = _told([f"features.{DISTANCE}.columns=[{column}]"])
    assert f"features.{DISTANCE}.columns.0: '{column}'" in told[1]
    assert "known only after the prediction" in told[1]


def test_a_leak_is_told_when_the_recipe_is_malformed_elsewhere_too() -> None:
    told = _told([f"features.{DISTANCE}.columns=[dep_delay]", "training.epochs=many"])
    assert len(told) == 3
    assert any("'dep_delay'" in line and "is known only after" in line for line in told)


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.epochs=0", "model.name=deepfn", "features.0.columns=[dep_delay]", "evaluation.slices=[carier]"],
        ["training=null", "gate.metric=acu", "data.label.column=distance", "features.7.buckets=null"],
        ["features.0.kind=categry", "features.1.columns=[dep_delay]", "data.rows.key=[flihgt]", "name=A"],
        ["features=null", "data.rows.path=x", "data.window.train_days=0", "resources.launcher=slurm"],
        ["data.rows.columns.0.type=integer", "features.1.columns=[air_time]", "evaluation.slices=[carier]", "nmae=3"],
    ],
)
def test_what_one_field_says_of_another_is_told_beside_malformed_ones(overrides: list[str]) -> None:
    told = _told(overrides)
    assert told[0].endswith(f": {len(overrides)} faults:"), told
    for override in overrides:
        assert any(line.strip().startswith(override.partition("=")[0]) for line in told[1:]), (override, told)


@pytest.mark.parametrize(
    "path", ["training.optimizer.learning_rate", "data.label.above", "gate.max_loss", "data.joins.0.tolerance_hours"]
)
@pytest.mark.parametrize("value", [".inf", ".nan"])
def test_a_number_that_is_none_is_refused(path: str, value: str) -> None:
    assert any(line.startswith(f"  {path}: ") for line in _told([f"{path}={value}"])[1:])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.precision=bf16", "a CPU computes in float32 only; use float32, or resources.device: gpu"),
        ("training.strategy=parameter_server", "not in this version; use single or data_parallel or zero"),
        ("training.parallel.zero_stage=2", "counts under training.strategy zero alone; leave it out"),
        ("training.parallel.tensor=2", "strategy data_parallel does not split a model so; use tensor_parallel or mesh"),
        ("training.writers=[tensorboard]", "training.writers.0: 'tensorboard': must be "),
        ("training.strategy=single", "single is for one rank, resources ask for 2; use data_parallel"),
        ("training.strategy=no.such.module:thing", "there is no module"),
        ("resources.launcher=slurm", "not in this version; use local"),
        ("features.0.buckets=7", "kind category takes min_count"),
        ("features.7.buckets=null", "kind cross needs it"),
        ("features.0.columns=[carier]", "did you mean 'carrier'?"),
        (f"features.{DISTANCE}.columns=[carrier]", "kind log1p needs a number, this is a string"),
        ("features.1.name=carrier", "stands there twice"),
        ("evaluation.slices=[orign]", "did you mean 'origin'?"),
        ("evaluation.slices=[dep_delay]", "evaluation.slices.0: 'dep_delay': is known only after the prediction"),
        ("data.rows.key=[flihgt]", "did you mean 'flight'?"),
        ("data.rows.path=flights.csv", "must contain {partition}"),
        ("data.rows.columns.9.pattern='['", "must be a regular expression"),
        ("data.rows.columns.0.allowed=[twelve]", "0.allowed.0: 'twelve': is not of the column's type int64"),
        ("data.rows.columns.12.allowed=[NO, EWR]", "12.allowed.0: False: is not of the column's type string"),
        ("data.rows.columns.12.allowed=[]", "names no value, so every row would be refused"),
        ("data.rows.path={partition}/x.csv", "must be a YAML value; a text with { [ : or # in it needs quotes"),
        ("data.drift.psi=0.5", "must be a mapping, as {field: value}"),
        ("data.rows.name=Rows", "must match ^[a-z][a-z0-9_]*$"),
        ("features=[]", "must have at least 1 of them"),
        ("data.joins.0.left_time=null", "an asof join needs it"),
        ("data.joins.0.left_time.column=dep_time", "known only after"),
        ("data.joins.1.keys={tailnmu: tailnum}", "did you mean 'tailnum'?"),
        ("data.joins.9.kind=asof", "the recipe has no such place to set"),
        ("data.sharding.by=sizes", "did you mean 'size'?"),
        ("data.sharding.by=no.such.module:thing", "there is no module"),
        ("data.rows.columns.0.name=label", "is the name of the sample's label in a sample; rename the column"),
        ("data.rows.columns.0.name=weather_temp", "'weather_temp': is the name of a column of data.rows in a sample"),
        ("version=2", "must be one of 1"),
        ("training.epochs", "must be path=value"),
    ],
)
def test_a_fault_between_fields_says_the_way_out(override: str, words: str) -> None:
    told = _told([override])
    assert any(words in line for line in told[1:]), told


def test_an_override_changes_one_field_and_the_digest() -> None:
    plain, changed = load_recipe(FLIGHTS), load_recipe(FLIGHTS, ["training.optimizer.learning_rate=0.5"])
    assert (plain.training.optimizer.learning_rate, changed.training.optimizer.learning_rate) == (0.002, 0.5)
    assert plain.digest != changed.digest
    assert load_recipe(dump(plain)) == plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "not YAML"),
        ("- a\n- b\n", "a recipe is a YAML mapping"),
        ("", "a recipe is a YAML mapping"),
        ("name: x\n", "features: is needed and missing"),
        ("a: !!python/object/apply:os.system ['true']\n", "not YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match="broken.yaml") as caught:  # noqa: RUF043
        load_recipe(path)
    assert words in str(caught.value)


def test_a_missing_file_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "there.yaml").write_text("")
    with pytest.raises(RecipeError, match=r"there\.yaml"):
        load_recipe(tmp_path / "missing.yaml")


def test_every_recipe_of_the_project_is_fine() -> None:
    for path in FLIGHTS.parent.glob("*.yaml"):
        recipe = load_recipe(path)
        tree: dict[str, Any] = yaml.safe_load(path.read_text())
        assert recipe.name == tree["name"] == path.stem
