"""A training as one run in MLflow: on the server of the connection `mlflow`, or in a file below the root."""

from __future__ import annotations

import contextlib
import os
import socket
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

RUN_TAG = "paddlewheel.run"
MOST_LETTERS = 500  # of a parameter


class MlflowRun:
    """The run of one training. `client`: a MlflowClient."""

    def __init__(self, client: Any, run_id: str) -> None:
        self.client, self.run_id = client, run_id

    def last_step(self) -> int:
        # Of the points themselves: a tag would be set in another transaction, between which and theirs a rank may die.
        return max((metric.step for metric in self.client.get_metric_history(self.run_id, "loss")), default=0)

    def write(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(point.name, point.value, round(1000 * point.at), point.step) for point in points]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, *, done: bool) -> None:
        if done:
            self.client.set_terminated(self.run_id, "FINISHED")


def open_sink(recipe: Recipe, store: Store, run: Manifest) -> MlflowRun:
    """The run of this training in the experiment of the recipe's name; made where it is not there yet."""
    from mlflow.entities import Param
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=server_uri() or database_uri(store))
    experiment = client.get_experiment_by_name(recipe.name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(recipe.name)
    key = run.key.removeprefix("runs/")
    found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{key}'", max_results=1)
    if found:
        run_id = found[0].info.run_id
    else:
        tags = {RUN_TAG: key, "paddlewheel.partition": str(run.facts["partition"])}
        name = f"{run.facts['partition']} {key[:8]}"
        run_id = client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
    # Again in each attempt: the one that made the run may have died before it told them.
    client.log_batch(run_id, params=[Param(name, value) for name, value in settings_of(recipe).items()])
    return MlflowRun(client, run_id)


def settings_of(recipe: Recipe) -> dict[str, str]:
    """The model's and the training's settings as texts."""
    sections = {"model": dump(recipe.model), "training": dump(recipe.training)}
    return {
        f"{section}.{name}": str(value)[:MOST_LETTERS]
        for section, tree in sections.items()
        for name, value in tree.items()
    }


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
    """The SQLite file below a root that is a folder; made where it is not there.

    Made beside its place and then linked into it: MLflow builds its tables in many steps, and a rank that dies between
    two of them would leave a file that nobody can open any more.
    """
    path = Path(unquote(urlsplit(store.root).path)) / "tracking" / "mlflow.db"
    if not path.exists():
        from mlflow.tracking import MlflowClient

        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp-{socket.gethostname()}-{os.getpid()}-mlflow.db")
        temporary.unlink(missing_ok=True)
        MlflowClient(tracking_uri=f"sqlite:///{temporary}").search_experiments()
        with contextlib.suppress(FileExistsError):  # another training was faster
            os.link(temporary, path)
        temporary.unlink()
    return f"sqlite:///{path}"
