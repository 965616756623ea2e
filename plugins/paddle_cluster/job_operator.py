"""The life of one job as an Airflow task: find it done, adopt or submit it, give the slot back, judge its end.

A work has a name, and its jobs are NAME-1, NAME-2, … A name is fixed before its job is submitted and `submit` adopts
a job that exists, so that whatever process is killed wherever, a work never has two jobs that live. The work is done
when its result exists, and not before: a job that succeeded without one has failed, a lost one that left one has not.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralTimeout

from paddle_cluster.connections import extra_of
from paddle_cluster.job_work import build_spec, describe_failure, job_name, read_result, wait_for_end
from paddle_cluster.jobs import JobHandle, JobSpec, JobState, SubmitError
from paddle_cluster.launchers import Launcher, build_launcher

MEMORY_KEY = "paddle_job"
MOST_JOBS = 100
LOG_LINES = 100
STOP_SECONDS = 60.0
# Beyond the job's own deadline, which the trigger keeps: for a triggerer that is down for good.
DEFERRAL_SLACK_SECONDS = 600.0
NEEDED = ("name", "command", "launcher", "result_uri")


class PaddleJobOperator(BaseOperator):
    """Runs one job to its result. Returns {uri, digest, name} and the scalar facts of the result's manifest.

    job: plain JSON. Needed are `name`, `command` (argv), `launcher`, `result_uri`; known besides are `resources`,
        `connection`, `environment`, `working_directory`, `verdict_folder_uri`, `state_folder` (local launcher),
        `admission_seconds`, `deadline_seconds`, `time_limit_seconds`.
    deferrable: whether the worker slot is given back while the job runs.
    state_folder: of the local launcher, where the job names none; else that in the extra of the job's `connection`,
        else `jobs` in Airflow's home. Triggerer and workers must share it.
    """

    template_fields: Sequence[str] = ("job",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        job: Any,
        deferrable: bool = True,
        poll_seconds: float = 5.0,
        state_folder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.deferrable = deferrable
        self.poll_seconds = poll_seconds
        self.state_folder = state_folder
        self._live: JobHandle | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        """Defer until the job has ended, or return at once where the result is there."""
        self._check_job()
        if (result := read_result(self.job["result_uri"])) is not None:
            self.log.info("already done, no job is started: %s", self.job["result_uri"])
            return self._succeed(context, self.job["name"], result)
        launcher = self._launcher()
        memory = self._recall(context)
        number = self._choose_number(context, launcher, memory)
        # A job found ended may have left its result since the first look: a result comes before its job's end.
        if (result := read_result(self.job["result_uri"])) is not None:
            return self._succeed(context, job_name(self.job, max(1, number - 1)), result)
        if memory is None or memory["number"] != number:
            deadline = self.job.get("deadline_seconds")
            memory = {
                "work": self.job["name"],
                "number": number,
                "judged": False,
                "deadline_at": None if deadline is None else time.time() + deadline,
            }
            self._remember(context, memory)
        handle = self._submit(launcher, build_spec(self.job, number, context))
        return self._await(context, handle, memory["deadline_at"])

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Judge how the job ended. Raises AirflowFailException where a retry cannot help, else AirflowException."""
        self._check_job()
        launcher = self._launcher()
        handle = JobHandle.from_json(event["handle"])
        self._live = handle
        if event["state"] == JobState.LOST and not launcher.poll(handle).state.final:
            self.log.warning("job %s lives, though the triggerer lost it: has that the same state folder?", handle.name)
            memory = self._recall(context) or {}
            return self._await(context, handle, memory.get("deadline_at"))
        self._log_tail(launcher, handle)
        if (result := read_result(self.job["result_uri"])) is not None:
            return self._succeed(context, handle.name, result)
        if event["state"] == "timeout":
            launcher.cancel(handle)
            if not wait_for_end(launcher, handle, STOP_SECONDS):
                raise AirflowException(f"job {handle.name}: {event['reason']}; it was told to stop and has not yet")
            if (result := read_result(self.job["result_uri"])) is not None:
                return self._succeed(context, handle.name, result)
        if event["state"] != "unreachable":
            self._mark_judged(context)
        raise self._failure(handle, event["state"], event["reason"], event["exit_code"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """As Airflow's own, but a deferral that timed out does not leave its job running."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            memory = self._recall(context)
            if memory is not None:
                launcher = self._launcher()
                handle = launcher.find(job_name(self.job, memory["number"]))
                if handle is not None:
                    launcher.cancel(handle)
            raise

    def on_kill(self) -> None:
        """Cancel the job: the task was killed while it had a worker."""
        if self._live is not None:
            self._launcher().cancel(self._live)

    def _choose_number(self, context: Any, launcher: Launcher, memory: dict[str, Any] | None) -> int:
        """The job to submit or adopt: the first that lives or has never been. Raises AirflowFailException.

        The memory holds what this task started before; where nobody has judged the end of that, it is judged here.
        """
        first = 1
        if memory is not None:
            first = memory["number"] + 1 if memory["judged"] else memory["number"]
        for number in range(first, first + MOST_JOBS):
            handle = launcher.find(job_name(self.job, number))
            if handle is None:
                return number
            status = launcher.poll(handle)
            if not status.state.final:
                self.log.info("job %s is %s: adopted", handle.name, status.state.value)
                return number
            self.log.info("job %s ended without a result: %s %s", handle.name, status.state.value, status.reason)
            if memory is not None and number == memory["number"]:
                failure = self._failure(handle, status.state.value, status.reason, status.exit_code)
                if isinstance(failure, AirflowFailException):
                    self._mark_judged(context)  # told once; whoever clears the task after that gets a new job
                    self._log_tail(launcher, handle)
                    raise failure
        raise AirflowFailException(
            f"{self.job['name']}: {MOST_JOBS} jobs ended without a result at {self.job['result_uri']}; see their logs"
        )

    def _submit(self, launcher: Launcher, spec: JobSpec) -> JobHandle:
        """Start or adopt the job. A spec that the launcher cannot render fails for good."""
        try:
            launcher.render(spec)
        except SubmitError as error:
            raise AirflowFailException(str(error)) from error
        try:
            self._live = launcher.submit(spec)
        except SubmitError as error:
            raise AirflowException(str(error)) from error
        self.log.info("job %s: log and state in %s", spec.name, self._live.location or self._live.native_id)
        return self._live

    def _await(self, context: Any, handle: JobHandle, deadline_at: float | None) -> dict[str, Any]:
        """Defer, or watch from here, until the job has ended."""
        from paddle_cluster.job_trigger import JobTrigger

        admission = self.job.get("admission_seconds")
        trigger = JobTrigger(
            handle=handle.to_json(),
            settings=self._settings(),
            poll_seconds=self.poll_seconds,
            deadline_at=deadline_at,
            admission_at=None if admission is None else time.time() + admission,
        )
        if self.deferrable:
            timeout = None if deadline_at is None else max(0.0, deadline_at - time.time()) + DEFERRAL_SLACK_SECONDS
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)
        return self.execute_complete(context, asyncio.run(first_event(trigger)))

    def _failure(self, handle: JobHandle, state: str, reason: str, exit_code: int | None) -> AirflowException:
        """The exception that tells why there is no result; the trace goes to the log."""
        failure = describe_failure(self.job, handle, state, reason, exit_code)
        if failure.trace:
            self.log.error("trace of the failure:\n%s", failure.trace)
        return AirflowException(failure.message) if failure.retry else AirflowFailException(failure.message)

    def _succeed(self, context: Any, name: str, result: dict[str, Any]) -> dict[str, Any]:
        """The task's value. What was remembered goes, or a task cleared later would find an old job."""
        store = context.get("task_state_store")
        if store is not None:
            store.delete(MEMORY_KEY)
        return {**result, "uri": self.job["result_uri"], "name": name}

    def _recall(self, context: Any) -> dict[str, Any] | None:
        """What this task remembers of the work at hand: {work, number, judged, deadline_at}."""
        store = context.get("task_state_store")
        memory = None if store is None else store.get(MEMORY_KEY)
        return memory if isinstance(memory, dict) and memory["work"] == self.job["name"] else None

    def _remember(self, context: Any, memory: dict[str, Any]) -> None:
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        store = context.get("task_state_store")
        if store is not None:
            store.set(MEMORY_KEY, memory, retention=NEVER_EXPIRE)

    def _mark_judged(self, context: Any) -> None:
        memory = self._recall(context)
        if memory is not None:
            self._remember(context, {**memory, "judged": True})

    def _log_tail(self, launcher: Launcher, handle: JobHandle) -> None:
        """The end of the job's log, into the task's own."""
        tail = launcher.logs(handle, LOG_LINES)
        self.log.info("---- log of job %s, the last %d lines ----", handle.name, LOG_LINES)
        for line in tail.splitlines():
            self.log.info("%s", line)
        self.log.info("---- end of the log of job %s ----", handle.name)

    def _check_job(self) -> None:
        """Raises AirflowFailException that names what the job lacks."""
        if not isinstance(self.job, Mapping):
            raise AirflowFailException(f"job must be a dictionary, and is {type(self.job).__name__}")
        missing = [name for name in NEEDED if not self.job.get(name)]
        if missing:
            raise AirflowFailException(f"job lacks {', '.join(missing)}; it has {', '.join(sorted(self.job))}")

    def _launcher(self) -> Launcher:
        try:
            return build_launcher(self.job["launcher"], **self._settings())
        except SubmitError as error:
            raise AirflowFailException(str(error)) from error

    def _settings(self) -> dict[str, Any]:
        """What the launcher is built with: the local one has a state folder, the others a connection."""
        if self.job["launcher"] != "local":
            return {"connection": self.job.get("connection")}
        named = self.job.get("state_folder") or self.state_folder
        if not named and self.job.get("connection"):
            named = extra_of(self.job["connection"]).get("state_folder")
        home = os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow"))
        return {"state_folder": named or os.path.join(home, "jobs")}


async def first_event(trigger: Any) -> dict[str, Any]:
    """The payload of the one event that a trigger yields."""
    async for event in trigger.run():
        payload: dict[str, Any] = event.payload
        return payload
    raise AirflowException("the trigger ended without an event")
