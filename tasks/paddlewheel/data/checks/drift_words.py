"""Drift in words: which measure passes which limit, and both distributions in a few numbers."""

from __future__ import annotations

from typing import Final

from paddlewheel.data.checks.drift import ColumnDrift, limits_of
from paddlewheel.data.statistics.table_statistics import ColumnStatistics, Value
from paddlewheel.recipe_data import Column, Drift

NAMES: Final = {
    "missing": "share of missing values changed by",
    "outside": "share outside the known range",
    "psi": "population stability index",
    "divergence": "Jensen-Shannon divergence",
    "new": "share of new values",
}
MOST_VALUES: Final = 3
MOST_LETTERS: Final = 24


def drift_sentence(
    found: ColumnDrift,
    column: Column,
    drift: Drift,
    seen: tuple[str, ColumnStatistics],
    before: tuple[str, ColumnStatistics],
) -> str:
    """One column's passed limits, of the `fail` kind where there are any, then both distributions."""
    kind = "fail" if found.failed else "warn"
    limits = limits_of(column, drift)
    parts = []
    for name in found.failed or found.warned:
        usual = f", usually up to {found.usual[name]:.3g}" if name in found.usual else ""
        limit = getattr(getattr(limits, name), kind)
        parts.append(f"{NAMES[name]} {found.measures[name]:.3g} ({kind} {name} {limit:g}{usual})")
    return (
        f"{found.source}.{found.column}: {'; '.join(parts)}. {seen[0]}: {describe(seen[1])}. "
        f"{before[0]}: {describe(before[1])}"
    )


def way_out(found: ColumnDrift, column: Column) -> str:
    """What to do about a `fail`."""
    of = "the column's own drift" if column.drift else "data.drift"
    places = " and ".join(f"{of}.{name}.fail" for name in found.failed)
    return f"Mend the data, or raise {places} in the recipe if this is as it should be"


def describe(column: ColumnStatistics) -> str:
    """`1,021 rows, 1.2% missing, median 5 (5 to 95%: 1 to 9)`."""
    told = [f"{column.rows:,} rows", f"{column.missing_share:.1%} missing"]
    if column.type in ("string", "bool") and column.present:
        frequent = column.top(MOST_VALUES)
        top = ", ".join(f"{shortened(value, MOST_LETTERS)} {rows / column.present:.0%}" for value, rows in frequent)
        told.append(f"{column.distinct:,} values ({top})")
    elif column.type in ("date", "timestamp") and column.histogram:
        first, last = min(column.histogram), max(column.histogram)
        told.append(f"{first:+d} to {last:+d} days from its day")
    elif column.histogram:
        low, middle, high = (plain(column.quantile(share)) for share in (0.05, 0.5, 0.95))
        told.append(f"median {middle} (5 to 95%: {low} to {high})")
    return ", ".join(told)


def plain(number: float | None) -> str:
    """A number to four digits, as people write it: `1002`, `18,990`, `0.0123`, `1.2e+09`."""
    if number is None:
        return "none"
    rounded = float(f"{number:.4g}")
    if rounded == 0 or 1e-4 <= abs(rounded) < 1e9:
        if not rounded.is_integer():
            return f"{rounded:.10f}".rstrip("0")
        return f"{rounded:,.0f}" if abs(rounded) >= 10_000 else f"{rounded:.0f}"  # a year has no comma
    return f"{rounded:g}"


def shortened(value: Value, most: int) -> str:
    """A value on one line, what cannot be printed as a dot, cut at so many letters."""
    text = "".join(letter if letter.isprintable() else "·" for letter in str(value)) or "(empty)"
    return text if len(text) <= most else f"{text[: most - 1]}…"
