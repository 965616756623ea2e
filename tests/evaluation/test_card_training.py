"""The training page's drawings: what is as long as what, which step has which mark, and what is left out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paddlewheel.card.bars import stacked_bars, whole_bar
from paddlewheel.card.machine import machine_facts, told_bytes
from paddlewheel.card.plots import Mark, Series, chart
from paddlewheel.card.training_charts import milliseconds, progress_marks, rank_charts
from paddlewheel.training.events import AttemptRecord, StepRecord

LABELS = {"data": "data", "forward": "forward", "exchange": "exchange"}


def rectangles(text: str) -> list[tuple[str, float, float]]:
    """(part, x, width) of each."""
    found = re.findall(r'<rect class="part (\w+)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', text)
    return [(part, float(x), float(width)) for part, x, width in found]


def test_bars_have_one_scale_and_their_sums_beside_them() -> None:
    rows = [("rank 0", {"data": 0.001, "forward": 0.002, "exchange": 0.003}), ("rank 1", {"data": 0, "forward": 0.003})]
    text = str(stacked_bars("A step", rows, labels=LABELS, told=milliseconds))
    # 384 of 520 pixels are for the longest, 6 ms: 64 a millisecond, from 62 on.
    assert rectangles(text) == [
        ("data", 62.0, 64.0),
        ("forward", 126.0, 128.0),
        ("exchange", 254.0, 192.0),
        ("forward", 62.0, 192.0),
    ]
    assert re.findall(r'<text x="([\d.]+)" y="[\d.]+">([^<]*)</text>', text) == [
        ("0", "rank 0"),
        ("453.0", "6.0 ms"),
        ("0", "rank 1"),
        ("261.0", "3.0 ms"),
    ]


def test_the_whole_bar_is_whole_and_names_each_part_once() -> None:
    values = {"steps": 750.0, "startup": 249.5, "waiting": 0.0, "other": 0.5}
    labels = {"steps": "steps that count", "startup": "start-up", "waiting": "waiting", "other": "between"}
    text = str(whole_bar("Time", values, labels=labels))
    assert rectangles(text) == [("steps", 0.0, 750.0), ("startup", 750.0, 249.5), ("other", 999.5, 0.5)]
    assert re.findall(r'class="key (\w+)">([^<]+) <b>([^<]+)</b>', text) == [
        ("steps", "steps that count", "75.0%"),
        ("startup", "start-up", "24.9%"),
        ("other", "between", "under 0.1%"),
    ]


@pytest.mark.parametrize("values", [{}, {"steps": 0.0}])
def test_there_is_no_bar_of_nothing(values: dict[str, float]) -> None:
    assert "nothing to draw" in whole_bar("Time", values, labels={"steps": "steps"})
    assert "nothing to draw" in stacked_bars("Time", [("a", values)], labels={"steps": "steps"}, told=milliseconds)


def test_marks_stand_where_something_happened() -> None:
    attempts = [
        AttemptRecord(attempt=1, world_size=2, resumed_from_step=0, last_step=9),
        AttemptRecord(attempt=2, world_size=2, resumed_from_step=8, last_step=20),
    ]
    marks = progress_marks([4, 8], attempts, left_out=[6], gone_back=[4])
    assert [(mark.x, mark.look, mark.label, mark.above) for mark in marks] == [
        (4.0, "commit", "", False),
        (8.0, "commit", "", False),
        (6.0, "anomaly", "", True),
        (4.0, "resume", "went back to 4", False),
        (8.0, "resume", "resumed at 8", False),
    ]


def test_many_resumes_keep_their_lines_and_not_their_labels() -> None:
    attempts = [
        AttemptRecord(attempt=number, world_size=1, resumed_from_step=10 * number, last_step=99)
        for number in range(1, 9)
    ]
    labels = [mark.label for mark in progress_marks([], attempts, [], [])]
    assert labels == [*(f"resumed at {10 * number}" for number in range(1, 7)), " ", " "]


def test_labels_of_neighbours_stand_below_each_other_and_ticks_on_their_side() -> None:
    marks = [
        Mark(x=5, look="resume", label="a"),
        Mark(x=6, look="resume", label="b"),
        Mark(x=5, look="commit"),
        Mark(x=5, look="anomaly", above=True),
    ]
    series = [Series(label="", look="raw", xs=[0, 10], ys=[0, 1])]
    text = str(chart(name="n", x_label="x", y_label="y", series=series, marks=marks))
    assert re.findall(r'<text class="resume" x="[\d.]+" y="(\d+)"', text) == ["23", "35"]
    # The drawing is 300 high with 14 above and 44 below the curve; 5 is its middle: 70 + 436 / 2.
    assert '<polygon class="commit" points="288,256 284.5,261 291.5,261"/>' in text
    assert '<polygon class="anomaly" points="288,14 284.5,8 291.5,8"/>' in text


def steps(rss_bytes: int, forward: float, count: int = 30) -> list[StepRecord]:
    return [
        StepRecord(
            step=step,
            epoch=1,
            loss=0.5,
            learning_rate=0.1,
            rows=8,
            seconds=1.0,
            attempt=1,
            parts={"forward": forward},
            rss_bytes=rss_bytes,
        )
        for step in range(1, count + 1)
    ]


def test_of_many_ranks_those_that_work_longest_are_drawn() -> None:
    ranks = {rank: steps(1 << 30, 0.1 if rank in (3, 11) else 0.01) for rank in range(12)}
    memory, time = (str(one) for one in rank_charts(ranks))
    assert "Memory of the 8 largest ranks" in memory
    assert "MiB resident" in memory
    assert "the 8 ranks that work longest" in time
    drawn = re.findall(r">rank (\d+)</text>", time)
    assert len(drawn) == 8
    assert {"3", "11"} <= set(drawn)


def test_nothing_is_drawn_by_rank_where_nothing_is_known() -> None:
    assert rank_charts({}) == []
    assert rank_charts({0: steps(0, 0.1, count=6)}) == []  # too few steps for a mean, and no memory told


def look(taken: int, processors: float, **gpu: Any) -> dict[str, Any]:
    return {
        "node": 0,
        "processors": processors,
        "num_processors": 4,
        "memory_bytes": taken,
        "memory_limit_bytes": 8 << 30,
        "read_bytes": 512.0,
        "written_bytes": 3 << 20,
        "received_bytes": 1024.0,
        "sent_bytes": 2048.0,
        "gpus": [{"index": 0, "busy": None, "memory_bytes": None, "memory_limit_bytes": None, "celsius": None,
                  "watts": None} | gpu] if gpu else [],
    }  # fmt: skip


def test_a_node_is_told_by_means_and_its_most_memory() -> None:
    assert machine_facts([look(1 << 30, 1.0), look(3 << 30, 3.0)]) == [
        (
            "Node 0",
            "2.0 of 4 processors busy, at most 3.0 GiB of 8.0 GiB memory, disks 512 B read and 3.0 MiB written a "
            "second, network 1.0 KiB in and 2.0 KiB out a second",
        )
    ]
    assert machine_facts([]) == []


def test_a_gpu_is_told_by_what_it_gave() -> None:
    looks = [
        look(1, 1.0, busy=0.5, memory_bytes=1 << 30, memory_limit_bytes=4 << 30, celsius=60),
        look(1, 1.0, busy=1.0, memory_bytes=2 << 30, memory_limit_bytes=4 << 30, celsius=70),
    ]
    assert machine_facts(looks)[1] == (
        "GPU 0 of node 0",
        "busy 75% of the time, at most 2.0 GiB of 4.0 GiB memory, at most 70 °C",
    )
    assert machine_facts([look(1, 1.0, busy=None)])[1] == ("GPU 0 of node 0", "no figures")


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")])
def test_bytes_have_the_unit_that_fits(count: int, text: str) -> None:
    assert told_bytes(count) == text
