"""The columns that a file or a query has, against those that its source declares."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from paddlewheel.recipe_data import Source

MOST_TOLD: Final = 10


def column_faults(source: Source, names: Sequence[str]) -> list[str]:
    """What is wrong with these names: a required column that is missing, or one that stands there twice."""
    faults, missing = [], []
    for column in source.columns:
        count = names.count(column.name)
        if count > 1:
            faults.append(f"the column {column.name!r} stands there {count} times")
        elif not count and (column.required or column.name in source.key):
            missing.append(column.name)
    declared = {column.name for column in source.columns}
    near = {name: _nearest(name, [one for one in names if one not in declared]) for name in missing[:MOST_TOLD]}
    hints = ", ".join(repr(found) for found in near.values() if found is not None)
    told = ", ".join(repr(name) for name in near)
    told += f" and {len(missing) - MOST_TOLD} more" if len(missing) > MOST_TOLD else ""
    if missing:
        what = f"the column {told} is missing" if len(missing) == 1 else f"the columns {told} are missing"
        faults.insert(0, what + (f" (there is {hints})" if hints else ""))
    return faults


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that may be meant: the same but for case and blanks, or a near one."""
    same = [one for one in names if one.strip().casefold() == name.casefold()]
    near = same or difflib.get_close_matches(name, names, n=1)
    return near[0] if near else None
