"""Reading recipes: YAML and `--set` in, a checked Recipe out, or one RecipeError that tells every fault together."""

from __future__ import annotations

import functools
import importlib.util
import re
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Column, Feature, Join, Recipe, Source, adapter, dump
from paddlewheel.recipe_tree import (
    Fault,
    copy_tree,
    faults_of,
    parse_overrides,
    read_yaml,
    set_path,
    unknown_name,
    without_faults,
)

# Names that this version has, and names that a later one will have.
REGISTERED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "training.strategy": (
        ("single", "data_parallel"),
        ("zero", "tensor_parallel", "pipeline_parallel", "parameter_server"),
    ),
    "training.sync": (("dense",), ("bf16", "topk", "local_sgd")),
    "model.name": (("wide_deep", "deepfm"), ()),
    "resources.launcher": (("local",), ("slurm", "kubernetes")),
}

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
NUMBERS = ("int64", "float64")
TIME_KINDS = frozenset({"weekday", "month"})


def load_recipe(source: Path | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """The recipe in a YAML file (or a mapping already read), with overrides, checked.

    overrides: `path=value` texts as of `--set` (the value is YAML), or a mapping of dotted paths to values.
    Raises RecipeError with every fault: its path, its value, what is allowed and the nearest right name.
    """
    where = str(source) if isinstance(source, Path) else "recipe"
    tree = read_yaml(source) if isinstance(source, Path) else copy_tree(source)
    faults: list[Fault] = []
    for path, value in parse_overrides(overrides, faults):
        set_path(tree, path, value, faults)
    recipe: Recipe | None = None
    try:
        recipe = adapter().validate_python(tree)
    except pydantic.ValidationError as error:
        faults.extend(faults_of(error))
    if recipe is not None:
        faults.extend(check(recipe))
    else:
        faults.extend(_check_despite(tree, faults))
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise RecipeError(f"{where}: {count}:\n" + "\n".join(f"  {fault}" for fault in faults))
    if recipe is None:
        raise RecipeError(f"{where}: not a recipe")
    return recipe


def check(recipe: Recipe) -> Iterator[Fault]:
    """What one field says about another: names that must exist, features that would leak, devices that cannot."""
    yield from _check_sources(recipe)
    known = known_columns(recipe)
    for index, feature in enumerate(recipe.features):
        yield from _check_feature(f"features.{index}", feature, known)
    yield from _check_unique("features", [feature.name for feature in recipe.features])
    yield from _check_label(recipe)
    for index, column in enumerate(recipe.evaluation.slices):
        if column not in known:
            yield unknown_name(f"evaluation.slices.{index}", column, known, "a column of the rows or of a join")
        elif known[column].known == "after":
            allowed = "is known only after the prediction is asked for: samples do not keep it; slice by another column"
            yield Fault(path=f"evaluation.slices.{index}", value=column, allowed=allowed)
    yield from _check_names(dump(recipe))
    for index, handler in enumerate(recipe.training.handlers):
        yield from _check_registered(f"training.handlers.{index}", handler, (), ())
    yield from _check_device(recipe)


def _check_label(recipe: Recipe) -> Iterator[Fault]:
    rows, name = {column.name: column for column in recipe.data.rows.columns}, recipe.data.label.column
    if name not in rows:
        yield unknown_name("data.label.column", name, rows, "a column of data.rows")
    elif rows[name].type not in NUMBERS:
        yield Fault(path="data.label.column", value=name, allowed=f"must be a number, this is a {rows[name].type}")
    elif rows[name].known != "after":
        allowed = (
            "the label is known only after the prediction; give its column known: after, so that no feature uses it"
        )
        yield Fault(path="data.label.column", value=name, allowed=allowed)


def known_columns(recipe: Recipe) -> dict[str, Column]:
    """Every raw and joined column by the name that features use."""
    columns = {column.name: column for column in recipe.data.rows.columns}
    for join in recipe.data.joins:
        columns.update({f"{join.source.name}_{column.name}": column for column in join.source.columns})
    return columns


def _check_names(tree: Any) -> Iterator[Fault]:
    """Names that must be registered, looked up in a recipe's plain tree, which may be malformed elsewhere."""
    for path, (names, later) in REGISTERED.items():
        section, _, field = path.partition(".")
        part = tree.get(section) if isinstance(tree, dict) else None
        value = part.get(field) if isinstance(part, dict) else None
        if isinstance(value, str):
            yield from _check_registered(path, value, names, later)


def _check_sources(recipe: Recipe) -> Iterator[Fault]:
    sources: list[tuple[str, Source]] = [("data.rows", recipe.data.rows)]
    sources += [(f"data.joins.{index}.source", join.source) for index, join in enumerate(recipe.data.joins)]
    yield from _check_unique("data", [source.name for _, source in sources])
    if "{partition}" not in recipe.data.rows.path:
        yield Fault(path="data.rows.path", value=recipe.data.rows.path, allowed="must contain {partition}")
    for path, source in sources:
        names = [column.name for column in source.columns]
        yield from _check_unique(f"{path}.columns", names)
        for index, name in enumerate(source.key):
            if name not in names:
                yield unknown_name(f"{path}.key.{index}", name, names, "a column of this source")
        for index, column in enumerate(source.columns):
            yield from _check_column(f"{path}.columns.{index}", column)
    left = {column.name: column for column in recipe.data.rows.columns}
    for index, join in enumerate(recipe.data.joins):
        yield from _check_join(f"data.joins.{index}", join, left)


def _check_column(path: str, column: Column) -> Iterator[Fault]:
    if column.pattern is not None:
        try:
            re.compile(column.pattern)
        except re.error as error:
            yield Fault(path=f"{path}.pattern", value=column.pattern, allowed=f"must be a regular expression ({error})")
    if column.minimum is not None and column.maximum is not None and column.minimum > column.maximum:
        yield Fault(path=f"{path}.minimum", value=column.minimum, allowed=f"must not exceed maximum {column.maximum}")
    for field, types in (("minimum", NUMBERS), ("maximum", NUMBERS), ("pattern", ("string",))):
        if getattr(column, field) is not None and column.type not in types:
            allowed = f"is for a column of type {' or '.join(types)}, this is a {column.type}"
            yield Fault(path=f"{path}.{field}", value=getattr(column, field), allowed=allowed)


def _check_join(path: str, join: Join, left: Mapping[str, Column]) -> Iterator[Fault]:
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


def _check_feature(path: str, feature: Feature, known: Mapping[str, Column]) -> Iterator[Fault]:
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
    taken, (least, most) = FEATURE_PARAMETERS[feature.kind]
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


def _check_device(recipe: Recipe) -> Iterator[Fault]:
    if recipe.training.precision != "float32" and recipe.resources.device == "cpu":
        yield Fault(
            path="training.precision",
            value=recipe.training.precision,
            allowed="a CPU computes in float32 only; use float32, or resources.device: gpu",
        )
    ranks = recipe.resources.nodes * recipe.resources.ranks_per_node
    if recipe.training.strategy == "single" and ranks > 1:
        yield Fault(
            path="training.strategy",
            value="single",
            allowed=f"single is for one rank, resources ask for {ranks}; use data_parallel",
        )


def _check_registered(path: str, value: str, names: Sequence[str], later: Sequence[str]) -> Iterator[Fault]:
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


def _check_unique(path: str, names: Sequence[str]) -> Iterator[Fault]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield Fault(path=path, value=name, allowed="stands there twice; each name once")
        seen.add(name)


def _check_despite(tree: Any, faults: Sequence[Fault]) -> Iterator[Fault]:
    """What `check` says of a recipe that is malformed elsewhere, so that all is told in the same go."""
    told = {fault.path for fault in faults}
    sound, replaced = without_faults(tree, faults) if isinstance(tree, dict) else (tree, [])
    try:
        recipe = adapter().validate_python(sound)
    except pydantic.ValidationError:
        found = [*_check_names(tree), *_check_loosely(tree, faults)]
    else:
        found = [*_check_names(tree), *check(recipe)]
    for fault in found:
        if fault.path not in told and not any(f"{fault.path}.".startswith(f"{path}.") for path in replaced):
            told.add(fault.path)
            yield fault


def _check_loosely(tree: Any, faults: Sequence[Fault]) -> Iterator[Fault]:
    """Leaks and unknown columns of a recipe whose schema is malformed."""
    told = {fault.path for fault in faults}
    parts: dict[str, Any] = {}
    for name in ("data", "features"):
        if isinstance(tree, dict) and not any(path == name for path in told):
            parts[name] = tree.get(name)
    columns: dict[str, Column] = {}
    try:
        sources = [("", parts["data"]["rows"])]
        sources += [(f"{join['source']['name']}_", join["source"]) for join in parts["data"].get("joins") or ()]
        for prefix, source in sources:
            for entry in source["columns"]:
                name = f"{prefix}{entry['name']}"
                columns[name] = Column(name=entry["name"], type="string", known=entry.get("known", "before"))
        features = list(enumerate(parts["features"]))
    except (KeyError, TypeError, AttributeError, pydantic.ValidationError):
        return
    slices = tree["evaluation"].get("slices") if isinstance(tree.get("evaluation"), dict) else None
    named = [(f"evaluation.slices.{position}", name) for position, name in _positions(slices)]
    for index, feature in features:
        names = feature.get("columns") if isinstance(feature, dict) else None
        named += [(f"features.{index}.columns.{position}", name) for position, name in _positions(names)]
    for path, name in named:
        if path in told:
            continue
        if name not in columns:
            yield unknown_name(path, name, columns, "a column of the rows or of a join")
        elif columns[name].known == "after":
            yield Fault(path=path, value=name, allowed="is known only after the prediction is asked for")


def _positions(names: Any) -> list[tuple[int, str]]:
    found = enumerate(names if isinstance(names, list) else ())
    return [(position, name) for position, name in found if isinstance(name, str)]
