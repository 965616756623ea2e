"""What the card says of the data: the window, the sources, what was refused and why, and what became of the rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paddlewheel.manifest import Manifest
from paddlewheel.storage import Store

MOST_REASONS = 12
MOST_EXAMPLES = 5


def data_view(by_kind: dict[str, list[Manifest]], store: Store) -> dict[str, Any]:
    """Texts of the section, from the manifests behind a run by their kind."""
    shards, tables = by_kind["shards"][0], by_kind.get("table", [])
    counts = row_counts(by_kind)
    facts = shards.facts
    joins = [
        {"name": name, "rows": f"{missed:,}", "share": share(missed, counts["train"] + counts["holdout"])}
        for name, missed in sorted(facts["join_misses"].items())
    ]
    return {
        "window": (
            f"{len(facts['train'])} training days ({_span(facts['train'])}), then {len(facts['holdout'])} holdout days "
            f"({_span(facts['holdout'])}) up to the partition."
        ),
        "funnel": [
            {"name": "Rows in the landing files", "rows": f"{counts['read']:,}", "share": ""},
            _step("Refused", counts["refused"], counts["read"]),
            _step("Without a label (no outcome to learn from)", counts["without_label"], counts["read"]),
            _step("Training samples", counts["train"], counts["read"]),
            _step("Holdout samples", counts["holdout"], counts["read"]),
        ],
        "joins": joins,
        "sources": _sources(tables),
        "refusals": _refusals(tables),
        "refused_examples": _refused_examples(by_kind["validated"][0], store),
        "unreadable": _unreadable(tables),
    }


def row_counts(by_kind: dict[str, list[Manifest]]) -> dict[str, int]:
    """Rows of the main source: read, refused, without_label; samples: train, holdout."""
    shards = by_kind["shards"][0]
    validated = by_kind["validated"][0].facts
    return {
        "read": validated["rows"] + validated["refused"],
        "refused": validated["refused"],
        "without_label": shards.facts["without_label"],
        "train": _rows(shards, "train"),
        "holdout": _rows(shards, "holdout"),
    }


def reasons_of(tables: Iterable[Manifest]) -> dict[str, int]:
    """Refused rows by `source: reason`, the most frequent first."""
    counts: dict[str, int] = {}
    for table in tables:
        for reason, rows in table.facts["reasons"].items():
            name = f"{table.facts['source']}: {reason}"
            counts[name] = counts.get(name, 0) + rows
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def share(rows: int, of: int) -> str:
    """`1.2%`, or empty where there is nothing to divide by; a small share is not rounded to nothing."""
    if not of:
        return ""
    return "under 0.01%" if 0 < rows / of < 0.0001 else f"{rows / of:.2%}" if rows / of < 0.01 else f"{rows / of:.1%}"


def _sources(tables: Iterable[Manifest]) -> list[dict[str, str]]:
    sums: dict[str, list[int]] = {}
    for table in tables:
        facts = table.facts
        total = sums.setdefault(facts["source"], [0, 0, 0, 0])
        unreadable = len(facts["unreadable"])
        for index, value in enumerate((len(facts["files"]) + unreadable, facts["rows"], facts["refused"], unreadable)):
            total[index] += value
    return [
        {
            "name": name,
            "files": f"{files:,}",
            "rows": f"{rows:,}",
            "refused": f"{refused:,}",
            "unreadable": f"{unreadable:,}",
        }
        for name, (files, rows, refused, unreadable) in sums.items()
    ]


def _refused_examples(validated: Manifest, store: Store) -> list[str]:
    from paddlewheel.data.checks.limits import refusal_examples

    return refusal_examples(validated.files, store, most=MOST_EXAMPLES)


def _unreadable(tables: Iterable[Manifest]) -> list[str]:
    """The first files in quarantine with their reasons, then how many more."""
    told = [f"{file['path']}: {file['reason']}" for table in tables for file in table.facts["unreadable"]]
    more = [f"… and {len(told) - MOST_EXAMPLES:,} more"] if len(told) > MOST_EXAMPLES else []
    return told[:MOST_EXAMPLES] + more


def _refusals(tables: Iterable[Manifest]) -> list[dict[str, str]]:
    reasons = list(reasons_of(tables).items())
    shown = [{"name": name, "rows": f"{rows:,}"} for name, rows in reasons[:MOST_REASONS]]
    rest = reasons[MOST_REASONS:]
    if rest:
        shown.append({"name": f"{len(rest)} further reasons", "rows": f"{sum(rows for _, rows in rest):,}"})
    return shown


def _step(name: str, rows: int, of: int) -> dict[str, str]:
    return {"name": name, "rows": f"{rows:,}", "share": share(rows, of)}


def _rows(shards: Manifest, role: str) -> int:
    return sum(shard.rows or 0 for shard in shards.files if shard.facts["role"] == role)


def _span(days: list[str]) -> str:
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
