"""A JSON schema and a file's own values into the fields of Airflow's trigger form, and a filled form back into changes.

The schema is plain JSON, so that parsing a DAG neither imports the library that wrote it nor builds its validators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Param

LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "enum")


@dataclass(frozen=True, kw_only=True)
class FormField:
    """One field of the form: the dotted path of the value it changes, and how it is shown."""

    path: str
    title: str
    section: str
    description: str = ""


def build_params(schema: Mapping[str, Any], values: Mapping[str, Any], fields: Sequence[FormField]) -> dict[str, Param]:
    """A Param a field, named by its path; type and limits from the schema, the default from `values`.

    A value that `values` leaves out takes the schema's default. Raises KeyError for a path that the schema has not.
    """
    params = {}
    for field in fields:
        node = find_node(schema, field.path)
        default = _value_at(values, field.path, node.get("default"))
        shown = {name: node[name] for name in LIMITS if name in node}
        kind: Any = node.get("type", "string")
        if default is None:
            kind = ["null", kind] if isinstance(kind, str) else kind
            if "enum" in shown:
                shown["enum"] = [*shown["enum"], None]
        params[field.path] = Param(
            default, type=kind, title=field.title, section=field.section, description=field.description or None, **shown
        )
    return params


def read_changes(
    params: Mapping[str, Any], schema: Mapping[str, Any], values: Mapping[str, Any], fields: Sequence[FormField]
) -> dict[str, Any]:
    """{path: value} of the fields that somebody changed in the form."""
    changes = {}
    for field in fields:
        before = _value_at(values, field.path, find_node(schema, field.path).get("default"))
        after = params.get(field.path, before)
        if after != before:
            changes[field.path] = after
    return changes


def find_node(schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The schema of the value at a dotted path, references followed; `null` is left out of its alternatives."""
    node: Mapping[str, Any] = schema
    for part in path.split("."):
        node = _resolve(node, schema)["properties"][part]
    resolved = dict(_resolve(node, schema))
    if "default" in node:
        resolved["default"] = node["default"]
    return resolved


def _resolve(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    for option in node.get("anyOf", ()):
        if option.get("type") != "null":
            node = {**node, **option}
            break
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def _value_at(values: Mapping[str, Any], path: str, default: Any) -> Any:
    node: Any = values
    for part in path.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return default
        node = node[part]
    return node
