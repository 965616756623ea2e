"""Health of one container, cheaply: exit code 0, or 1 with a line that says what is wrong.

    healthcheck.py http URL       answers with 200
    healthcheck.py job JOB_TYPE   this host's Airflow job of that type wrote its heartbeat in the last minute
    healthcheck.py worker         this host's Celery worker answers a ping

Rejected: `airflow jobs check` and `celery inspect` through Airflow's application, which import Airflow: ten seconds of
CPU each time.
"""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from collections.abc import Callable

HEARTBEAT_SECONDS = 60


def check_http(url: str) -> str | None:
    """None if the page answers with 200, else what is wrong. Raises OSError where nobody listens."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return None if answer.status == 200 else f"{url} answered {answer.status}"


def check_job(job_type: str) -> str | None:
    """None if this host's newest running job of this type is alive by Airflow's database, else what is wrong."""
    import psycopg2

    address = os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("postgresql+psycopg2://", "postgresql://")
    with psycopg2.connect(address, connect_timeout=5) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM now() - max(latest_heartbeat)) FROM job "
            "WHERE job_type = %s AND state = 'running' AND hostname = %s",
            (job_type, socket.gethostname()),
        )
        row = cursor.fetchone()
    if row is None or row[0] is None:
        return f"no running {job_type} on {socket.gethostname()}"
    return None if row[0] < HEARTBEAT_SECONDS else f"the {job_type}'s last heartbeat is {row[0]:.0f} s old"


def check_worker() -> str | None:
    """None if this host's Celery worker answers, else what is wrong."""
    from celery import Celery

    name = f"celery@{socket.gethostname()}"
    application = Celery(broker=os.environ["AIRFLOW__CELERY__BROKER_URL"])
    answers = application.control.inspect(destination=[name], timeout=5).ping()
    return None if answers and name in answers else f"{name} does not answer"


CHECKS: dict[str, Callable[..., str | None]] = {"http": check_http, "job": check_job, "worker": check_worker}


def main(arguments: list[str]) -> int:
    """Run one check; print and return what a container's health check needs."""
    try:
        fault = CHECKS[arguments[0]](*arguments[1:])
    except Exception as error:  # whatever it is, it is this check's answer
        fault = f"{type(error).__name__}: {error}"
    print(fault or "healthy")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
