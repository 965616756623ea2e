"""Where a source's rows come from: every fault with what is allowed, and no password told or kept."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlewheel.errors import RecipeError
from paddlewheel.recipe_check import load_recipe

FLIGHTS = Path(__file__).resolve().parents[2] / "recipes" / "flights_delay.yaml"
TREE: dict[str, Any] = yaml.safe_load(FLIGHTS.read_text(encoding="utf-8"))
PLANES = 1  # the join that takes a lookup table
QUERY = "SELECT * FROM flights WHERE day >= {start} AND day < {end}"


def told(place: str, **fields: Any) -> str:
    """The faults of the flights recipe with some fields of a source changed; None takes a field away."""
    tree = copy.deepcopy(TREE)
    source = tree["data"]["rows"] if place == "rows" else tree["data"]["joins"][PLANES]["source"]
    for name, value in fields.items():
        source.pop(name, None)
        if value is not None:
            source[name] = value
    try:
        load_recipe(tree)
    except RecipeError as error:
        return str(error)
    return ""


def sql(query: str = QUERY, connection: str = "warehouse", **more: str) -> dict[str, Any]:
    return {"path": None, "sql": {"connection": connection, "query": query, **more}}


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        ("rows", sql()),
        ("rows", sql(f"{QUERY} ORDER BY flight", "postgresql://reader@db.example:5432/warehouse")),
        ("rows", sql(version="SELECT max(changed) FROM flights WHERE day >= {start}")),
        ("planes", sql("SELECT * FROM planes", "sqlite:////data/planes.db")),
        ("planes", sql(QUERY)),
        ("rows", {"format": "json:load", "params": {"anything": [1]}}),
    ],
)
def test_sound_sources_are_taken(place: str, fields: dict[str, Any]) -> None:
    assert told(place, **fields) == ""


@pytest.mark.parametrize(
    ("place", "fields", "words"),
    [
        ("rows", {**sql(), "path": "x/{partition}.csv"}, "a source is files or a query: give path or sql"),
        ("planes", {"path": None}, "name the files, or give the source a query by sql"),
        ("rows", {"path": "flights.csv"}, "must contain {partition}"),
        ("rows", {"encoding": "base64"}, "must be an encoding that Python knows"),
        ("rows", {"delimiter": '"'}, "must be a character of ASCII, no quote and no line end"),
        ("rows", {"delimiter": "é"}, "must be a character of ASCII, no quote and no line end"),
        ("rows", {"null_values": "NA"}, "must be a list, as [a, b]"),
        ("planes", {"key": ["tailnum", "tailnum"]}, "data.joins.1.source.key: 'tailnum': stands there twice"),
        ("rows", sql("SELECT * FROM flights WHERE day = {start}"), "must contain {end}, as day >= {start} AND day <"),
        ("rows", sql("SELECT * FROM flights"), "must contain {start} and {end}"),
        ("planes", sql("SELECT * FROM planes WHERE day < {end}"), "must contain {start}"),
        ("rows", {**sql(), "key": None}, "end it with ORDER BY, or give the source a key to sort by"),
        ("rows", sql("SELECT * FROM f WHERE day >= '{start}' AND day < {end}"), "takes its bounds without quotes"),
        ("rows", sql("DELETE FROM flights"), "must be one query: SELECT … or WITH …"),
        ("rows", sql(f"{QUERY}; DROP TABLE flights"), "no semicolon between statements"),
        ("planes", sql("SELECT * FROM planes", version="SELECT {start}"), "takes no bounds: the query has none"),
        ("rows", sql(connection="ware house"), "must be the id of a connection"),
        ("rows", sql(connection="mysql://host/x"), "must be postgresql://… or sqlite:///…"),
        ("rows", sql(connection="sqlite:///x.db"), "must have the whole path: sqlite:////data/x.db"),
        ("rows", {**sql(), "format": "parquet"}, "is for files; a query has none: leave it out"),
        ("rows", {**sql(), "params": {"a": 1}}, "is for files; a query takes none"),
        ("rows", {"format": "sql"}, "a query is given by sql: {connection, query}"),
        ("rows", {"params": {"a": 1}}, "is for text, images and readers of your own"),
        ("rows", {"encoding": "utf-9"}, "must be an encoding that Python knows"),
        ("planes", {"format": "text"}, "columns.0.name: 'tailnum': "),
        ("planes", {"format": "text", "params": {"unit": "word"}}, "must be document or line"),
        ("planes", {"format": "text", "params": {"length": 3}}, "must be a whole number of bytes from 4 on"),
        ("planes", {"format": "text", "params": {"unit": "line", "separator": "|"}}, "is between documents"),
        ("planes", {"format": "text", "params": {"lenght": 3}}, "text takes unit, separator, length"),
        ("planes", {"format": "images", "params": {"verify": "yes"}}, "must be true or false"),
        ("planes", {"format": "images", "params": {"table": "a/labels.csv"}}, "must be the name of a .csv or .jsonl"),
        ("planes", {"format": "images", "columns": [{"name": "width", "type": "string"}]}, "is int64"),
    ],
)  # fmt: skip
def test_a_fault_of_a_source_says_the_way_out(place: str, fields: dict[str, Any], words: str) -> None:
    faults = told(place, **fields)
    assert words in faults, faults


@pytest.mark.parametrize(
    "connection",
    ["postgresql://reader:s3cret@db.example/x", "postgresql://db.example/x?user=reader&password=s3cret"],
)
def test_a_password_in_a_recipe_is_refused_and_not_told(connection: str) -> None:
    faults = told("rows", **sql(connection=connection))
    assert "must not hold a password, since recipes are kept" in faults
    assert "s3cret" not in faults
