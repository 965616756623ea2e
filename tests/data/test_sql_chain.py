"""A night whose sources are queries against one whose sources are files: the same rows, so the same samples on."""

from __future__ import annotations

import csv
import gzip
import sqlite3
from pathlib import Path

import pytest

from paddlewheel.data.plan import plan
from paddlewheel.errors import DataError
from paddlewheel.recipe import Recipe

from .conftest import World, make_recipe

DAYS = ["2013-11-01", "2013-11-02", "2013-11-03", "2013-11-04"]
QUERIES = {
    "data.rows": ("trips", "SELECT * FROM trips WHERE date >= {start} AND date < {end}"),
    "data.joins.0.source": ("weather", "SELECT * FROM weather WHERE at >= {start} AND at < {end} ORDER BY at, station"),
    "data.joins.1.source": ("planes", "SELECT * FROM planes"),
}


def load_tables(world: World, days: list[str], connection: sqlite3.Connection) -> None:
    """The landing files as tables, every column a text or null as it stands there."""
    files = {
        "trips": [world.landing / f"trips/{day}.csv.gz" for day in days],
        "weather": [world.landing / f"weather/{day}.csv.gz" for day in days],
        "planes": [world.landing / "planes.csv.gz"],
    }
    for table, paths in files.items():
        rows = [
            row for path in paths for row in csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines())
        ]
        names = ", ".join(rows[0])
        connection.execute(f"CREATE TABLE {table} ({names})")
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(
            f"INSERT INTO {table} VALUES ({marks})", [[value or None for value in row.values()] for row in rows[::-1]]
        )


def recipe_of_queries(connection: str) -> Recipe:
    changes = {}
    for path, (_, query) in QUERIES.items():
        changes[f"{path}.path"] = ""
        changes[f"{path}.sql"] = {"connection": connection, "query": query}
    return make_recipe(**{path.replace(".", "__"): value for path, value in changes.items()})


def test_a_night_of_queries_makes_what_the_night_of_files_made(world: World, tmp_path: Path) -> None:
    world.write_days("2013-11-01", 4)
    database = tmp_path / "landing.db"
    with sqlite3.connect(database) as connection:
        load_tables(world, DAYS, connection)
    connection.close()
    of_files = world.chain(make_recipe(), "2013-11-04")
    of_queries = world.chain(recipe_of_queries(f"sqlite:///{database}"), "2013-11-04")
    for step in ("shard", "features"):
        assert files_of(world, of_queries[step]) == files_of(world, of_files[step])
    assert [files_of(world, uri) for uri in of_queries["packed"]] == [
        files_of(world, uri) for uri in of_files["packed"]
    ]


def test_days_without_rows_are_told_when_the_night_is_planned(world: World, tmp_path: Path) -> None:
    world.write_days("2013-11-01", 3)
    with sqlite3.connect(tmp_path / "landing.db") as connection:
        load_tables(world, DAYS[:3], connection)
    connection.close()
    told = "the query of 'trips' gives no row for 2013-11-04; fill the table, or choose another partition"
    with pytest.raises(DataError, match=told):
        plan(recipe_of_queries(f"sqlite:///{tmp_path}/landing.db"), "2013-11-04", store=world.store)


def test_a_night_that_runs_again_asks_for_no_rows_that_it_has(world: World, tmp_path: Path) -> None:
    world.write_days("2013-11-01", 4)
    database = tmp_path / "landing.db"
    with sqlite3.connect(database) as connection:
        load_tables(world, DAYS, connection)
    recipe = recipe_of_queries(f"sqlite:///{database}")
    first = world.chain(recipe, "2013-11-04")
    before = world.tree()
    assert world.chain(recipe, "2013-11-04") == first
    assert world.tree() == before
    connection.execute("DELETE FROM trips WHERE rowid = 1")  # of the last day: written in reverse
    connection.commit()
    connection.close()
    again = world.chain(recipe, "2013-11-04")
    made = sorted({key.split("/")[1] for key in world.tree().keys() - before.keys()})
    assert "mini.trips" in made
    assert not {"mini.weather", "mini.planes"} & set(made)
    assert again["packed"] != first["packed"]


def files_of(world: World, uri: str) -> list[tuple[str, str]]:
    return [(file.key, file.digest) for file in world.manifest(uri).files]
