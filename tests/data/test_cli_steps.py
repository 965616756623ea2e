"""The first steps from the command line: what is printed, and where."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddlewheel.cli import main
from paddlewheel.recipe import dump

from .conftest import World, make_recipe, trip

DAYS = ["2013-10-28", "2013-10-29", "2013-10-30", "2013-10-31"]


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def recipe(world: World, tmp_path: Path) -> str:
    """A recipe's file; JSON is YAML."""
    world.write_days(DAYS[0], 4)
    (path := tmp_path / "mini.yaml").write_text(json.dumps(dump(make_recipe())))
    return str(path)


def test_the_newest_day_is_planned_when_none_is_named(
    world: World, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", recipe, "--root", str(world.store.folder)]) == 0
    told = capsys.readouterr()
    (uri,) = told.out.splitlines()
    assert world.manifest(uri).facts["partition"] == DAYS[-1]
    assert f"partition {DAYS[-1]}: the newest day of which the landing folder holds every source" in told.err


def test_plan_tells_what_changed_since_the_plan_before(
    world: World, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ["--root", str(world.store.folder)]
    main(["plan", recipe, *root])
    older = capsys.readouterr().out.strip()
    world.write_trips(DAYS[1], [trip(DAYS[1], 9)])
    main(["plan", recipe, *root])
    told = capsys.readouterr()
    newer = told.out.strip()
    assert "trips: 0 new, 1 changed, 0 gone, 3 as before" in told.err
    assert f"changed trips/{DAYS[1]}.csv.gz" in told.err
    assert main(["data", "diff", newer, older, *root, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert [one["changed"] for one in tree["sources"] if one["source"] == "trips"] == [[f"trips/{DAYS[1]}.csv.gz"]]
    assert main(["data", "diff", newer, *root]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"against the plan of {DAYS[-1]} ({older}):"


def test_steps_follow_one_another_when_each_gets_what_the_one_before_printed(
    world: World, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ["--root", str(world.store.folder)]
    uris = []
    main(["plan", recipe, *root])
    for step in (["ingest"], ["ingest", "--batch", "0"], ["validate"]):
        uris.append(capsys.readouterr().out.strip())
        assert main([step[0], uris[-1] if step[0] == "validate" else uris[0], *step[1:], *root]) == 0
    assert uris[1] == uris[2]
    assert world.manifest(capsys.readouterr().out.strip()).kind == "validated"


@pytest.mark.parametrize(
    "case",
    [
        (["plan", "RECIPE", "--root", ""], 2, "--root is empty; name a folder or s3://[CONNECTION@]BUCKET/PREFIX"),
        (["plan", "RECIPE", "--partition", "", "--root", "ROOT"], 2, "the partition '' is not a day of the calendar"),
        (["plan", "RECIPE", "--set", "data.landing=nowhere", "--root", "ROOT"], 3, "holds no file like trips/"),
        (["plan", "RECIPE", "--set", "data.rows.path=planes.csv.gz", "--root", "ROOT"], 2, "must contain {partition}"),
        (["plan", "RECIPE", "--set", "data.landing=mini.yaml", "--root", "PARENT"], 3, "is a file; name a folder"),
    ],
)  # fmt: skip
def test_the_way_out_is_told_when_a_plan_cannot_be(
    world: World, recipe: str, capsys: pytest.CaptureFixture[str], case: tuple[list[str], int, str]
) -> None:
    arguments, code, words = case
    names = {"RECIPE": recipe, "ROOT": str(world.store.folder), "PARENT": str(world.store.folder.parent)}
    assert main([names.get(argument, argument) for argument in arguments]) == code
    assert words in capsys.readouterr().err
