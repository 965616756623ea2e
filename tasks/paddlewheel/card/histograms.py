"""Small multiples: one column's distribution over the training window, the holdout days and the champion's data.

The training window is a filled shape, the others are lines over it (numbers, times) or marks on its bars (texts), all
as shares of the rows that have a value. What lies beyond the 1 % at either end is added to the outermost bins.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from paddlewheel.data.checks.drift_words import describe, plain, shortened
from paddlewheel.data.statistics.histogram import bucket_edges
from paddlewheel.data.statistics.table_statistics import ColumnStatistics, Value

WIDTH, HEIGHT, BASE = 240, 104, 86
BINS = 24
MOST_VALUES = 6
FEWEST_BINS = 9  # so that a constant is a bar and not a wall
ROW, LABEL = 15, 92
MOST_LETTERS = 11
LEAST_OTHERS = 0.0005


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A distribution to draw: what it is of, how it looks (a style class), the column's statistics."""

    label: str
    look: str
    column: ColumnStatistics


def small_chart(name: str, seen: Sequence[Seen]) -> Markup:
    """The chart of one column, the first distribution as the shape; a sentence where there is no value to draw."""
    known = [one for one in seen if one.column.present and (one.column.histogram or one.column.values)]
    if not known:
        return Markup('<p class="none">No value to draw.</p>')
    told = ". ".join(f"{one.label}: {describe(one.column)}" for one in known)
    parts, height = _shapes(known) if known[0].column.histogram else _value_bars(known)
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, f"{name}. {told}", Markup("").join(parts)
    )


def _shapes(seen: Sequence[Seen]) -> tuple[list[Markup], int]:
    low, high, count = _range([one.column for one in seen])
    whole = count < BINS  # a bin a whole number
    margin = max(0, FEWEST_BINS - count) // 2 if whole else 0
    start, end, count = low - margin, high + margin, count + 2 * margin
    shares = [_shares(one.column, start, end, count) for one in seen]
    most = max(max(some) for some in shares)
    width = WIDTH / count
    parts = [Markup('<line class="axis" x1="0" x2="{}" y1="{y}" y2="{y}"/>').format(WIDTH, y=BASE)]
    for position, (one, some) in enumerate(zip(seen, shares, strict=True)):
        tops = [round(BASE - share / most * (BASE - 6), 1) for share in some]
        if position == 0 and one.look == "train":
            bars = "".join(
                f"M{index * width + 0.5:.1f} {BASE}V{top:g}h{width - 1:.1f}V{BASE}z"
                for index, top in enumerate(tops)
                if top < BASE
            )
            parts.append(Markup('<path class="bars {}" d="{}"/>').format(one.look, bars))
        else:
            steps = "".join(f"V{top:g}H{(index + 1) * width:.1f}" for index, top in enumerate(tops))
            parts.append(Markup('<path class="steps {}" d="M0 {}{}V{}"/>').format(one.look, BASE, steps, BASE))
    return [*parts, *_ends(seen[0].column.type, low, high, margin * width if whole else None, width)], HEIGHT


def _ends(kind: str, low: float, high: float, margin: float | None, width: float) -> list[Markup]:
    """The smallest and the largest value, below their bins where each has one (`margin` wide of the edge)."""
    if margin is None:
        at = (1.0, "start"), (WIDTH - 1.0, "end")
        ends = low, high
    else:
        middle = "middle" if margin else ""
        at = (
            (margin + width / 2 if margin else 1.0, middle or "start"),
            (
                WIDTH - margin - width / 2 if margin else WIDTH - 1.0,
                middle or "end",
            ),
        )
        ends = low + 0.5, high - 0.5
    texts = dict.fromkeys(zip((_told(kind, end) for end in ends), at, strict=True))
    told = list(texts)[:1] if ends[0] == ends[1] else list(texts)
    return [
        Markup('<text class="{}" x="{:.1f}" y="{}">{}</text>').format(anchor, x, HEIGHT - 4, text)
        for text, (x, anchor) in told
    ]


