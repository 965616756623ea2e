"""The columns that a file or a query has, against those that its source declares."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from paddlewheel.recipe_data import Source


def column_faults(source: Source, names: Sequence[str]) -> list[str]:
    """What is wrong with these names: a required column that is missing, or one that stands there twice."""
    faults = []
    for column in source.columns:
        count = names.count(column.name)
        if count > 1:
            faults.append(f"the column {column.name!r} stands there {count} times")
        elif not count and (column.required or column.name in source.key):
            near = difflib.get_close_matches(column.name, names, n=1)
            faults.append(f"the column {column.name!r} is missing" + (f" (there is {near[0]!r})" if near else ""))
    return faults
