"""The button "Run card" on a task whose result lies below `…/runs/KEY/`: it opens that run's page in the dashboard."""

from __future__ import annotations

import re
from typing import Any

from airflow.sdk import BaseOperatorLink, conf

RUN_URI = re.compile(r"/runs/([0-9a-f]{8,64})/")


class RunCardLink(BaseOperatorLink):
    """Reads the task's own return value, a URI or a dictionary with one, once the task has ended."""

    name = "Run card"

    @property
    def xcom_key(self) -> str:
        return "run_card_link"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The card's address on Airflow's API server; empty where the task left no run's URI."""
        value = ti_key.xcom_pull(task_ids=operator.task_id, key="return_value")
        return link_of(value)


def link_of(value: Any) -> str:
    """Address of the card of the run that a task's return value names; empty where it names none."""
    uri = value.get("uri", "") if isinstance(value, dict) else value
    found = RUN_URI.search(uri) if isinstance(uri, str) else None
    if found is None:
        return ""
    base = str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return f"{base}/paddlewheel/runs/{found[1]}/card"