def _range(columns: Sequence[ColumnStatistics]) -> tuple[float, float, int]:
    """Where the bins begin and end, and how many: one a whole number where there are few."""
    ends = [(column.quantile(0.01), column.quantile(0.99)) for column in columns]
    low = min(first for first, _ in ends if first is not None)
    high = max(last for _, last in ends if last is not None)
    if columns[0].type != "float64" and high - low < BINS - 1:
        return low - 0.5, high + 0.5, round(high - low) + 1
    if high == low:
        room = abs(low) * 0.1 or 1.0
        return max(low - room, -sys.float_info.max), min(high + room, sys.float_info.max), BINS
    return low, high, BINS


def _shares(column: ColumnStatistics, low: float, high: float, count: int) -> list[float]:
    width = high / count - low / count  # their difference may be beyond all floats
    rows = [0.0] * count

    def place(value: float) -> int:
        position = (value - low) / width
        if not math.isfinite(position):
            position = value / width - low / width
        return count - 1 if position >= count else math.floor(position) if position > 0 else 0

    for bucket, here in column.histogram.items():
        start, end = bucket_edges(column.type, bucket)
        if end - start <= max(width, 1.0):
            rows[place(start if column.type != "float64" else start / 2 + end / 2)] += here
            continue
        first, last = place(start), place(end)
        for position in range(first, last + 1):  # spread a wide bucket over the bins that it covers
            rows[position] += here / (last - first + 1)
    return [one / column.present for one in rows]


def _value_bars(seen: Sequence[Seen]) -> tuple[list[Markup], int]:
    names = [value for value, _ in seen[0].column.top(MOST_VALUES)]
    for one in seen[1:]:  # what has become frequent is seen though the training window has none of it
        names += [value for value, _ in one.column.top(2) if value not in names]
    shares = [_value_shares(one.column, names) for one in seen]
    most = max(max(some[:-1]) for some in shares) or 1.0
    room = WIDTH - LABEL - 4
    parts = []
    for row, name in enumerate(names):
        top = row * ROW + 2
        parts.append(_label(shortened(name, MOST_LETTERS), top))
        for position, one in enumerate(seen):
            at = round(shares[position][row] / most * room, 1)
            if position == 0 and one.look == "train":
                shape = '<rect class="bars {}" x="{}" y="{}" width="{}" height="{}"/>'
                parts.append(Markup(shape).format(one.look, LABEL, top, max(at, 0.5), ROW - 4))
            else:
                shape = '<line class="steps {}" x1="{x}" x2="{x}" y1="{}" y2="{}"/>'
                parts.append(Markup(shape).format(one.look, top - 1, top + ROW - 3, x=LABEL + at))
    if max(some[-1] for some in shares) < LEAST_OTHERS:
        return parts, len(names) * ROW + 4
    top, told = len(names) * ROW + 2, dict.fromkeys(f"{some[-1]:.0%}" for some in shares)
    parts.append(_label("all others", top, "other"))
    parts.append(Markup('<text class="other" x="{}" y="{}">{}</text>').format(LABEL, top + ROW - 5, " → ".join(told)))
    return parts, (len(names) + 1) * ROW + 4


def _label(text: str, top: int, look: str = "") -> Markup:
    return Markup('<text class="end {}" x="{}" y="{}">{}</text>').format(look, LABEL - 6, top + ROW - 5, text)


def _value_shares(column: ColumnStatistics, names: Sequence[Value]) -> list[float]:
    """Shares of the named values, then of all others."""
    counts = column.counts()
    found = [counts.get(name, 0) / column.present for name in names]
    return [*found, max(0.0, 1 - sum(found))]


def _told(kind: str, value: float) -> str:
    if kind in ("date", "timestamp"):
        try:
            return (datetime.date(1970, 1, 1) + datetime.timedelta(days=math.floor(value))).isoformat()
        except OverflowError:
            return plain(value)
    return plain(value)
