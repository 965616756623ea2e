"""Which columns and parameters a feature's kind takes."""

from __future__ import annotations

import functools
import zoneinfo
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paddlewheel.recipe_data import Column, ColumnType, Feature, FeatureKind
from paddlewheel.recipe_tree import Fault, unknown_name

PARAMETERS = (
    "min_count",
    "max_size",
    "buckets",
    "bins",
    "period",
    "timezone",
    "lower",
    "upper",
    "length",
    "separator",
    "ngram",
)
NUMBERS: tuple[ColumnType, ...] = ("int64", "float64", "bool")
TEXTS: tuple[ColumnType, ...] = ("string",)
TIMES: tuple[ColumnType, ...] = ("timestamp", "date")
VALUES: tuple[ColumnType, ...] = ("string", *NUMBERS, *TIMES)
TYPE_NAMES = {NUMBERS: "a number", TEXTS: "a string", TIMES: "a timestamp", ("timestamp",): "a timestamp",
              VALUES: "a value"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """Types of the columns, how many there are (least, most), parameters that are needed and that may be given."""

    types: tuple[ColumnType, ...]
    columns: tuple[int, int] = (1, 1)
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


RULES: Mapping[FeatureKind, _Rule] = {
    "category": _Rule(types=VALUES, takes=("min_count", "max_size")),
    "hash": _Rule(types=VALUES, needs=("buckets",)),
    "cross": _Rule(types=VALUES, columns=(2, 8), needs=("buckets",)),
    "standard": _Rule(types=NUMBERS),
    "log1p": _Rule(types=NUMBERS),
    "clip": _Rule(types=NUMBERS, takes=("lower", "upper")),
    "quantile": _Rule(types=NUMBERS, needs=("bins",)),
    "clock": _Rule(types=NUMBERS),
    "cyclic": _Rule(types=NUMBERS, needs=("period",)),
    "hour": _Rule(types=("timestamp",), takes=("timezone",)),
    "weekday": _Rule(types=TIMES, takes=("timezone",)),
    "month": _Rule(types=TIMES, takes=("timezone",)),
    "year_day": _Rule(types=TIMES, takes=("timezone",)),
    "age": _Rule(types=NUMBERS, columns=(2, 2)),
    "multi": _Rule(types=TEXTS, needs=("length", "separator"), takes=("min_count", "max_size")),
    "words": _Rule(types=TEXTS, needs=("length", "buckets"), takes=("ngram",)),
    "characters": _Rule(types=TEXTS, needs=("length", "buckets"), takes=("ngram",)),
    "bytes": _Rule(types=TEXTS, needs=("length",)),
}


def check_feature(path: str, feature: Feature, known: Mapping[str, Column]) -> Iterator[Fault]:
    rule = RULES[feature.kind]
    for index, name in enumerate(feature.columns):
        yield from _check_column(f"{path}.columns.{index}", feature, name, rule, known)
    least, most = rule.columns
    if not least <= len(feature.columns) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        yield Fault(
            path=f"{path}.columns", value=list(feature.columns), allowed=f"{feature.kind} takes {wanted} columns"
        )
    taken = (*rule.needs, *rule.takes)
    for parameter in PARAMETERS:
        value = getattr(feature, parameter)
        if value is not None and parameter not in taken:
            allowed = f"kind {feature.kind} takes {', '.join(taken) or 'no parameter'}"
            yield Fault(path=f"{path}.{parameter}", value=value, allowed=allowed)
        elif value is None and parameter in rule.needs:
            yield Fault(path=f"{path}.{parameter}", value=None, allowed=f"kind {feature.kind} needs it")
    yield from _check_values(path, feature)


def _check_column(path: str, feature: Feature, name: str, rule: _Rule, known: Mapping[str, Column]) -> Iterator[Fault]:
    if name not in known:
        yield unknown_name(path, name, known, "a column of the rows or of a join")
        return
    column = known[name]
    if column.known == "after":
        yield Fault(
            path=path,
            value=name,
            allowed=f"feature {feature.name!r} would use a column that is known only after the prediction is asked "
            "for; use one with known: before",
        )
    if column.type not in rule.types:
        needed = TYPE_NAMES[rule.types]
        yield Fault(path=path, value=name, allowed=f"kind {feature.kind} needs {needed}, this is a {column.type}")


def _check_values(path: str, feature: Feature) -> Iterator[Fault]:
    if feature.timezone and feature.timezone not in _time_zones():
        yield Fault(path=f"{path}.timezone", value=feature.timezone, allowed="must be a time zone as America/New_York")
    if feature.kind == "clip":
        if feature.lower is None and feature.upper is None:
            yield Fault(path=f"{path}.lower", value=None, allowed="kind clip needs it, or upper, or both")
        elif feature.lower is not None and feature.upper is not None and feature.lower >= feature.upper:
            yield Fault(path=f"{path}.lower", value=feature.lower, allowed=f"must be below upper {feature.upper}")
    if feature.kind == "characters" and feature.ngram is not None and feature.ngram < 3:
        allowed = "must be at least 3: n-grams of characters are of 3 and more"
        yield Fault(path=f"{path}.ngram", value=feature.ngram, allowed=allowed)


@functools.cache
def _time_zones() -> frozenset[str]:
    """Names of the time zones that this host knows; listing them walks a folder."""
    return frozenset(zoneinfo.available_timezones())
