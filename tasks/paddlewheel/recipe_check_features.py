"""Which columns and parameters a feature's kind takes."""

from __future__ import annotations

import functools
import zoneinfo
from collections.abc import Iterator, Mapping

from paddlewheel.recipe_data import Column, Feature
from paddlewheel.recipe_tree import Fault, unknown_name

# Parameters of a feature that its kind takes, and how many columns it reads.
FEATURE_PARAMETERS: Mapping[str, tuple[frozenset[str], tuple[int, int]]] = {
    "category": (frozenset({"min_count"}), (1, 1)),
    "hash": (frozenset({"buckets"}), (1, 1)),
    "cross": (frozenset({"buckets"}), (2, 8)),
    "standard": (frozenset(), (1, 1)),
    "log1p": (frozenset(), (1, 1)),
    "quantile": (frozenset({"bins"}), (1, 1)),
    "clock": (frozenset(), (1, 1)),
    "cyclic": (frozenset({"period"}), (1, 1)),
    "weekday": (frozenset({"timezone"}), (1, 1)),
    "month": (frozenset({"timezone"}), (1, 1)),
    "age": (frozenset(), (2, 2)),
}
NEEDED_PARAMETERS = {"hash": "buckets", "cross": "buckets", "quantile": "bins", "cyclic": "period"}
NUMERIC_KINDS = frozenset({"standard", "log1p", "quantile", "clock", "cyclic", "age"})
TIME_KINDS = frozenset({"weekday", "month"})


def check_feature(path: str, feature: Feature, known: Mapping[str, Column]) -> Iterator[Fault]:
    for index, name in enumerate(feature.columns):
        here = f"{path}.columns.{index}"
        if name not in known:
            yield unknown_name(here, name, known, "a column of the rows or of a join")
            continue
        column = known[name]
        if column.known == "after":
            yield Fault(
                path=here,
                value=name,
                allowed=f"feature {feature.name!r} would use a column that is known only after the prediction is asked "
                "for; use one with known: before",
            )
        if feature.kind in NUMERIC_KINDS and column.type not in ("int64", "float64", "bool"):
            yield Fault(path=here, value=name, allowed=f"kind {feature.kind} needs a number, this is a {column.type}")
        if feature.kind in TIME_KINDS and column.type not in ("timestamp", "date"):
            yield Fault(path=here, value=name, allowed=f"kind {feature.kind} needs a timestamp, not a {column.type}")
    taken, (least, most) = FEATURE_PARAMETERS.get(feature.kind, (frozenset(), (1, 8)))
    if not least <= len(feature.columns) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        yield Fault(
            path=f"{path}.columns", value=list(feature.columns), allowed=f"{feature.kind} takes {wanted} columns"
        )
    for parameter in ("min_count", "buckets", "bins", "period", "timezone"):
        value = getattr(feature, parameter)
        if value is not None and parameter not in taken:
            allowed = f"kind {feature.kind} takes {', '.join(sorted(taken)) or 'no parameter'}"
            yield Fault(path=f"{path}.{parameter}", value=value, allowed=allowed)
    if feature.timezone and feature.timezone not in _time_zones():
        yield Fault(path=f"{path}.timezone", value=feature.timezone, allowed="must be a time zone as America/New_York")
    needed = NEEDED_PARAMETERS.get(feature.kind)
    if needed and getattr(feature, needed) is None:
        yield Fault(path=f"{path}.{needed}", value=None, allowed=f"kind {feature.kind} needs it")


@functools.cache
def _time_zones() -> frozenset[str]:
    """Names of the time zones that this host knows; listing them walks a folder."""
    return frozenset(zoneinfo.available_timezones())
