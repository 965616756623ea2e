"""Why a job ended and what a retry should change: the agent's exit codes, and the verdict file it leaves."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paddle_cluster.object_uri import ObjectError, list_names, read_object

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an exit code means: its kind, whether a retry can help, and what should change before or with it."""

    kind: str
    retry: bool
    change: str


@dataclass(frozen=True, kw_only=True)
class AgentVerdict:
    """What the agent wrote about an attempt's end; text is empty where it had nothing to say.

    retry: False where a kind of end that a retry may mend cannot be mended in this case, as the message says.
    """

    attempt: int
    exit_code: int
    message: str
    trace: str
    rank: int | None = None
    retry: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)


VERDICTS = {
    0: Verdict(kind="done", retry=False, change="nothing"),
    10: Verdict(kind="user code failed", retry=False, change="mend the code that the trace names"),
    11: Verdict(kind="data or recipe fault", retry=False, change="mend the data or the recipe"),
    12: Verdict(
        kind="out of memory", retry=True, change="a retry takes half the micro-batch and twice the accumulation"
    ),
    13: Verdict(kind="node or rendezvous fault", retry=True, change="a retry leaves the host out where it can"),
    14: Verdict(kind="pre-empted", retry=True, change="a retry goes on from the commit it made"),
    15: Verdict(kind="hang", retry=True, change="a retry goes on from the last commit; the stacks are in the verdict"),
    16: Verdict(kind="ranks died too often", retry=True, change="a retry goes on from the last commit"),
    17: Verdict(kind="fenced off by a newer attempt", retry=False, change="nothing: the newer attempt goes on"),
    18: Verdict(kind="storage fault", retry=True, change="check that the store answers and has room"),
    126: Verdict(kind="command not executable", retry=False, change="check the command and the image or environment"),
    127: Verdict(kind="command not found", retry=False, change="check the command and the image or environment"),
    137: Verdict(kind="killed", retry=True, change="a retry goes on from the last commit; check the host's memory"),
}


def judge_exit(exit_code: int | None) -> Verdict:
    """The meaning of an agent's exit code. One that is not in the table is worth a retry."""
    if exit_code is None:
        return Verdict(kind="no exit code", retry=True, change="a retry goes on from the last commit")
    unknown = Verdict(
        kind="unknown failure", retry=True, change="see the job's log; a retry goes on from the last commit"
    )
    return VERDICTS.get(exit_code, unknown)


def newest_verdict(verdict_folder_uri: str) -> AgentVerdict | None:
    """The agent's newest `N.verdict.json` in this folder; None where there is none or it cannot be read."""
    try:
        numbers = [
            int(name.partition(".")[0])
            for name in list_names(verdict_folder_uri)
            if name.endswith(".verdict.json") and name.partition(".")[0].isdecimal()
        ]
        raw = read_object(f"{verdict_folder_uri}/{max(numbers)}.verdict.json") if numbers else None
        if raw is None:
            return None
        tree = json.loads(raw)
        return AgentVerdict(
            attempt=int(tree["attempt"]),
            exit_code=int(tree["exit_code"]),
            message=str(tree.get("message") or ""),
            trace=str(tree.get("trace") or ""),
            rank=tree.get("rank"),
            retry=tree.get("retry") is not False,
            facts={name: tree[name] for name in ("kind", "signal", "step") if tree.get(name) is not None},
        )
    except (ObjectError, ValueError, KeyError, TypeError) as error:
        # The job's end is known without it; what is lost is the agent's account of it.
        log.warning("no verdict could be read in %s: %s", verdict_folder_uri, error)
        return None
