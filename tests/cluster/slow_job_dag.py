"""A DAG of two works whose jobs run until the test lets them end: one task defers, the other keeps its worker."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from paddle_cluster.job_operator import PaddleJobOperator

WORKS = os.environ["WORKS"]
WAIT = "echo started >> starts; while [ ! -e ../finish ]; do sleep 0.2; done; "
SCRIPT = WAIT + """echo '{"facts": {"steps": 3}}' > result.json"""

with DAG("slow_jobs", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    for name, deferrable in (("deferred", True), ("attended", False)):
        folder = os.path.join(WORKS, name)
        PaddleJobOperator(
            task_id=name,
            deferrable=deferrable,
            retries=2,
            retry_delay=timedelta(seconds=1),
            job={
                "name": name,
                "command": ["sh", "-c", SCRIPT],
                "launcher": "local",
                "working_directory": folder,
                "result_uri": f"file://{folder}/result.json",
                "state_folder": os.path.join(WORKS, "jobs"),
            },
        )
