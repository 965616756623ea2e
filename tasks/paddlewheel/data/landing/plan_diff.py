"""What one plan lists that another does not: files new, changed, gone, by source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from paddlewheel.data.datasets import read_kind
from paddlewheel.data.landing.groups import FileGroup, GroupHead, read_groups, read_heads
from paddlewheel.errors import RecipeError
from paddlewheel.manifest import MANIFEST_NAME
from paddlewheel.storage import Store

MAX_TOLD: Final = 5


@dataclass(kw_only=True)
class SourceDiff:
    """Paths of one source. left: how many files are gone only because their day has left the window."""

    source: str
    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    left: int = 0
    unchanged: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class PlanDiff:
    """Two plans of a recipe, by their manifests' URIs, and what differs."""

    plan: str
    older: str
    older_partition: str
    sources: tuple[SourceDiff, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "sources": [source.to_json() for source in self.sources]}

    def lines(self) -> list[str]:
        """A line a source, then the first paths of each kind."""
        told = [f"against the plan of {self.older_partition} ({self.older}):"]
        for one in self.sources:
            left = f", {one.left} left with their days" if one.left else ""
            told.append(
                f"{one.source}: {len(one.new)} new, {len(one.changed)} changed, {len(one.gone)} gone, "
                f"{one.unchanged} as before{left}"
            )
            for kind, paths in (("new", one.new), ("changed", one.changed), ("gone", one.gone)):
                told += [f"  {kind} {path}" for path in paths[:MAX_TOLD]]
                if len(paths) > MAX_TOLD:
                    told.append(f"  … and {len(paths) - MAX_TOLD} more {kind}")
        return told


def diff_plans(plan: str, older: str, *, store: Store) -> PlanDiff:
    """What the plan lists that the older one does not, and the other way round; groups of one receipt are not opened.

    Raises RecipeError where they are plans of two recipes.
    """
    newer_plan, older_plan = read_kind(store, plan, "plan"), read_kind(store, older, "plan")
    if newer_plan.name != older_plan.name:
        raise RecipeError(
            f"{plan} is a plan of {newer_plan.name}, {older} one of {older_plan.name}: nothing to compare"
        )
    before, now = ({head.receipt: head for head in read_heads(store, one)} for one in (older_plan, newer_plan))
    same = before.keys() & now.keys()
    found = {name: SourceDiff(source=name) for name in sorted({head.source for head in (before | now).values()})}
    for receipt in same:
        found[now[receipt].source].unchanged += now[receipt].num_files

    def differs(_number: int, head: GroupHead) -> bool:
        return head.receipt not in same

    listed = _files(read_groups(store, older_plan, wanted=differs))
    days = {None, *newer_plan.facts["train"], *newer_plan.facts["holdout"]}
    for group in read_groups(store, newer_plan, wanted=differs):
        one, known = found[group.source], listed.get(group.source, {})
        for file in group.files:
            version = known.pop(file.path, None)
            if version is None:
                one.new.append(file.path)
            elif version[:2] != file[1:]:
                one.changed.append(file.path)
            else:
                one.unchanged += 1
    for source, known in listed.items():
        one = found[source]
        one.gone = [path for path, (_, _, day) in known.items() if day in days]
        one.left = len(known) - len(one.gone)
    return PlanDiff(
        plan=plan, older=older, older_partition=older_plan.facts["partition"], sources=tuple(found.values())
    )  # fmt: skip


def newest_other(plan: str, *, store: Store) -> str | None:
    """The URI of the plan of the same recipe that was made last, this one left out; None where there is no other."""
    manifest = read_kind(store, plan, "plan")
    mine = f"{manifest.key}/{MANIFEST_NAME}"
    others = [
        (stat.modified_seconds, stat.key)
        for stat in store.list(manifest.key.rpartition("/")[0])
        if stat.key.endswith(f"/{MANIFEST_NAME}") and stat.key != mine
    ]
    return store.uri(max(others)[1]) if others else None


def _files(groups: Iterable[FileGroup]) -> dict[str, dict[str, tuple[int, str, str | None]]]:
    """Size, etag and day by source and path."""
    found: dict[str, dict[str, tuple[int, str, str | None]]] = {}
    for group in groups:
        some = found.setdefault(group.source, {})
        for path, size, etag in group.files:
            some[path] = (size, etag, group.partition)
    return found
