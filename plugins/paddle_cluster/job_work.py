"""One work as data: the specification of its jobs, its result, and the words for an end without one."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from paddle_cluster.connections import environment_of, named_connections
from paddle_cluster.jobs import JobHandle, JobSpec, JobState, Resources
from paddle_cluster.launchers import Launcher
from paddle_cluster.object_uri import read_object
from paddle_cluster.verdict import judge_exit, newest_verdict


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a work has no result: one line for people, the agent's trace, and whether a retry can help."""

    message: str
    retry: bool
    trace: str = ""


def job_name(job: Mapping[str, Any], number: int) -> str:
    """The name of the work's job of this number."""
    return f"{job['name']}-{number}"


def build_spec(job: Mapping[str, Any], number: int, context: Mapping[str, Any]) -> JobSpec:
    """What the launcher is asked for, with the connections that the command's URIs name. Raises LookupError."""
    known = {field.name for field in fields(Resources)}
    instance = context.get("ti")
    labels = {name: str(getattr(instance, name, "")) for name in ("dag_id", "run_id", "task_id", "try_number")}
    return JobSpec(
        name=job_name(job, number),
        command=tuple(job["command"]),
        resources=Resources(**{key: value for key, value in job.get("resources", {}).items() if key in known}),
        environment=job.get("environment") or {},
        secrets=environment_of(named_connections(job["command"])),
        working_directory=job.get("working_directory"),
        time_limit_seconds=job.get("time_limit_seconds") or job.get("deadline_seconds"),
        labels=labels,
    )


def read_result(result_uri: str) -> dict[str, Any] | None:
    """{digest} and the scalar facts of the result's manifest; None where there is no result.

    Raises ObjectError where the store refuses or does not answer: that is never taken for a missing result.
    """
    raw = read_object(result_uri)
    if raw is None:
        return None
    facts = json.loads(raw).get("facts", {})
    scalars = {name: value for name, value in facts.items() if isinstance(value, bool | int | float | str)}
    return {**scalars, "digest": f"sha256:{hashlib.sha256(raw).hexdigest()}"}


def wait_for_end(launcher: Launcher, handle: JobHandle, seconds: float) -> bool:
    """Whether the job ended within this time."""
    give_up = time.monotonic() + seconds
    while not launcher.poll(handle).state.final:
        if time.monotonic() > give_up:
            return False
        time.sleep(0.5)
    return True


def describe_failure(
    job: Mapping[str, Any], handle: JobHandle, state: str, reason: str, exit_code: int | None
) -> Failure:
    """What the end of this job means, with the agent's own account where there is one of this end."""
    where = f"log: {handle.location or handle.native_id}"
    if state == JobState.SUCCEEDED:
        return Failure(message=f"job {handle.name} ended with 0 but left no {job['result_uri']}; {where}", retry=True)
    if state != JobState.FAILED:
        why = f" ({reason})" if reason else ""
        message = f"job {handle.name}: {state}{why}; a retry goes on from the last commit; {where}"
        return Failure(message=message, retry=True)
    verdict = judge_exit(exit_code)
    parts = [f"job {handle.name} failed with exit code {exit_code}, {verdict.kind}"]
    account = newest_verdict(job["verdict_folder_uri"]) if job.get("verdict_folder_uri") else None
    # An agent that was killed leaves no verdict, and the newest is then that of an earlier job.
    if account is not None and account.exit_code != exit_code:
        account = None
    if account is not None:
        rank = "" if account.rank is None else f" on rank {account.rank}"
        parts.append(f"attempt {account.attempt}{rank}: {account.message}")
    elif reason:
        parts.append(reason)
    mendable = account is None or account.retry
    message = "; ".join((*parts, *([verdict.change] if mendable else []), where))
    return Failure(message=message, retry=verdict.retry and mendable, trace="" if account is None else account.trace)
