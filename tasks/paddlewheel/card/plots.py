"""Charts as SVG text, styled by the card's own style sheet.

Written by hand rather than by matplotlib: the text stays text in the reader's fonts, a chart is a few kilobytes, equal
numbers give equal bytes, and a phone scales it. Everything that comes from data passes through markupsafe.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 14, 44
MOST_POINTS = 400
LABEL_ROWS = 6


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line through points, with dots or without. `look` is a style class; `intervals`: low and high of each point."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    look: str
    dots: bool = False
    intervals: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line across the chart, with a label, or without one a tick below the x axis, or above the chart."""

    x: float
    look: str
    label: str = ""
    above: bool = False


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Data ranges, and where they lie in the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Drawing coordinates of a data point, to a tenth."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1
        )


def chart(
    *,
    name: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    marks: Sequence[Mark] = (),
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> Markup:
    """A chart with axes, a legend where there are several labels, and a dashed diagonal for curves of equal scales."""
    known = [one for one in series if len(one.xs)]
    if not known:
        return Markup('<p class="none">{}: nothing to draw.</p>').format(name)
    x_range = x_range or _range([x for one in known for x in one.xs])
    lows_and_highs = [value for one in known for pair in one.intervals for value in pair]
    y_range = y_range or _range([*(y for one in known for y in one.ys), *lows_and_highs], padded=True)
    frame = Frame(x=x_range, y=y_range)
    parts = [_axes(frame, x_label, y_label)]
    if diagonal:
        parts.append(_line([frame.at(x_range[0], y_range[0]), frame.at(x_range[1], y_range[1])], "diagonal"))
    ticks = [mark for mark in marks if not mark.label and x_range[0] <= mark.x <= x_range[1]]
    lines = [mark for mark in marks if mark.label and x_range[0] <= mark.x <= x_range[1]]
    parts += [_tick(frame, mark) for mark in ticks]
    parts += [_mark(frame, mark, position) for position, mark in enumerate(lines)]
    parts += [_draw(frame, one) for one in known]
    labels = [(one.label, one.look) for one in known if one.label]
    legend = (
        Markup("").join(Markup('<span class="key {}">{}</span>').format(look, label) for label, look in labels)
        if len(labels) > 1
        else Markup("")
    )
    return Markup(
        "<figure><figcaption>{name}{legend}</figcaption>"
        '<svg viewBox="0 0 {width} {height}" role="img" aria-label="{name}">{parts}</svg></figure>'
    ).format(
        name=name,
        legend=Markup('<span class="legend">{}</span>').format(legend) if legend else "",
        width=WIDTH,
        height=HEIGHT,
        parts=Markup("").join(parts),
    )


def interval_bar(
    value: float | None, low: float | None, high: float | None, *, limits: tuple[float, float], reference: float
) -> Markup:
    """A small bar for a table's cell: the interval as a line, the value as a dot, the reference as a hair line."""
    width, height = 150, 16
    least, most = limits

    def at(number: float) -> float:
        return round(4 + (min(max(number, least), most) - least) / ((most - least) or 1) * (width - 8), 1)

    parts = [Markup('<line class="reference" x1="{0}" x2="{0}" y1="1" y2="15"/>').format(at(reference))]
    if low is not None and high is not None:
        parts.append(Markup('<line class="interval" x1="{}" x2="{}" y1="8" y2="8"/>').format(at(low), at(high)))
    if value is not None:
        parts.append(Markup('<circle class="value" cx="{}" cy="8" r="3.4"/>').format(at(value)))
    return Markup('<svg class="bar" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>').format(
        width, height, Markup("").join(parts)
    )


def smooth(values: Sequence[float], *, span: int) -> list[float]:
    """Exponential moving average with a half-life of about span / 3 points, corrected for its start."""
    decay, total, weight, smoothed = 1 - 2 / (span + 1), 0.0, 0.0, []
    for value in values:
        total, weight = decay * total + (1 - decay) * value, decay * weight + (1 - decay)
        smoothed.append(total / weight)
    return smoothed


def ticks(low: float, high: float, *, wanted: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten apart) that lie within a range; about `wanted` of them."""
    rough = (high - low) / wanted
    power = 10 ** math.floor(math.log10(rough))
    step = min((factor * power for factor in (1, 2, 2.5, 5, 10)), key=lambda size: abs(math.log(size / rough)))
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _range(values: Sequence[float], *, padded: bool = False) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = (high - low) * 0.06 if high > low else abs(high) * 0.1 or 1.0
    return (low - room, high + room) if padded or high == low else (low, high)


def _axes(frame: Frame, x_label: str, y_label: str) -> Markup:
    parts = []
    for y in ticks(*frame.y):
        _, height = frame.at(frame.x[0], y)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(LEFT, WIDTH - RIGHT, y=height)
        )
        parts.append(Markup('<text class="tick y" x="{}" y="{}">{}</text>').format(LEFT - 7, height + 3.5, _number(y)))
    for x in ticks(*frame.x, wanted=6):
        across, _ = frame.at(x, frame.y[0])
        parts.append(
            Markup('<text class="tick x" x="{}" y="{}">{}</text>').format(across, HEIGHT - BOTTOM + 17, _number(x))
        )
    bottom = HEIGHT - BOTTOM
    parts.append(Markup('<line class="axis" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(LEFT, WIDTH - RIGHT, y=bottom))
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + bottom) / 2
    parts.append(Markup('<text class="label" x="{}" y="{}">{}</text>').format(middle_x, HEIGHT - 8, x_label))
    parts.append(
        Markup('<text class="label" transform="translate(10 {}) rotate(-90)">{}</text>').format(middle_y, y_label)
    )
    return Markup("").join(parts)


def _draw(frame: Frame, series: Series) -> Markup:
    points = [(x, y) for x, y in zip(series.xs, series.ys, strict=True) if math.isfinite(y)]
    parts = []
    for x, (low, high) in zip(series.xs, series.intervals, strict=False):
        (across, bottom), (_, top) = frame.at(x, low), frame.at(x, high)
        parts.append(
            Markup('<line class="whisker {}" x1="{x}" x2="{x}" y1="{}" y2="{}"/>').format(
                series.look, bottom, top, x=across
            )
        )
    parts.append(_line([frame.at(x, y) for x, y in _thin(points)], f"series {series.look}"))
    if series.dots:
        parts += [
            Markup('<circle class="dot {}" cx="{}" cy="{}" r="3.4"/>').format(series.look, *frame.at(x, y))
            for x, y in points
        ]
    return Markup("").join(parts)


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MOST_POINTS points; neighbours are averaged, the ends stay."""
    if len(points) <= MOST_POINTS:
        return list(points)
    edges = [round(index * len(points) / MOST_POINTS) for index in range(MOST_POINTS + 1)]
    groups = [points[start:end] for start, end in itertools.pairwise(edges)]
    means = [(sum(x for x, _ in one) / len(one), sum(y for _, y in one) / len(one)) for one in groups]
    return [points[0], *means, points[-1]]


def _line(points: Sequence[tuple[float, float]], look: str) -> Markup:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return Markup('<polyline class="{}" points="{}"/>').format(look, path)


def _tick(frame: Frame, mark: Mark) -> Markup:
    across, bottom = frame.at(mark.x, frame.y[0])
    tip, base = (TOP, TOP - 6) if mark.above else (bottom, bottom + 5)
    path = f"{across:g},{tip:g} {across - 3.5:g},{base:g} {across + 3.5:g},{base:g}"
    return Markup('<polygon class="{}" points="{}"/>').format(mark.look, path)


def _mark(frame: Frame, mark: Mark, position: int) -> Markup:
    """The labels of neighbours stand below each other."""
    across, bottom = frame.at(mark.x, frame.y[0])
    anchor = "end" if across > WIDTH * 0.7 else "start"
    return Markup(
        '<line class="{look}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
        '<text class="{look}" x="{text_x}" y="{text_y}" text-anchor="{anchor}">{label}</text>'
    ).format(
        look=mark.look,
        x=across,
        top=TOP,
        bottom=bottom,
        text_x=across + (-5 if anchor == "end" else 5),
        text_y=TOP + 9 + 12 * (position % LABEL_ROWS),
        anchor=anchor,
        label=mark.label,
    )


def _number(value: float) -> str:
    """A tick's text: 12,000 or 0.25."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
