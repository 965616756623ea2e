"""Slurm's own words for a job's state, and ours."""

from __future__ import annotations

import logging
import re

from paddle_cluster.jobs import JobState, JobStatus

# Every base state of Slurm 22.05 to 25.05 (man squeue, JOB STATE CODES), and the flags that show in its place.
STATES = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "POWER_UP_NODE": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "COMPLETED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "TIMEOUT": JobState.FAILED,
    "DEADLINE": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "BOOT_FAIL": JobState.LOST,
    "NODE_FAIL": JobState.LOST,
    "CANCELLED": JobState.CANCELLED,
    "PREEMPTED": JobState.PREEMPTED,
    "REVOKED": JobState.CANCELLED,
}
REASONS = {
    "OUT_OF_MEMORY": "the kernel ended it for memory; ask for more by resources.memory, or train with less",
    "TIMEOUT": "it passed Slurm's time limit",
    "NODE_FAIL": "a node of it failed",
    "BOOT_FAIL": "a node of it did not boot",
    "DEADLINE": "it passed its deadline in Slurm",
}
FIELD = re.compile(r"(\w[\w/:]*)=(.*?)(?=\s+\w[\w/:]*=|\s*$)")
NOTHING = {"", "None", "(null)", "N/A"}
log = logging.getLogger(__name__)


def parse_job(line: str) -> dict[str, str]:
    """The fields of one line of `scontrol show job -o`."""
    return {match[1]: match[2] for match in FIELD.finditer(line.strip())}


def status_of(fields: dict[str, str]) -> JobStatus:
    """How the controller says that the job stands. An unknown state is RUNNING, with a warning."""
    native = fields.get("JobState", "").split()[0] if fields.get("JobState") else ""
    state = STATES.get(native)
    if state is None:
        log.warning("job %s: Slurm's state %r is unknown; taken as running", fields.get("JobId"), native)
        state = JobState.RUNNING
    words = fields.get("Reason", "")
    reason = "" if words in NOTHING else words
    if native in REASONS:
        reason = f"{REASONS[native]} ({reason})" if reason else REASONS[native]
    nodes = fields.get("NodeList", "")
    if state is JobState.LOST and nodes not in NOTHING:
        reason = f"{reason}: {nodes}"
    return JobStatus(state=state, native_state=native, reason=reason, exit_code=_exit_code(fields, state))


def _exit_code(fields: dict[str, str], state: JobState) -> int | None:
    """Slurm tells `code:signal`."""
    code, _, signal = fields.get("ExitCode", "").partition(":")
    if not state.final or not code.isdecimal():
        return None
    return 128 + int(signal) if signal.isdecimal() and int(signal) else int(code)
