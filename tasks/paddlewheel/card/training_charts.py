"""The charts of a training: loss, learning rate, throughput, memory by rank, and where a step's time goes by rank."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from paddlewheel.card.bars import stacked_bars
from paddlewheel.card.plots import Mark, Series, chart, smooth
from paddlewheel.training.diagnosis import OWN_PARTS, PARTS, mean_parts
from paddlewheel.training.events import AttemptRecord, StepRecord

MIB, GIB = 1 << 20, 1 << 30
MOST_RANKS = 8
MOST_LABELS = 6


def progress_marks(
    commits: Sequence[int], attempts: Sequence[AttemptRecord], left_out: Sequence[int], gone_back: Sequence[int]
) -> list[Mark]:
    """Commits below the axis, steps left out above the curve, resumes and returns to a commit as lines."""
    marks = [Mark(x=float(step), look="commit") for step in commits]
    marks += [Mark(x=float(step), look="anomaly", above=True) for step in left_out]
    lines = [(one.resumed_from_step, "resumed at") for one in attempts if one.resumed_from_step]
    lines += [(step, "went back to") for step in gone_back]
    for position, (step, words) in enumerate(sorted(lines)):
        label = f"{words} {step:,}" if position < MOST_LABELS else " "
        marks.append(Mark(x=float(step), look="resume", label=label))
    return marks


def progress_charts(curve: Sequence[StepRecord], marks: Sequence[Mark]) -> list[Markup]:
    """Loss, learning rate and throughput against the global step."""
    steps, losses = [float(one.step) for one in curve], [one.loss for one in curve]
    speeds = [(float(one.step), one.rows / one.seconds) for one in curve if one.seconds > 0]
    fastest = statistics.quantiles([speed for _, speed in speeds], n=50)[-1] if len(speeds) > 1 else 1.0
    rates = [one.learning_rate for one in curve]
    told = "global step (below: commits" + ("; above: steps left out)" if any(one.above for one in marks) else ")")
    return [
        chart(
            name="Training loss",
            x_label=told,
            y_label="loss of the batch",
            series=_with_average("each step", steps, losses),
            marks=marks,
        ),
        chart(
            name="Learning rate",
            x_label=told,
            y_label="learning rate",
            series=[Series(label="", look="challenger", xs=steps, ys=rates)],
            marks=marks,
            y_range=(0, 1.08 * max(rates, default=1.0)),
        ),
        chart(
            name="Throughput",
            x_label="global step",
            y_label="samples a second",
            series=_with_average(
                "each step", [step for step, _ in speeds], [min(speed, fastest) for _, speed in speeds]
            ),
            y_range=(0, 1.08 * fastest),
        ),
    ]


def rank_charts(ranks: Mapping[int, Sequence[StepRecord]]) -> list[Markup]:
    """The memory of each rank over the steps, and where the time of a step goes; none where nothing is known."""
    charts = []
    peaks = {rank: max(one.rss_bytes for one in records) for rank, records in ranks.items() if records}
    if any(peaks.values()):
        chosen = sorted(sorted(peaks, key=lambda rank: -peaks[rank])[:MOST_RANKS])
        unit, words = (GIB, "GiB") if max(peaks.values()) >= 2 * GIB else (MIB, "MiB")
        name = "Memory by rank" if len(chosen) == len(peaks) else f"Memory of the {len(chosen)} largest ranks"
        series = [
            Series(
                label=f"rank {rank}",
                look=f"rank-{position}",
                xs=[float(one.step) for one in ranks[rank]],
                ys=[one.rss_bytes / unit for one in ranks[rank]],
            )
            for position, rank in enumerate(chosen)
        ]
        most = 1.08 * max(peaks.values()) / unit
        charts.append(
            chart(name=name, x_label="global step", y_label=f"{words} resident", series=series, y_range=(0, most))
        )
    means = {rank: mean_parts(records) for rank, records in ranks.items()}
    bars = [(f"rank {rank}", means[rank]) for rank in _chosen({rank: one for rank, one in means.items() if one})]
    if bars:
        few = len(bars) < len(ranks)
        name = f"A step's time: the {len(bars)} ranks that work longest" if few else "A step's time by rank"
        charts.append(stacked_bars(name, bars, labels={part: part for part in PARTS}, told=milliseconds))
    return charts


def milliseconds(seconds: float) -> str:
    """`12.3 ms`, or seconds from one on."""
    return f"{1e3 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _chosen(means: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Ranks whose own work takes longest, in their order."""
    own = {rank: sum(parts[part] for part in OWN_PARTS) for rank, parts in means.items()}
    return sorted(sorted(own, key=lambda rank: -own[rank])[:MOST_RANKS])


def _with_average(label: str, xs: Sequence[float], ys: Sequence[float]) -> list[Series]:
    average = smooth(ys, span=max(5, len(ys) // 30))
    return [
        Series(label=label, look="raw", xs=xs, ys=ys),
        Series(label="smoothed", look="challenger", xs=xs, ys=average),
    ]
