"""A DAG whose task stops before or after its submit, where a test can kill it, and whose job ends when told to."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from paddle_cluster.job_operator import PaddleJobOperator

WORKS = Path(os.environ["WORKS"])
SCRIPT = """
cd "$WORKS"; echo $$ >> "$NAME.starts"
while [ ! -e "$NAME.finish" ]; do sleep 0.1; done
echo '{"facts": {"steps": 3}}' > "$NAME.json"
"""


class HeldOperator(PaddleJobOperator):
    """The operator under test, which at one point writes its process id and waits, the first time alone."""

    def _submit(self, launcher: Any, spec: Any) -> Any:
        self._hold("before")
        handle = super()._submit(launcher, spec)
        self._hold("after")
        return handle

    def _hold(self, point: str) -> None:
        mark = WORKS / f"{self.job['name']}.held"
        if self.job["hold"] == point and not mark.exists():
            mark.write_text(str(os.getpid()))
            time.sleep(300)


with DAG("held_job", schedule=None, max_active_runs=8, params={"name": "job", "hold": ""}):
    HeldOperator(
        task_id="train",
        retries=3,
        retry_delay=timedelta(seconds=1),
        poll_seconds=1.0,
        job={
            "name": "{{ params.name }}",
            "hold": "{{ params.hold }}",
            "command": ["sh", "-c", SCRIPT],
            "environment": {"WORKS": str(WORKS), "NAME": "{{ params.name }}"},
            "launcher": "local",
            "state_folder": str(WORKS / "jobs"),
            "result_uri": f"file://{WORKS}/{{{{ params.name }}}}.json",
        },
    )
