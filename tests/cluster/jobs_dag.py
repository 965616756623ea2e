"""A DAG whose tasks run small real jobs, each to another end. Its folder comes by the environment variable WORKS."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from paddle_cluster.job_operator import PaddleJobOperator

WORKS = os.environ["WORKS"]
PUBLISH = """printf '{"facts": {"steps": 3, "order_ok": true, "curve": [1]}}' > result.json; """
ONCE = "echo started >> starts; if [ $(wc -l < starts) = 1 ]; then "
WRITE_VERDICT = (
    """printf '{"attempt": 2, "exit_code": 10, "message": "ZeroDivisionError: division by zero", """
    """"trace": "File model.py, line 7", "rank": 1}' > 2.verdict.json; """
)
SCRIPTS: dict[str, str] = {
    "succeeds": f"echo started >> starts; echo epoch 1 of 1; {PUBLISH}",
    # $PPID is the supervisor: with it the job vanishes without a word.
    "lost_once": f"{ONCE} kill -9 $PPID; sleep 60; fi; {PUBLISH}",
    "preempted_once": f"{ONCE} exit 14; fi; {PUBLISH}",
    "user_fault": f"echo started >> starts; echo 0 > 1.verdict.json; {WRITE_VERDICT} exit 10",
    "vanishes_with_result": f"echo started >> starts; {PUBLISH} kill -9 $PPID; sleep 60",
    "no_result": "echo started >> starts; exit 0",
    "done_before": "echo started >> starts",
    "overdue": "echo started >> starts; sleep 300",
    "not_deferred": f"echo started >> starts; {PUBLISH}",
}


def job(name: str, **more: Any) -> dict[str, Any]:
    """The job of a script, run in a folder of its own."""
    folder = os.path.join(WORKS, name)
    return {
        "name": f"work-{name}",
        "command": ["sh", "-c", SCRIPTS[name]],
        "resources": {"nodes": 1, "ranks_per_node": 1, "max_restarts": 3},
        "launcher": "local",
        "connection": None,
        "working_directory": folder,
        "result_uri": f"file://{folder}/result.json",
        "verdict_folder_uri": f"file://{folder}",
        "state_folder": os.path.join(WORKS, "jobs"),
        **more,
    }


with DAG("jobs", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=1)}

    @task
    def describe() -> dict[str, Any]:
        """The job comes from a task, as a DAG's does."""
        return job("succeeds")

    PaddleJobOperator(task_id="succeeds", job=describe(), **RETRIES)
    for once in ("lost_once", "preempted_once", "user_fault", "vanishes_with_result", "done_before"):
        PaddleJobOperator(task_id=once, job=job(once), **RETRIES)
    PaddleJobOperator(task_id="no_result", job=job("no_result"))
    PaddleJobOperator(task_id="overdue", job=job("overdue", deadline_seconds=2, time_limit_seconds=300))
    PaddleJobOperator(task_id="not_deferred", job=job("not_deferred"), deferrable=False)
