"""What `paddlewheel models` prints: models with their champions, one model's versions and history, a rollback."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paddlewheel.champions import Champion, champion, list_versions
from paddlewheel.errors import RecipeError
from paddlewheel.registry import rollback
from paddlewheel.storage import Store

Answer = tuple[Any, list[str]]


def overview(store: Store) -> Answer:
    """Every model: its champion, how many versions it has."""
    tree, lines = [], []
    for name in store.children("models"):
        current, versions = champion(store, name), list_versions(store, name)
        tree.append({"name": name, "champion": current.version if current else None, "versions": len(versions)})
        served = f"champion v{current.version} of {current.partition}" if current else "no champion"
        lines.append(f"{name}  {served}, {len(versions)} version{'s' if len(versions) != 1 else ''}")
    return tree, lines or [f"no models in {store.root}"]


def show(store: Store, name: str) -> Answer:
    """One model's versions and the history of its champion. Raises RecipeError for a name that is not there."""
    current, versions = champion(store, name), list_versions(store, name)
    if current is None and not versions:
        known = ", ".join(store.children("models")) or "none"
        raise RecipeError(f"no model {name!r} in {store.root}; there are {known}")
    lines = [_champion_line(current) if current else f"{name}: no champion"]
    for version in versions:
        mark = "*" if current and version.version == current.version else " "
        lines.append(f"{mark} v{version.version}  partition {version.partition}  run {version.run}")
    if current:
        lines.append("history:")
        lines += [f"  {change.at}  v{change.version}  {change.action}  {change.reason}" for change in current.history]
    tree = {"champion": asdict(current) if current else None, "versions": [asdict(version) for version in versions]}
    return tree, lines


def roll_back(store: Store, name: str, version: int | None, *, by: str, reason: str) -> Answer:
    """Move the champion back; says which version is in service now."""
    current = rollback(store, name, version, by=by, reason=reason)
    return asdict(current), [_champion_line(current)]


def _champion_line(current: Champion) -> str:
    return f"{current.name}: champion v{current.version}, partition {current.partition}, run {current.run}"
