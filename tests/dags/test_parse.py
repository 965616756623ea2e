"""Parsing the DAGs is cheap: in a fresh process, nothing heavy is loaded, and every DAG has its tasks."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
PROBE = """
import json, sys
import pathlib
from airflow.dag_processing.dagbag import BundleDagBag
before = {"paddle", "pandas", "polars", "pyarrow", "kubernetes"} & set(sys.modules)
bag = BundleDagBag(sys.argv[1], bundle_path=pathlib.Path(sys.argv[1]))
heavy = ({"paddle", "pandas", "polars", "pyarrow", "kubernetes"} & set(sys.modules)) - before
print("RESULT" + json.dumps({
    "errors": bag.import_errors,
    "before": sorted(before),
    "heavy": sorted(heavy),
    "dags": {
        dag_id: {
            "tasks": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
            "params": {name: dag.params.get_param(name).schema for name in dag.params},
            "defaults": {name: dag.params[name] for name in dag.params},
            "links": {task.task_id: [link.name for link in task.operator_extra_links] for task in dag.tasks},
            "catchup": dag.catchup, "max_active_runs": dag.max_active_runs, "doc": dag.doc_md,
        }
        for dag_id, dag in bag.dags.items()
    },
}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("airflow")
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(PROJECT / "dags")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT"))
    return result


def test_nothing_heavy_is_loaded_when_the_dags_are_parsed(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert parsed["before"] == []


@pytest.mark.parametrize("dag_id", ["nightly_retrain", "train_on_demand"])
def test_the_chain_has_its_order(parsed: dict[str, Any], dag_id: str) -> None:
    tasks = parsed["dags"][dag_id]["tasks"]
    order = ["plan", "ingest", "validate", "shard", "fit_features", "preprocess", "prepare_run", "train"]
    order += ["evaluate", "gate", "promote", "report"]
    # Nothing but the chain: an edge from every task to its next one, none that jumps.
    assert tasks == {**{before: [after] for before, after in itertools.pairwise(order)}, "report": []}


def test_only_two_dags_are_found(parsed: dict[str, Any]) -> None:
    assert sorted(parsed["dags"]) == ["nightly_retrain", "train_on_demand"]


def test_one_night_at_a_time_without_catching_up(parsed: dict[str, Any]) -> None:
    night = parsed["dags"]["nightly_retrain"]
    assert (night["catchup"], night["max_active_runs"]) == (False, 1)
    assert "more than 15 minutes late" in night["doc"]


def test_the_card_is_linked_where_there_is_one(parsed: dict[str, Any]) -> None:
    links = parsed["dags"]["nightly_retrain"]["links"]
    assert {task: names for task, names in links.items() if names} == {"train": ["Run card"], "report": ["Run card"]}


def test_the_form_has_the_recipes_own_fields(parsed: dict[str, Any]) -> None:
    night = parsed["dags"]["nightly_retrain"]
    assert night["defaults"]["partition"] is None
    assert night["params"]["partition"]["format"] == "date"
    assert night["params"]["training.epochs"]["minimum"] == 1
    assert night["params"]["gate.metric"]["enum"] == ["auc", "log_loss"]
    assert night["defaults"]["resources.ranks_per_node"] == 2
    assert night["params"]["resources.ranks_per_node"]["section"] == "Resources"
    demand = parsed["dags"]["train_on_demand"]
    assert "flights_delay.yaml" in demand["params"]["recipe"]["enum"]
