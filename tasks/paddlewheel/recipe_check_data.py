"""The data section of a recipe against itself: columns that exist, keys and times of joins, no leak of the label."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from paddlewheel.data.landing.listing import by_day
from paddlewheel.data.readers import READERS
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_check_drift import check_drift
from paddlewheel.recipe_check_sources import check_origin
from paddlewheel.recipe_data import SHARDINGS, Column, ColumnType, Join, Scalar, Source
from paddlewheel.recipe_tree import Fault, unknown_name

NUMBERS = ("int64", "float64")
MAX_TOLERANCE_HOURS = 366 * 24


def check_sources(recipe: Recipe) -> Iterator[Fault]:
    sources: list[tuple[str, Source]] = [("data.rows", recipe.data.rows)]
    sources += [(f"data.joins.{index}.source", join.source) for index, join in enumerate(recipe.data.joins)]
    yield from check_unique("data", [source.name for _, source in sources])
    for path, source in sources:
        yield from check_origin(path, source, by_day=source is recipe.data.rows)
        if source.sql is None:
            yield from check_registered(
                f"{path}.format", source.format, [name for name in READERS if name != "sql"], ()
            )
        names = [column.name for column in source.columns]
        yield from check_unique(f"{path}.columns", names)
        for index, name in enumerate(source.key):
            if name not in names:
                yield unknown_name(f"{path}.key.{index}", name, names, "a column of this source")
        yield from check_unique(f"{path}.key", source.key)
        for index, column in enumerate(source.columns):
            yield from _check_column(f"{path}.columns.{index}", column)
    left = {column.name: column for column in recipe.data.rows.columns}
    for index, join in enumerate(recipe.data.joins):
        yield from _check_join(f"data.joins.{index}", join, left)
    yield from check_drift(recipe.data)


def _check_column(path: str, column: Column) -> Iterator[Fault]:
    if column.pattern is not None:
        try:
            re.compile(column.pattern)
        except re.error as error:
            yield Fault(path=f"{path}.pattern", value=column.pattern, allowed=f"must be a regular expression ({error})")
    if column.minimum is not None and column.maximum is not None and column.minimum > column.maximum:
        yield Fault(path=f"{path}.minimum", value=column.minimum, allowed=f"must not exceed maximum {column.maximum}")
    for index, value in enumerate(column.allowed or ()):
        if not _is_of(column.type, value):
            allowed = f"is not of the column's type {column.type}, so no row could have it"
            yield Fault(path=f"{path}.allowed.{index}", value=value, allowed=allowed)
    if column.allowed == ():
        yield Fault(path=f"{path}.allowed", value=[], allowed="names no value, so every row would be refused")
    for field, types in (("minimum", NUMBERS), ("maximum", NUMBERS), ("pattern", ("string",))):
        if getattr(column, field) is not None and column.type not in types:
            allowed = f"is for a column of type {' or '.join(types)}, this is a {column.type}"
            yield Fault(path=f"{path}.{field}", value=getattr(column, field), allowed=allowed)


def _is_of(kind: ColumnType, value: Scalar) -> bool:
    """Whether an allowed value can be one of this type, as far as can be told without its format."""
    text = str(value)
    if kind == "int64":
        return re.fullmatch(r"[+-]?\d+", text) is not None and -(2**63) <= int(text) < 2**63
    if kind == "float64":
        try:
            return math.isfinite(float(text))
        except ValueError:
            return False
    if kind == "string":
        return not isinstance(value, bool)  # NO, unquoted in YAML, is false
    return kind != "bool" or text.lower() in ("true", "t", "1", "false", "f", "0")


def _check_join(path: str, join: Join, left: Mapping[str, Column]) -> Iterator[Fault]:
    if join.tolerance_hours is not None and join.tolerance_hours > MAX_TOLERANCE_HOURS and by_day(join.source):
        allowed = f"must be at most {MAX_TOLERANCE_HOURS} (a year): so many days before the window would be read"
        yield Fault(path=f"{path}.tolerance_hours", value=join.tolerance_hours, allowed=allowed)
    right = {column.name: column for column in join.source.columns}
    for left_name, right_name in join.keys.items():
        if left_name not in left:
            yield unknown_name(f"{path}.keys", left_name, left, "a column of data.rows")
        if right_name not in right:
            yield unknown_name(f"{path}.keys.{left_name}", right_name, right, f"a column of {join.source.name}")
        if left_name in left and right_name in right:
            types = (left[left_name].type, right[right_name].type)
            if types[0] != types[1]:
                yield Fault(
                    path=f"{path}.keys.{left_name}", value=right_name, allowed=f"joins {types[0]} to {types[1]}"
                )
            if "after" in (left[left_name].known, right[right_name].known):
                allowed = "is known only after the prediction is asked for"
                yield Fault(path=f"{path}.keys.{left_name}", value=right_name, allowed=allowed)
    for side, moment, columns in (("left_time", join.left_time, left), ("right_time", join.right_time, right)):
        if join.kind == "asof" and moment is None:
            yield Fault(path=f"{path}.{side}", value=None, allowed="an asof join needs it")
        elif join.kind == "lookup" and moment is not None:
            yield Fault(path=f"{path}.{side}", value=moment.column, allowed="a lookup join takes no time")
        elif moment is not None:
            for name in filter(None, (moment.column, moment.plus_minutes)):
                if name not in columns:
                    yield unknown_name(f"{path}.{side}", name, columns, "a column of that side")
                elif columns[name].known == "after":
                    yield Fault(
                        path=f"{path}.{side}", value=name, allowed="is known only after the prediction is asked for"
                    )
            for field, types in (("column", ("timestamp", "date")), ("plus_minutes", NUMBERS)):
                column = columns.get(getattr(moment, field) or "")
                if column and column.type not in types:
                    allowed = f"must be a {' or '.join(types)}, this is a {column.type}"
                    yield Fault(path=f"{path}.{side}.{field}", value=column.name, allowed=allowed)


def check_label(recipe: Recipe) -> Iterator[Fault]:
    rows, name = {column.name: column for column in recipe.data.rows.columns}, recipe.data.label.column
    if name not in rows:
        yield unknown_name("data.label.column", name, rows, "a column of data.rows")
    elif rows[name].type not in (*NUMBERS, "bool"):
        allowed = f"must be an int64, a float64 or a bool, this is a {rows[name].type}"
        yield Fault(path="data.label.column", value=name, allowed=allowed)
    elif rows[name].type == "bool" and recipe.data.label.above != 0:
        yield Fault(
            path="data.label.above", value=recipe.data.label.above, allowed="a bool is its own label; leave it out"
        )
    elif rows[name].known != "after":
        allowed = (
            "the label is known only after the prediction; give its column known: after, so that no feature uses it"
        )
        yield Fault(path="data.label.column", value=name, allowed=allowed)


def check_samples(recipe: Recipe) -> Iterator[Fault]:
    """A sharding that there is, and no two columns of a sample with one name."""
    yield from check_registered("data.sharding.by", recipe.data.sharding.by, SHARDINGS, ())
    taken = {"sample_id": "the sample's id", "label": "the sample's label"}
    for index, column in enumerate(recipe.data.rows.columns):
        if column.known == "before" and column.name in taken:
            yield _taken(f"data.rows.columns.{index}", column.name, taken)
        taken.setdefault(column.name, "a column of data.rows")
    for place, join in enumerate(recipe.data.joins):
        for index, column in enumerate(join.source.columns):
            name = f"{join.source.name}_{column.name}"
            if column.known == "before" and name in taken:
                yield _taken(f"data.joins.{place}.source.columns.{index}", name, taken)
            taken.setdefault(name, "a joined column")


def _taken(path: str, name: str, taken: Mapping[str, str]) -> Fault:
    return Fault(
        path=f"{path}.name", value=name, allowed=f"is the name of {taken[name]} in a sample; rename the column"
    )


def known_columns(recipe: Recipe) -> dict[str, Column]:
    """Every raw and joined column by the name that features use."""
    columns = {column.name: column for column in recipe.data.rows.columns}
    for join in recipe.data.joins:
        columns.update({f"{join.source.name}_{column.name}": column for column in join.source.columns})
    return columns


def check_unique(path: str, names: Sequence[str]) -> Iterator[Fault]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield Fault(path=path, value=name, allowed="stands there twice; each name once")
        seen.add(name)


def check_registered(path: str, value: str, names: Sequence[str], later: Sequence[str]) -> Iterator[Fault]:
    """A registered name, or `package.module:name` of an importable module."""
    if value in names:
        return
    if value in later:
        yield Fault(path=path, value=value, allowed=f"not in this version; use {' or '.join(names)}")
    elif ":" in value:
        module = value.partition(":")[0]
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        if found is None:
            yield Fault(path=path, value=value, allowed=f"there is no module {module!r} to import")
    else:
        yield unknown_name(path, value, names, "or package.module:name of your own")
