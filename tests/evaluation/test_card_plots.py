from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from paddlewheel.card.plots import Mark, Series, chart, interval_bar, smooth, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 424, [0, 100, 200, 300, 400]),
        (0.43, 0.71, [0.45, 0.5, 0.55, 0.6, 0.65, 0.7]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
        (0, 0.00216, [0, 0.0005, 0.001, 0.0015, 0.002]),
    ],
)
def test_ticks_are_round_numbers_within_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_chart_is_well_formed_and_escapes_what_it_is_given_when_labels_are_hostile() -> None:
    hostile = '<script>alert("x")</script>'
    svg = chart(
        name=hostile,
        x_label=hostile,
        y_label=hostile,
        series=[
            Series(label=hostile, look="raw", xs=[0, 1, 2], ys=[1, math.nan, 3]),
            Series(label="b", look="challenger", xs=[0, 1], ys=[1, 2], dots=True, intervals=[(0, 2), (1, 3)]),
        ],
        marks=[Mark(x=1, look="resume", label=hostile), Mark(x=2, look="commit"), Mark(x=99, look="commit")],
    )
    assert "<script" not in svg
    tree = ElementTree.fromstring(str(svg).replace("&#34;", "'"))
    assert len(tree.findall(".//polygon")) == 1  # the mark outside the range is not drawn
    assert "nan" not in svg


def test_chart_says_so_when_there_is_nothing_to_draw() -> None:
    assert "nothing to draw" in chart(name="Loss", x_label="", y_label="", series=[])


def test_long_line_is_thinned_and_keeps_its_ends() -> None:
    xs = list(range(100_000))
    svg = str(chart(name="n", x_label="", y_label="", series=[Series(label="", look="raw", xs=xs, ys=xs)]))
    points = ElementTree.fromstring(svg).find(".//polyline").attrib["points"].split()  # type: ignore[union-attr]
    assert len(points) == 402
    assert points[0].startswith("70,")
    assert points[-1].startswith("506,")


def test_interval_bar_stays_inside_its_cell_when_an_interval_is_wider_than_the_range() -> None:
    svg = str(interval_bar(0.5, -3, 9, limits=(0, 1), reference=0.25))
    line = ElementTree.fromstring(svg).find(".//line[@class='interval']")
    assert line is not None
    assert (line.attrib["x1"], line.attrib["x2"]) == ("4.0", "146.0")


def test_smoothed_values_start_at_the_first_and_settle_at_the_level() -> None:
    smoothed = smooth([5.0] * 3 + [1.0] * 200, span=10)
    assert smoothed[0] == pytest.approx(5.0)
    assert smoothed[-1] == pytest.approx(1.0, abs=1e-9)
