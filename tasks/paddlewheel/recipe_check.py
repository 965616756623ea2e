"""Reading recipes: YAML and `--set` in, a checked Recipe out, or one RecipeError that tells every fault together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Recipe, adapter, dump
from paddlewheel.recipe_check_acceleration import check_acceleration
from paddlewheel.recipe_check_data import (
    check_label,
    check_registered,
    check_samples,
    check_sources,
    check_unique,
    known_columns,
)
from paddlewheel.recipe_check_features import check_feature
from paddlewheel.recipe_check_optimizer import check_optimizer
from paddlewheel.recipe_check_training import check_training
from paddlewheel.recipe_data import Column
from paddlewheel.recipe_tree import (
    Fault,
    copy_tree,
    faults_of,
    misread_truths,
    parse_overrides,
    read_yaml,
    set_path,
    unknown_name,
    without_faults,
)

# Names that this version has, and names that a later one will have.
REGISTERED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "training.strategy": (
        ("single", "data_parallel", "zero", "tensor_parallel", "pipeline_parallel", "mesh"),
        ("parameter_server",),
    ),
    "training.sync": (("dense", "bf16", "topk", "local_sgd"), ()),
    "model.name": (("wide_deep", "deepfm", "resnet18", "resnet50", "gpt"), ()),
    "resources.launcher": (("local",), ("slurm", "kubernetes")),
}


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
        faults.extend(misread_truths(tree, dump(recipe)))
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
    yield from check_sources(recipe)
    known = known_columns(recipe)
    for index, feature in enumerate(recipe.features):
        yield from check_feature(f"features.{index}", feature, known)
    yield from check_unique("features", [feature.name for feature in recipe.features])
    yield from check_label(recipe)
    yield from check_samples(recipe)
    for index, column in enumerate(recipe.evaluation.slices):
        if column not in known:
            yield unknown_name(f"evaluation.slices.{index}", column, known, "a column of the rows or of a join")
        elif known[column].known == "after":
            allowed = "is known only after the prediction is asked for: samples do not keep it; slice by another column"
            yield Fault(path=f"evaluation.slices.{index}", value=column, allowed=allowed)
    yield from _check_names(dump(recipe))
    for index, handler in enumerate(recipe.training.handlers):
        yield from check_registered(f"training.handlers.{index}", handler, (), ())
    for index, metric in enumerate(recipe.evaluation.metrics):
        yield from check_registered(f"evaluation.metrics.{index}", metric, (), ())
    yield from check_unique("evaluation.metrics", recipe.evaluation.metrics)
    if recipe.training.loss is not None:
        yield from check_registered("training.loss", recipe.training.loss, (), ())
    yield from check_optimizer(recipe)
    yield from check_acceleration(recipe)
    yield from check_training(recipe)


def _check_names(tree: Any) -> Iterator[Fault]:
    """Names that must be registered, looked up in a recipe's plain tree, which may be malformed elsewhere."""
    for path, (names, later) in REGISTERED.items():
        section, _, field = path.partition(".")
        part = tree.get(section) if isinstance(tree, dict) else None
        value = part.get(field) if isinstance(part, dict) else None
        if isinstance(value, str):
            yield from check_registered(path, value, names, later)


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
