"""Watches a job from the triggerer, and says once how it ended or that a deadline passed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from paddle_cluster.jobs import JobHandle, JobState, JobStatus
from paddle_cluster.launchers import build_launcher

# A trigger that fires right after the deferral can overtake it, and Airflow then fails the task.
LEAST_SLEEP_SECONDS = 5.0
UNREACHABLE_SECONDS = 600.0
TIMEOUT = "timeout"
UNREACHABLE = "unreachable"


class JobTrigger(BaseTrigger):
    """Yields one event {handle, state, reason, exit_code}; state is a final JobState, "timeout" or "unreachable".

    Deadlines are seconds since the epoch, so that a triggerer that was restarted keeps them: `deadline_at` for the
    whole job, `admission_at` for the time it may spend waiting to start. `settings` are those of the launcher.
    """

    def __init__(
        self,
        *,
        handle: dict[str, str],
        settings: dict[str, Any],
        poll_seconds: float = LEAST_SLEEP_SECONDS,
        deadline_at: float | None = None,
        admission_at: float | None = None,
    ) -> None:
        super().__init__()
        self.handle = handle
        self.settings = settings
        self.poll_seconds = poll_seconds
        self.deadline_at = deadline_at
        self.admission_at = admission_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What another triggerer needs to go on watching."""
        names = ("handle", "settings", "poll_seconds", "deadline_at", "admission_at")
        return "paddle_cluster.job_trigger.JobTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is something to say."""
        handle = JobHandle.from_json(self.handle)
        launcher = build_launcher(handle.launcher, **self.settings)
        told: JobStatus | None = None
        answered_at = time.time()
        await asyncio.sleep(max(LEAST_SLEEP_SECONDS, self.poll_seconds))
        while True:
            try:
                status = await asyncio.to_thread(launcher.poll, handle)
                answered_at = time.time()
            except Exception as error:
                # A cluster that does not answer for a while says nothing about the job.
                self.log.warning("job %s: the launcher did not answer: %s", handle.name, error)
                if time.time() - answered_at > UNREACHABLE_SECONDS:
                    yield self._event(
                        UNREACHABLE, f"the launcher has not answered for {UNREACHABLE_SECONDS:.0f} s: {error}"
                    )
                    return
            else:
                if status != told:
                    self.log.info("job %s: %s", handle.name, f"{status.state.value} {status.reason}".rstrip())
                    told = status
                if status.state.final:
                    yield self._event(status.state.value, status.reason, status.exit_code)
                    return
            if (reason := self._overdue(told)) is not None:
                yield self._event(TIMEOUT, reason)
                return
            await asyncio.sleep(self.poll_seconds)

    async def on_kill(self) -> None:
        """Someone marked the task while it was deferred: the job is no longer wanted."""
        handle = JobHandle.from_json(self.handle)
        launcher = build_launcher(handle.launcher, **self.settings)
        await asyncio.to_thread(launcher.cancel, handle)

    def _overdue(self, status: JobStatus | None) -> str | None:
        """Which deadline has passed, in words; None where none has."""
        now = time.time()
        if self.deadline_at is not None and now >= self.deadline_at:
            return "the job's deadline passed"
        pending = status is not None and status.state is JobState.PENDING
        if status is not None and pending and self.admission_at is not None and now >= self.admission_at:
            why = " ".join(filter(None, (status.native_state, status.reason))) or "no reason given"
            return f"the job was not admitted in time; the queue says: {why}"
        return None

    def _event(self, state: str, reason: str, exit_code: int | None = None) -> TriggerEvent:
        return TriggerEvent({"handle": self.handle, "state": state, "reason": reason, "exit_code": exit_code})
