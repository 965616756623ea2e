"""A fresh Airflow of the tests' own: a temporary home on SQLite, and what its database says of tasks."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class AirflowHome:
    """Where an Airflow lives, and the environment that its commands need."""

    folder: Path
    environment: dict[str, str]

    @property
    def works(self) -> Path:
        """The folder in which the DAG's jobs work."""
        return self.folder / "works"

    def run(self, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """`airflow ARGUMENTS`, output and errors together in stdout."""
        return subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            check=False,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def tasks(self) -> dict[str, tuple[str, int]]:
        """(state, number of tries) by task."""
        rows = self._query("select task_id, state, try_number from task_instance")
        return {task: (state, tries) for task, state, tries in rows}

    def returned(self, task: str) -> Any:
        """What the task returned; None where it did not."""
        rows = self._query("select value from xcom where task_id = ? and key = 'return_value'", task)
        value = json.loads(rows[0][0]) if rows else None
        return json.loads(value) if isinstance(value, str) else value

    def _query(self, statement: str, *values: str) -> list[Any]:
        connection = sqlite3.connect(f"file:{self.folder}/airflow.db?mode=ro", uri=True, timeout=30)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()


def build_home(folder: Path, dag: Path, **settings: str) -> AirflowHome:
    """Make the home, with one DAG file, and migrate its database."""
    (folder / "dags").mkdir(parents=True)
    (folder / "plugins").mkdir()
    shutil.copy(dag, folder / "dags")
    home = AirflowHome(
        folder=folder,
        environment={
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(folder / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
            "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "airflow=WARNING task=INFO alembic=WARNING airflow.task=INFO",
            "PYTHONPATH": str(PROJECT / "plugins"),
            "PYTHONWARNINGS": "ignore",
            "WORKS": str(folder / "works"),
            **settings,
        },
    )
    done = home.run("db", "migrate")
    assert done.returncode == 0, done.stdout[-3000:]
    return home
