"""A night whose sources are PostgreSQL's tables makes what the night of the same files made."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from paddlewheel.storage.local import LocalStore

from ...data.conftest import World, make_recipe
from .server import Postgres

pytestmark = pytest.mark.services
TABLES = """
CREATE TABLE trips (date date, number int8, hour_utc timestamptz, minute int2, origin text, plane text,
  miles numeric(8, 1), left_at int4, delay float8);
CREATE TABLE weather (station text, at timestamp, wind float8, verdict text);
CREATE TABLE planes (tail text PRIMARY KEY, seats int4);
"""
QUERIES = {
    "data__rows": "SELECT * FROM trips WHERE date >= {start} AND date < {end}",
    "data__joins__0__source": "SELECT * FROM weather WHERE at >= {start} AND at < {end} ORDER BY at, station",
    "data__joins__1__source": "SELECT tail, seats FROM planes",
}


def insert_files(postgres: Postgres, table: str, paths: list[Path]) -> None:
    """The rows of landing files, last one first."""
    rows = [row for path in paths for row in csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines())]
    lines = ["(" + ", ".join(f"'{value}'" if value else "NULL" for value in row.values()) + ")" for row in rows[::-1]]
    postgres.run(f"INSERT INTO {table} VALUES {', '.join(lines)}", database="night")


def test_a_night_of_tables_makes_what_the_night_of_files_made(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(store=LocalStore(tmp_path / "root"))
    world.write_days("2013-11-01", 4)
    postgres.run("CREATE DATABASE night")
    monkeypatch.setenv("AIRFLOW_CONN_NIGHT", postgres.url(database="night"))
    landing = world.landing
    postgres.run(TABLES, database="night")
    for table in ("trips", "weather"):
        insert_files(postgres, table, sorted(landing.glob(f"{table}/*")))
    insert_files(postgres, "planes", [landing / "planes.csv.gz"])
    changes = {f"{path}__path": "" for path in QUERIES}
    of_queries = make_recipe(
        **changes, **{f"{path}__sql": {"connection": "night", "query": query} for path, query in QUERIES.items()}
    )
    files, tables = world.chain(make_recipe(), "2013-11-04"), world.chain(of_queries, "2013-11-04")
    for step in ("shard", "features"):
        assert _files(world, tables[step]) == _files(world, files[step])
    assert [_files(world, uri) for uri in tables["packed"]] == [_files(world, uri) for uri in files["packed"]]


def _files(world: World, uri: str) -> list[tuple[str, str]]:
    return [(file.key, file.digest) for file in world.manifest(uri).files]
