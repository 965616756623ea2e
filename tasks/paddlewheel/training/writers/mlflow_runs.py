"""A training as one run in MLflow: on the server of the connection `mlflow`, or in a file below the root."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from paddlewheel.connections import find_connection, variable_of
from paddlewheel.manifest import Manifest
from paddlewheel.recipe import Recipe, dump
from paddlewheel.storage import Store
from paddlewheel.training.writers import SERVER_CONNECTION
from paddlewheel.training.writers.held import Point

RUN_TAG, STEP_TAG = "paddlewheel.run", "paddlewheel.step"
MOST_LETTERS = 500  # of a parameter


class MlflowRun:
    """The run of one training. `client`: a MlflowClient."""

    def __init__(self, client: Any, run_id: str) -> None:
        self.client, self.run_id = client, run_id

    def last_step(self) -> int:
        return int(self.client.get_run(self.run_id).data.tags.get(STEP_TAG, 0))

    def write(self, points: Sequence[Point], step: int) -> None:
        from mlflow.entities import Metric, RunTag

        metrics = [Metric(point.name, point.value, round(1000 * point.at), point.step) for point in points]
        self.client.log_batch(self.run_id, metrics=metrics, tags=[RunTag(STEP_TAG, str(step))])

    def close(self, *, done: bool) -> None:
        if done:
            self.client.set_terminated(self.run_id, "FINISHED")


def open_sink(recipe: Recipe, store: Store, run: Manifest) -> MlflowRun:
    """The run of this training in the experiment of the recipe's name; made where it is not there yet."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a training tells nobody of itself
    from mlflow.entities import Param
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=server_uri() or database_uri(store))
    experiment = client.get_experiment_by_name(recipe.name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(recipe.name)
    key = run.key.removeprefix("runs/")
    found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{key}'", max_results=1)
    if found:
        return MlflowRun(client, found[0].info.run_id)
    tags = {RUN_TAG: key, "paddlewheel.partition": str(run.facts["partition"])}
    created = client.create_run(experiment_id, run_name=f"{run.facts['partition']} {key[:8]}", tags=tags)
    settings = {"model": dump(recipe.model), "training": dump(recipe.training)}
    params = [
        Param(f"{section}.{name}", str(value)[:MOST_LETTERS])
        for section, tree in settings.items()
        for name, value in tree.items()
    ]
    client.log_batch(created.info.run_id, params=params)
    return MlflowRun(client, created.info.run_id)


def server_uri() -> str | None:
    """The URI of the server, from the connection `mlflow` (kind http or https); None where there is none.

    The login goes into MLflow's own variables, and into no URI, which MLflow writes into its messages.
    """
    if variable_of(SERVER_CONNECTION) not in os.environ:
        return None
    connection = find_connection(SERVER_CONNECTION)
    if connection.login:
        os.environ["MLFLOW_TRACKING_USERNAME"] = connection.login
        os.environ["MLFLOW_TRACKING_PASSWORD"] = connection.password
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.kind}://{connection.host}{port}/{connection.schema}".rstrip("/")


def database_uri(store: Store) -> str:
    """The SQLite file below a root that is a folder."""
    path = Path(unquote(urlsplit(store.root).path)) / "tracking" / "mlflow.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"
