"""Stacked bars as SVG text: where a step's time goes by rank, and a whole training's time as one bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

WIDTH, ROW, BAR = 520, 24, 15
LABEL, TOTAL = 62, 74  # what is left of the bars, and right of them
LEAST_PIXELS = 0.5


def stacked_bars(
    name: str,
    rows: Sequence[tuple[str, Mapping[str, float]]],
    *,
    labels: Mapping[str, str],
    told: Callable[[float], str],
) -> Markup:
    """A figure of a bar a row, each of the values by part; all of one scale, the sum beside each.

    labels: part -> how people call it, in the order of the bar; `told` makes a value text. A part is a style class.
    """
    longest = max((sum(values.values()) for _, values in rows), default=0.0)
    if not longest:
        return Markup('<p class="none">{}: nothing to draw.</p>').format(name)
    scale = (WIDTH - LABEL - TOTAL) / longest
    parts = []
    for position, (label, values) in enumerate(rows):
        middle = position * ROW + ROW / 2
        parts.append(Markup('<text x="0" y="{}">{}</text>').format(middle + 4, label))
        at = float(LABEL)
        for part, words in labels.items():
            wide = values.get(part, 0.0) * scale
            if wide >= LEAST_PIXELS:
                parts.append(
                    Markup(
                        '<rect class="part {}" x="{}" y="{}" width="{}" height="{}"><title>{}: {}</title></rect>'
                    ).format(part, round(at, 1), middle - BAR / 2, round(wide, 1), BAR, words, told(values[part]))
                )
            at += wide
        sum_text = told(sum(values.values()))
        parts.append(Markup('<text x="{}" y="{}">{}</text>').format(round(at + 7, 1), middle + 4, sum_text))
    seen = [part for part in labels if any(values.get(part, 0.0) * scale >= LEAST_PIXELS for _, values in rows)]
    legend = Markup("").join(Markup('<span class="key {}">{}</span>').format(part, labels[part]) for part in seen)
    return Markup(
        '<figure class="stacked"><figcaption>{}<span class="legend">{}</span></figcaption>'
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg></figure>'
    ).format(name, legend, WIDTH, len(rows) * ROW, name, Markup("").join(parts))


def whole_bar(name: str, values: Mapping[str, float], *, labels: Mapping[str, str]) -> Markup:
    """One bar of the whole width, the shares of its parts below it; a part that has none is left out."""
    whole = sum(values.values())
    if not whole:
        return Markup('<p class="none">{}: nothing to draw.</p>').format(name)
    at, parts, keys = 0.0, [], []
    for part, label in labels.items():
        share = values.get(part, 0.0) / whole
        if not share:
            continue
        text = f"{share:.1%}" if share >= 0.001 else "under 0.1%"
        parts.append(
            Markup('<rect class="part {}" x="{}" y="0" width="{}" height="26"><title>{}: {}</title></rect>').format(
                part, round(1000 * at, 2), round(1000 * share, 2), label, text
            )
        )
        keys.append(Markup('<span class="key {}">{} <b>{}</b></span>').format(part, label, text))
        at += share
    return Markup(
        '<svg class="whole" viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '<p class="legend keys">{}</p>'
    ).format(name, Markup("").join(parts), Markup(" ").join(keys))
