"""The text of a source's query, looked at without a database: its bounds, its order, and what it may not be.

The partition's bounds are bound, never pasted: `{start}` and `{end}` become the parameters of a prepared statement.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from paddlewheel.recipe_data import Sql

BOUNDS: Final = ("start", "end")
TOKEN: Final = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)
    |(?P<text>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$)
    |(?P<name>"(?:[^"]|"")*")
    |\{(?P<bound>start|end)\}
    |(?P<word>[A-Za-z_]\w*)
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A query as a database takes it. names: `start` and `end` in the order of its parameters, each once."""

    text: str
    names: tuple[str, ...]


def bind(query: str, parameter: Callable[[int], str]) -> Bound:
    """The query with each bound as `parameter(n)`, n from 1; a bound that stands twice is one parameter."""
    names: list[str] = []
    parts = []
    for kind, text in _tokens(query):
        if kind != "bound":
            parts.append(text)
            continue
        name = text.strip("{}")
        if name not in names:
            names.append(name)
        parts.append(parameter(names.index(name) + 1))
    return Bound(text="".join(parts), names=tuple(names))


def bounds_of(sql: Sql) -> frozenset[str]:
    """Which of `start` and `end` the query asks for; none: it is the same for every day."""
    return frozenset(bind(sql.query, str).names)


def is_by_day(sql: Sql) -> bool:
    """Whether the query is asked once a day (as `{partition}` in a path), not once for all."""
    return bool(bounds_of(sql))


def is_ordered(query: str) -> bool:
    """Whether the query itself ends in an order: ORDER BY outside of every bracket."""
    words, depth = [], 0
    for kind, text in _tokens(query):
        depth += (text == "(") - (text == ")") if kind == "other" else 0
        if kind not in ("space", "comment"):
            words.append(text.lower() if not depth else "")
    return any(pair == ("order", "by") for pair in itertools.pairwise(words))


def faults_of_query(query: str) -> Iterator[str]:
    """What a query may not be."""
    tokens = [(kind, text) for kind, text in _tokens(query) if kind not in ("space", "comment")]
    first = tokens[0][1].lower() if tokens else ""
    if first not in ("select", "with", "values", "table"):
        yield "must be one query: SELECT … or WITH …"
    if ("other", ";") in tokens:
        yield "must be one query: no semicolon between statements"
    for kind, text in tokens:
        if kind in ("text", "name") and any(f"{{{name}}}" in text for name in BOUNDS):
            yield f"takes its bounds without quotes, as day >= {{start}} AND day < {{end}}; here is {text}"
    if any(text == "$" for _, text in tokens) and re.search(r"\$\d", query):
        yield "takes no parameters but {start} and {end}"


def ordered(query: str, order: Sequence[str]) -> str:
    """The query as a table `source` in this order."""
    return f"SELECT source.* FROM (\n{bare(query)}\n) AS source ORDER BY {', '.join(order)}"


def counted(query: str) -> str:
    """The number of the query's rows."""
    return f"SELECT count(*) FROM (\n{bare(query)}\n) AS source"


def bare(query: str) -> str:
    """The query without a semicolon at its end."""
    return query.strip().rstrip(";").rstrip()


def quote_name(name: str) -> str:
    """A column's name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _tokens(query: str) -> Iterator[tuple[str, str]]:
    for match in TOKEN.finditer(bare(query)):
        yield match.lastgroup or "other", match[0]
