"""The card's page of the columns: statistics of real rows, drift as validate records it, charts that parse as XML."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

from paddlewheel.card.drift import drift_view
from paddlewheel.card.histograms import Seen, small_chart
from paddlewheel.data.checks.champion_drift import compare_with_champion, drift_folder
from paddlewheel.data.checks.drift import judge
from paddlewheel.data.statistics.builder import StatisticsBuilder
from paddlewheel.data.statistics.table_statistics import ColumnStatistics, TableStatistics
from paddlewheel.data.statistics.window_statistics import SourceStatistics, publish_merged
from paddlewheel.data.types import POLARS_TYPES
from paddlewheel.manifest import Manifest, input_of, publish_manifest, read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_data import Column, ColumnType
from paddlewheel.storage.local import LocalStore

HOSTILE = "</text><script>alert(1)</script>"
CARRIERS = {"UA": 300, "AA": 200, "HA": 10}


def statistics(recipe: Recipe, carriers: dict[str, int], distances: Sequence[float | None]) -> TableStatistics:
    names = [name for name, count in carriers.items() for _ in range(count)]
    places = [distances[row % len(distances)] for row in range(len(names))]
    frame = pl.DataFrame(
        {"carrier": names, "distance": places, "delay": [5.0] * len(names)},
        schema={"carrier": pl.String, "distance": pl.Float64, "delay": pl.Float64},
    )
    builder = StatisticsBuilder(recipe.data.rows.columns)
    builder.add(frame)
    return builder.finish()


def publish(store: LocalStore, recipe: Recipe, key: str, train: TableStatistics, holdout: TableStatistics) -> Manifest:
    source = recipe.data.rows
    merged = {"train": train, "holdout": holdout, "partition": holdout}
    files = publish_merged([SourceStatistics(source=source, merged=merged, days={})], key, store)
    drift = judge(source.columns, train, holdout, source=source.name, over="partition", drift=recipe.data.drift)
    facts = {
        "partition": "2013-11-01",
        "drift": [one.to_tree() for one in drift],
        "notes": ["flights: no rows on 2013-10-29"],
    }
    manifest = Manifest(kind="validated", name=recipe.name, key=key, files=tuple(files), facts=facts)
    publish_manifest(store, manifest)
    return read_manifest(store, f"{key}/manifest.json")


def cells(view: dict[str, Any] | None) -> list[dict[str, Any]]:
    assert view is not None
    return [*view["first"], *view["others"]]


def test_flagged_columns_come_first_with_what_is_unusual_about_them(store: LocalStore, recipe: Recipe) -> None:
    distances = [float(n) for n in range(100, 900)]
    train = statistics(recipe, CARRIERS, distances)
    broken = statistics(recipe, CARRIERS, [None, *(one * 1.6 for one in distances)])
    view = drift_view(recipe, publish(store, recipe, "datasets/v", train, broken), None, store)
    assert view is not None
    assert view["headline"].startswith("1 of 3 columns drifted beyond the recipe's limits")
    assert view["notes"] == ["flights: no rows on 2013-10-29"]
    assert [label for _, label in view["keys"]] == ["training days", "holdout days"]
    found = cells(view)
    assert [(cell["name"], cell["rank"], cell["place"]) for cell in found] == [
        ("distance", 0, 1),
        ("carrier", 1, 0),
        ("delay", 2, 2),
    ]
    # 1.6 times 100 to 608 of 100 to 609: 227 of 509 values lie at 610 and more
    assert found[0]["flags"] == ["The partition's day: outside the known range 44.6%, PSI 1.26"]
    assert dict(found[1]["facts"]) == {"values": "3", "missing": "0%", "PSI": "0.00", "new values": "0%"}
    assert (found[2]["after"], found[0]["after"]) == (True, False)


def test_champions_data_is_drawn_and_measured_when_validate_compared_them(store: LocalStore, recipe: Recipe) -> None:
    distances = [float(n) for n in range(100, 900)]
    alike = statistics(recipe, CARRIERS, distances)
    theirs = publish(store, recipe, "datasets/theirs", statistics(recipe, {"B6": 500}, distances), alike)
    publish_manifest(
        store,
        Manifest(kind="run", name="late", key="runs/r0", inputs=(input_of(store, "datasets/theirs/manifest.json"),)),
    )
    ours = publish(store, recipe, "datasets/ours", alike, alike)
    folder = drift_folder(recipe, store, "datasets/ours/manifest.json", "datasets/theirs/manifest.json")
    drift = judge(
        recipe.data.rows.columns, statistics(recipe, {"B6": 500}, distances), alike,
        source="flights", over="champion", drift=recipe.data.drift,
    )  # fmt: skip
    facts = {"champion_partition": "2013-10-01", "drift": [one.to_tree() for one in drift]}
    publish_manifest(store, Manifest(kind="drift", name="late", key=folder, facts=facts))
    view = drift_view(recipe, ours, "r0", store)
    assert view is not None
    assert view["compared"] == "2013-10-01"
    assert [look for look, _ in view["keys"]] == ["train", "holdout", "champion"]
    first = cells(view)[0]
    assert first["name"] == "carrier"
    assert first["flags"][0].startswith("Since the champion's data: PSI ")
    assert "new values 100.0%" in first["flags"][0]
    assert "steps champion" in first["chart"]
    assert "Champion's data: 500 rows, 0.0% missing, 1 values (B6 100%)" in first["chart"].unescape()
    assert theirs.key == "datasets/theirs"
    assert compare_with_champion(recipe, "datasets/ours/manifest.json", store=store) is None  # nobody is in service


def test_there_is_no_page_when_the_data_was_validated_before_there_were_statistics(
    store: LocalStore, recipe: Recipe
) -> None:
    old = Manifest(kind="validated", name="late", key="datasets/old", facts={"partition": "2013-11-01"})
    assert drift_view(recipe, old, None, store) is None


def one(values: list[Any], kind: ColumnType) -> ColumnStatistics:
    builder = StatisticsBuilder([Column(name="x", type=kind)])
    builder.add(pl.DataFrame({"x": pl.Series(values, dtype=POLARS_TYPES[kind])}))
    return builder.finish()["x"]


def drawn(*seen: ColumnStatistics, name: str = "s.x") -> ElementTree.Element:
    looks = ("train", "holdout", "champion")
    chart = small_chart(name, [Seen(label=look, look=look, column=one) for look, one in zip(looks, seen, strict=False)])
    assert "<script" not in chart
    assert "nan" not in chart
    return ElementTree.fromstring(chart)


def texts(tree: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in tree.findall("text")]


def test_bars_are_as_high_as_their_shares_when_numbers_are_few() -> None:
    tree = drawn(one([1] * 10 + [2] * 20 + [3] * 40, "int64"), one([3] * 7, "int64"))
    # nine bins over 240 units, three of margin; the highest share, all of the holdout, reaches from 86 to 6
    bars = tree.find("path[@class='bars train']")
    assert bars is not None
    assert bars.attrib["d"] == "M80.5 86V74.6h25.7V86zM107.2 86V63.1h25.7V86zM133.8 86V40.3h25.7V86z"
    assert tree.find("path[@class='steps holdout']") is not None
    assert texts(tree) == ["1", "3"]
    assert tree.attrib["aria-label"] == (
        "s.x. train: 70 rows, 0.0% missing, median 3 (5 to 95%: 1 to 3). "
        "holdout: 7 rows, 0.0% missing, median 3 (5 to 95%: 3 to 3)"
    )


def test_frequent_values_are_named_and_the_rest_summed_when_texts_are_drawn() -> None:
    tree = drawn(one(["UA"] * 60 + [f"x{n}" for n in range(40)], "string"), one(["ZZ"] * 50, "string"))
    assert texts(tree)[:2] == ["UA", "x0"]
    assert "ZZ" in texts(tree)
    assert texts(tree)[-2:] == ["all others", "35% → 0%"]
    assert len(tree.findall("line[@class='steps holdout']")) == 7


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([5.5] * 9, "float64"),
        ([-1e300, 0.0, 1e300], "float64"),
        ([0], "int64"),
        ([-(2**63), 2**63 - 1], "int64"),
        ([True, False], "bool"),
        ([datetime.date(1969, 1, 1), datetime.date(2020, 1, 1)], "date"),
        ([datetime.datetime(2013, 11, 1, tzinfo=datetime.UTC)], "timestamp"),
        (["", HOSTILE, "\x00\x1b", "🛩" * 200], "string"),
    ],
    ids=["constant", "huge", "zero", "all of int64", "truths", "dates", "a moment", "hostile"],
)
def test_chart_is_well_formed_when_values_are_odd(values: list[Any], kind: ColumnType) -> None:
    tree = drawn(one(values, kind), one(values, kind), one(values, kind), name=HOSTILE)
    assert tree.attrib["role"] == "img"
    assert len(tree) > 2


def test_chart_says_so_when_there_is_no_value() -> None:
    empty = Seen(label="a", look="train", column=one([None], "float64"))
    assert small_chart("x", [empty]) == '<p class="none">No value to draw.</p>'


@pytest.mark.parametrize(
    "values", [[-1e308, 0.0, 1e308], [1.7976931348623157e308] * 3, [5e-324] * 3, [-1.7976931348623157e308] * 3]
)
def test_every_row_is_drawn_when_numbers_are_at_the_ends_of_the_floats(values: list[float]) -> None:
    (bars,) = drawn(one(values, "float64")).findall("path")
    assert bars.get("d", "").count("z") == len(set(values))  # a bar each, so many as there are different values
