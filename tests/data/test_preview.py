"""`paddlewheel data preview`: rows as typed, refusals with reasons, statistics; of files and of a query."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import yaml

from paddlewheel.cli import main
from paddlewheel.data.landing.preview import lines_of, preview
from paddlewheel.errors import DataError, RecipeError

from .conftest import TREE, World, make_recipe, trip


def test_the_first_rows_of_the_newest_day_are_typed_and_refusals_told(world: World) -> None:
    world.write_days("2013-11-01", 2)
    rows = [trip("2013-11-03", number, delay="x" if number == 2 else "20") for number in range(1, 7)]
    world.write_trips("2013-11-03", rows)
    found = preview(make_recipe(), source=None, partition=None, rows=2, store=world.store)
    assert (found.partition, found.files, found.looked_at) == ("2013-11-03", ("trips/2013-11-03.csv.gz",), 6)
    assert found.frame.select("number", "delay", "plane").rows() == [(1, 20.0, "N1"), (3, 20.0, "N0")]
    assert [(entry["line"], entry["reasons"][0]["column"]) for entry in found.refused] == [(3, "delay")]
    assert (found.statistics.rows, found.statistics["number"].maximum) == (5, 6)
    lines = lines_of(found)
    assert lines[0] == "trips of 2013-11-03: 6 rows looked at in 1 of 1 file, 1 refused"
    assert "  trips/2013-11-03.csv.gz line 3: delay: 'x': not a finite number (float64)" in lines
    assert "date      date       0.0%     1         2013-11-03" in "\n".join(lines)
    assert list(world.store.list("datasets")) == []


def test_a_day_and_a_source_can_be_asked_for(world: World) -> None:
    world.write_days("2013-11-01", 2)
    found = preview(make_recipe(), source="weather", partition="2013-11-01", rows=3, store=world.store)
    assert (found.partition, len(found.frame), found.looked_at) == ("2013-11-01", 3, 8)
    assert preview(make_recipe(), source="planes", partition=None, rows=9, store=world.store).partition is None


def test_a_file_that_cannot_be_read_is_told_and_the_next_is_looked_at(world: World) -> None:
    recipe = make_recipe(data__rows__path="trips/{partition}/*.csv.gz")
    good = world.write_trips("2013-11-01/b", [trip("2013-11-01", 1)])
    (good.parent / "a.csv.gz").write_bytes(good.read_bytes()[:20])
    found = preview(recipe, source=None, partition=None, rows=5, store=world.store)
    assert found.files == ("trips/2013-11-01/a.csv.gz", "trips/2013-11-01/b.csv.gz")
    assert "a.csv.gz: the gzip file is cut off after 20 bytes" in found.unreadable[0]
    assert len(found.frame) == 1


def test_what_is_not_there_is_told(world: World) -> None:
    world.write_days("2013-11-01", 2)
    with pytest.raises(DataError, match=r"no file like trips/2013-12-24\.csv\.gz; it has files of 2013-11-01\.\.2013"):
        preview(make_recipe(), source=None, partition="2013-12-24", rows=5, store=world.store)
    with pytest.raises(RecipeError, match="has no source 'trip'; it has trips, weather, planes"):
        preview(make_recipe(), source="trip", partition=None, rows=5, store=world.store)


def test_the_command_prints_the_rows_of_a_query(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(tmp_path / "planes.db") as connection:
        connection.execute("CREATE TABLE planes (tail TEXT, seats INTEGER)")
        connection.execute("INSERT INTO planes VALUES ('N1', 200), ('N0', 9007199254740993)")
    connection.close()
    sql = {"connection": f"sqlite:///{tmp_path}/planes.db", "query": "SELECT * FROM planes"}
    recipe = tmp_path / "mini.yaml"
    joins = [{**join, "source": dict(join["source"])} for join in TREE["data"]["joins"]]
    del joins[1]["source"]["path"]
    joins[1]["source"]["sql"] = sql
    recipe.write_text(yaml.safe_dump({**TREE, "data": {**TREE["data"], "joins": joins}}))
    root = ["--root", str(world.store.folder)]
    assert main(["data", "preview", str(recipe), "--source", "planes", "--json", *root]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [
        {"tail": "N0", "seats": 9007199254740993},
        {"tail": "N1", "seats": 200},
    ]
    assert main(["data", "preview", str(recipe), "--source", "planes", *root]) == 0
    assert "planes: 2 rows looked at in 1 of 1 file, 0 refused" in capsys.readouterr().out
