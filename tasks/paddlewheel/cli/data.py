"""What `paddlewheel data` prints: (the machine's form, lines for people) of each of its actions."""

from __future__ import annotations

from typing import Any

from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store


def preview(
    recipe: Recipe, store: Store, *, source: str | None, partition: str | None, rows: int
) -> tuple[Any, list[str]]:
    """The first rows of a source as typed, refusals with their reasons, statistics of what was looked at."""
    from paddlewheel.data.landing import preview as room

    found = room.preview(recipe, source=source, partition=partition, rows=rows, store=store)
    return room.tree_of(found), room.lines_of(found)


def diff(store: Store, plan: str, older: str | None) -> tuple[Any, list[str]]:
    """What a plan lists that an older one (None: the one of its recipe made last) does not."""
    from paddlewheel.data.landing.plan_diff import diff_plans, newest_other

    other = older or newest_other(plan, store=store)
    if other is None:
        return {"plan": plan, "older": None, "sources": []}, ["there is no other plan of this recipe"]
    found = diff_plans(plan, other, store=store)
    return found.to_json(), found.lines()
