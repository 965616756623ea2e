"""A recipe's plain tree: reading YAML, setting `--set` paths, and what pydantic found, as faults for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import yaml

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import adapter

# What stands in for a malformed field that has no default, so that the rest of a recipe can be checked all the same.
STAND_INS: Mapping[str, Any] = {
    "name": "stand_in",
    "title": "",
    "data.landing": "stand_in",
    "data.window": {"train_days": 1, "holdout_days": 1},
    "model.name": "wide_deep",
    "training.epochs": 1,
    "training.global_batch": 1,
}

NO_YAML = (
    """must be a YAML value; a text with { [ : or # in it needs quotes of its own, as path='"{partition}/*.csv"'"""
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One mistake: where it is, what stands there, what may stand there, and the nearest right name."""

    path: str
    value: Any
    allowed: str
    nearest: str | None = None

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        value = "" if self.value is None else f"{_short(self.value)}: "
        return f"{self.path or '(recipe)'}: {value}{self.allowed}{hint}"


def unknown_name(path: str, value: str, names: Iterable[str], allowed: str) -> Fault:
    """A fault for a name that is not among `names`, with the nearest one that is."""
    names = list(names)
    near = difflib.get_close_matches(value, names, n=1)
    listed = f"{', '.join(names[:12])}{', …' if len(names) > 12 else ''}"
    return Fault(path=path, value=value, allowed=f"must be one of {listed} ({allowed})", nearest=next(iter(near), None))


def faults_of(error: pydantic.ValidationError) -> Iterator[Fault]:
    """What pydantic found, one fault each."""
    for entry in error.errors(include_url=False):
        location = [part for part in entry["loc"] if not (isinstance(part, str) and part.startswith("function-"))]
        path = ".".join(str(part) for part in location)
        if entry["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            names = _fields_at(location[:-1])
            yield Fault(
                path=path,
                value=entry["input"],
                allowed=f"no such field; here stand {', '.join(names)}",
                nearest=next(iter(difflib.get_close_matches(str(location[-1]), names, n=1)), None),
            )
        elif entry["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
            yield Fault(path=path, value=None, allowed="is needed and missing")
        elif entry["type"] == "literal_error":
            names = [name.strip().strip("'") for name in re.split(r",| or ", entry["ctx"]["expected"])]
            near = difflib.get_close_matches(str(entry["input"]), names, n=1)
            yield Fault(
                path=path,
                value=entry["input"],
                allowed=f"must be one of {', '.join(names)}",
                nearest=next(iter(near), None),
            )
        else:
            yield Fault(path=path, value=entry["input"], allowed=_in_words(entry))


def _in_words(entry: Mapping[str, Any]) -> str:
    """What pydantic found wrong, in the words of YAML: it speaks of tuples and instances."""
    kind, bounds = entry["type"], entry.get("ctx", {})
    if kind == "tuple_type":
        return "must be a list, as [a, b]"
    if kind in ("dataclass_type", "dict_type"):
        return "must be a mapping, as {field: value}"
    if kind == "too_short":
        return f"must have at least {bounds['min_length']} of them"
    if kind in ("string_too_short", "string_too_long"):
        least, most = bounds.get("min_length"), bounds.get("max_length")
        return f"must have at {'least' if most is None else 'most'} {least if most is None else most} characters"
    if kind == "string_pattern_mismatch":
        return f"must match {bounds['pattern']}"
    message: str = entry["msg"].replace("Input should", "must")
    return message[:1].lower() + message[1:]


def misread_truths(tree: Any, part: Any, path: str = "") -> Iterator[Fault]:
    """Where `tree`, as it was written, says true or false and `part`, as it was read, has a number instead."""
    if isinstance(tree, bool) and not isinstance(part, bool):
        yield Fault(path=path, value=tree, allowed=f"must be a number, not {str(tree).lower()}")
    elif isinstance(tree, Mapping) and isinstance(part, Mapping):
        for name, value in tree.items():
            yield from misread_truths(value, part.get(name), f"{path}.{name}" if path else str(name))
    elif isinstance(tree, list | tuple) and isinstance(part, list):
        for index, (value, read) in enumerate(zip(tree, part, strict=False)):
            yield from misread_truths(value, read, f"{path}.{index}")


def _fields_at(location: Sequence[str | int]) -> list[str]:
    """Field names of the dataclass at a path, walked through the types of `Recipe`."""
    schema = adapter().json_schema()
    node: Any = schema
    for part in location:
        node = _resolve(node, schema)
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
    return list(_resolve(node, schema).get("properties", {}))


def _resolve(node: Any, schema: Any) -> Any:
    for option in node.get("anyOf", ()):
        if "$ref" in option:
            node = option
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def read_yaml(path: Path) -> Any:
    """The mapping in a YAML file. Raises RecipeError naming the file and the way out."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        near = sorted(str(found) for found in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = f"; there are {', '.join(near)}" if near else ""
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"{path}: a recipe is a YAML mapping with name, data, features, model, training")
    return tree


def parse_overrides(overrides: Sequence[str] | Mapping[str, Any], faults: list[Fault]) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of each `path=value` text or mapping entry; a text that is neither becomes a fault."""
    if isinstance(overrides, Mapping):
        yield from ((path, copy_tree(value)) for path, value in overrides.items())
        return
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals or not path:
            faults.append(Fault(path="--set", value=text, allowed="must be path=value, as training.epochs=3"))
            continue
        try:
            yield path, yaml.safe_load(value)
        except yaml.YAMLError:
            faults.append(Fault(path=f"--set {path}", value=value, allowed=NO_YAML))


def set_path(tree: Any, path: str, value: Any, faults: list[Fault]) -> None:
    """Set a dotted path in nested dicts and lists; a section that is missing is made."""
    *parents, last = path.split(".")
    node = tree
    try:
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if isinstance(node, list):
            node[int(last)] = value
        elif isinstance(node, dict):
            node[last] = value
        else:
            raise TypeError
    except (ValueError, IndexError, TypeError, AttributeError):
        faults.append(Fault(path=path, value=value, allowed="the recipe has no such place to set"))


def without_faults(tree: Any, faults: Iterable[Fault]) -> tuple[Any, list[str]]:
    """A copy in which malformed fields are left out or have stand-ins, and the paths of those fields.

    What is wrong with the rows, the joins or the label stays as it is: nothing can stand in for a schema.
    """
    sound, replaced = copy_tree(tree), []
    for section, field in sorted({tuple(f"{fault.path}.".split(".")[:2]) for fault in faults}):
        part = sound.get(section)
        feature = {"name": f"stand_in_{field}", "kind": "category", "columns": [_first_column(sound)]}
        if section == "features" and field and isinstance(part, list):
            part[int(field)] = feature
        elif section == "features":
            sound[section] = [feature]
        elif section == "data" and f"{section}.{field}" not in STAND_INS:
            continue
        elif field and isinstance(part, dict):
            part.pop(field, None)
        else:
            sound.pop(section, None)
        replaced.append(f"{section}.{field}".rstrip("."))
    for path in STAND_INS:
        section, _, field = path.partition(".")
        if path in replaced or section in replaced:
            if field:
                sound.setdefault(section, {})[field] = copy_tree(STAND_INS[path])
            else:
                sound[section] = STAND_INS[path]
    return sound, replaced


def _first_column(tree: Any) -> Any:
    try:
        return tree["data"]["rows"]["columns"][0]["name"]
    except (KeyError, TypeError, IndexError):
        return ""


def copy_tree(value: Any) -> Any:
    """Nested dicts and lists copied, so that overrides leave the caller's alone."""
    if isinstance(value, Mapping):
        return {key: copy_tree(entry) for key, entry in value.items()}
    return [copy_tree(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
