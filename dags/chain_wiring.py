"""The chain as Airflow tasks: each calls one function of `paddlewheel` and hands on a URI. No DAG of its own.

Nothing heavy is imported here: every task imports its step when it runs.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from airflow.sdk import get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from paddle_cluster.card_link import RunCardLink
from paddle_cluster.form import FormField, build_params, read_changes
from paddle_cluster.job_operator import PaddleJobOperator

PROJECT = Path(__file__).resolve().parents[1]
RECIPES = PROJECT / "recipes"
PICTURE = """
| task | what it leaves |
|---|---|
| plan | the window of days, its landing files listed, the recipe resolved |
| ingest | typed tables, one task a batch of files; the rows that break the schema in refusal files |
| validate | the counts held against the recipe's limits |
| shard | labels, joined columns, sample ids |
| fit_features | vocabularies, means and bins of the training days |
| preprocess | fixed-width rows, one task a batch |
| prepare_run, train | one training, a job on a cluster; the worker slot is free meanwhile |
| evaluate, gate | metrics with intervals, against the model in service; a verdict with reasons |
| promote, report | the new version in service, or why not; the run card |
"""
FIELDS = (
    FormField(path="data.window.train_days", title="Training days", section="Window"),
    FormField(path="data.window.holdout_days", title="Holdout days", section="Window"),
    FormField(
        path="data.landing",
        title="Landing folder",
        section="Window",
        description="below the root, or a folder, or s3://CONNECTION@BUCKET/PREFIX",
    ),
    FormField(path="model.name", title="Network", section="Training", description="wide_deep, deepfm, or module:name"),
    FormField(path="training.epochs", title="Epochs", section="Training"),
    FormField(
        path="training.global_batch", title="Global batch", section="Training", description="rows over all ranks"
    ),
    FormField(path="training.optimizer.learning_rate", title="Learning rate", section="Training"),
    FormField(path="training.seed", title="Seed", section="Training"),
    FormField(path="gate.metric", title="Metric", section="Gate"),
    FormField(
        path="gate.max_loss", title="Allowed loss", section="Gate", description="how much worse than the champion"
    ),
    FormField(path="gate.min_auc", title="Minimum AUC", section="Gate"),
    FormField(path="resources.ranks_per_node", title="Ranks", section="Resources"),
    FormField(
        path="resources.connection",
        title="Connection",
        section="Resources",
        description="of the launcher; the local one reads its extra's state_folder, where jobs are kept",
    ),
    FormField(path="resources.max_restarts", title="Restarts in place", section="Resources"),
)
RETRY_DELAY = datetime.timedelta(seconds=10)
log = logging.getLogger("paddlewheel.dags")


@functools.cache
def read_recipe_tree(path: Path) -> dict[str, Any]:
    """A recipe's YAML as it stands, unchecked: the defaults of the form."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tree: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return tree


@functools.cache
def read_schema() -> dict[str, Any]:
    """The committed JSON schema of recipes."""
    schema: dict[str, Any] = json.loads((RECIPES / "recipe.schema.json").read_text(encoding="utf-8"))
    return schema


def recipe_params(path: Path) -> dict[str, Any]:
    """The form's fields for one recipe, with its own values as defaults."""
    return dict(build_params(read_schema(), read_recipe_tree(path), FIELDS))


def choose_partition(*, asked: str | None, logical_date: Any, run_after: Any) -> tuple[str, str]:
    """(day, where it came from): the one asked for, else the run's logical date, else the day that the run is due."""
    if asked:
        return asked, "the run's parameters"
    if logical_date is not None:
        return logical_date.date().isoformat(), "the run's logical date"
    return run_after.date().isoformat(), "the day that the run was due, since it has no logical date"


@contextlib.contextmanager
def telling_faults() -> Iterator[None]:
    """A fault of the recipe or the data fails the task at once: a retry cannot mend it."""
    from paddlewheel.errors import DataError, RecipeError

    try:
        yield
    except (RecipeError, DataError) as error:
        raise AirflowFailException(str(error)) from error


def _open() -> Any:
    """The store, with Airflow's connections for a root or sources that name one."""
    from paddlewheel.connections import use_lookup
    from paddlewheel.storage import default_root, open_store

    use_lookup(find_in_airflow)
    return open_store(default_root())


def find_in_airflow(connection_id: str) -> Any:
    """Airflow's connection as `paddlewheel` has it, or None."""
    from paddle_cluster.connections import connection_json
    from paddlewheel.connections import parse_connection

    found = connection_json(connection_id)
    return None if found is None else parse_connection(found)


def _recipe() -> tuple[Any, Any]:
    """(the night's resolved recipe, the store). Pulled, not passed on: the graph stays a chain that one can read."""
    return _recipe_of(_left_by("plan")[0]["planned"]), _open()


@functools.lru_cache(maxsize=4)
def _recipe_of(plan_uri: str) -> Any:
    """A plan never changes; tasks that share a process read it once."""
    from paddlewheel.data.plan import recipe_of

    return recipe_of(_open(), plan_uri)


def _left_by(task_id: str) -> Any:
    """What a task before this one returned."""
    return get_current_context()["ti"].xcom_pull(task_ids=task_id)


@task(retries=1, retry_delay=RETRY_DELAY)
def plan(recipe_file: str | None) -> list[dict[str, Any]]:
    """The window of the partition; its landing files listed, the recipe resolved; one entry a batch to ingest."""
    from paddlewheel.data.ingest import plan_ingest
    from paddlewheel.data.plan import plan as plan_step
    from paddlewheel.recipe_check import load_recipe

    context = get_current_context()
    params = context["params"]
    partition, origin = choose_partition(
        asked=params.get("partition"),
        logical_date=context.get("logical_date"),
        run_after=context["dag_run"].run_after,
    )
    log.info("partition %s, from %s", partition, origin)
    path = RECIPES / (recipe_file or params["recipe"])
    if recipe_file:
        overrides: Any = read_changes(params, read_schema(), read_recipe_tree(path), FIELDS)
    else:
        overrides = params.get("overrides") or ()
    if overrides:
        log.info("changed in the form: %s", overrides)
    with telling_faults():
        recipe, store = load_recipe(path, overrides), _open()
        planned = plan_step(recipe, partition, store=store)
        return [{"planned": planned, "batch": batch} for batch in plan_ingest(recipe, planned, store=store)]


@task(retries=1, retry_delay=RETRY_DELAY)
def ingest(planned: str, batch: int) -> str:
    """One batch of landing files into typed tables; rows that break the schema into refusal files."""
    from paddlewheel.data.ingest import ingest as step

    recipe, store = _recipe()
    with telling_faults():
        return step(recipe, planned, batch, store=store)


@task(retries=1, retry_delay=RETRY_DELAY)
def validate(ingested: Any) -> str:
    """What was ingested, of all batches, against the recipe's limits."""
    from paddlewheel.data.validate import validate as step

    recipe, store = _recipe()
    with telling_faults():
        # In one slice: list() would ask until one is not there, which Airflow logs as an error.
        return step(recipe, list(ingested[:]), store=store)


@task(retries=1, retry_delay=RETRY_DELAY)
def shard(validated: str) -> str:
    """Labels, joins, sample ids: each row in one shard."""
    from paddlewheel.data.shard import shard as step

    recipe, store = _recipe()
    with telling_faults():
        return step(recipe, validated, store=store)


@task(retries=1, retry_delay=RETRY_DELAY)
def fit_features(shards: str) -> list[dict[str, Any]]:
    """Vocabularies, means and bins, fitted on the training days alone; one entry a batch that preprocess maps over."""
    from paddlewheel.data.features import fit_features as step
    from paddlewheel.data.preprocess import plan_batches

    recipe, store = _recipe()
    with telling_faults():
        features = step(recipe, shards, store=store)
        batches = plan_batches(recipe, shards, store=store)
    return [{"shards": shards, "features": features, "batch": batch} for batch in batches]


@task(retries=1, retry_delay=RETRY_DELAY)
def preprocess(shards: str, features: str, batch: int) -> str:
    """One batch of shards as fixed-width rows."""
    from paddlewheel.data.preprocess import preprocess as step

    recipe, store = _recipe()
    with telling_faults():
        return step(recipe, shards, features, batch, store=store)


@task(retries=1, retry_delay=RETRY_DELAY)
def prepare_run(packed: Any) -> dict[str, Any]:
    """Open the run of these data and this recipe, and describe its job."""
    from paddlewheel.training.run import describe_job, open_run

    recipe, store = _recipe()
    with telling_faults():
        # In one slice: list() would ask until one is not there, which Airflow logs as an error.
        run = open_run(recipe, list(packed[:]), store=store)
        job = describe_job(run, store=store, recipe=recipe)
    # Another folder by `state_folder` in the extra of the connection that resources.connection names.
    local = job["launcher"] == "local" and not job["connection"]
    return {**job, "run_uri": run, "state_folder": local_jobs_folder(store.uri("jobs")) if local else None}


def local_jobs_folder(jobs_uri: str) -> str:
    """Where the local launcher keeps its jobs: below the root, or in the project's `var/` where the root is a bucket.

    A job's folder holds locks, which a bucket has not. Triggerer and workers must share it.
    """
    from paddlewheel.storage import uri_to_path

    return str(uri_to_path(jobs_uri) if jobs_uri.startswith("file:") else PROJECT / "var/jobs")


@task(retries=1, retry_delay=RETRY_DELAY)
def evaluate(trained: dict[str, Any]) -> str:
    """The holdout days by the new model, and by the champion on the same rows."""
    from paddlewheel.evaluation.evaluate import evaluate as step

    recipe, store = _recipe()
    with telling_faults():
        log.info("evaluating the training whose result is %s", trained["uri"])
        return step(recipe, _left_by("prepare_run")["run_uri"], store=store)


@task(retries=1, retry_delay=RETRY_DELAY)
def gate(evaluated: str) -> str:
    """The verdict with its reasons. A refusal is a result, not a failure."""
    from paddlewheel.evaluation.gate import gate as step

    recipe, store = _recipe()
    with telling_faults():
        return step(recipe, evaluated, store=store)


@task(retries=1, retry_delay=RETRY_DELAY)
def promote(verdict: str) -> str:
    """Publish an accepted model and move the champion, or record that the champion stays."""
    from paddlewheel.registry import promote as step

    recipe, store = _recipe()
    with telling_faults():
        return step(recipe, verdict, store=store)


@task(retries=1, retry_delay=RETRY_DELAY)
def report(promotion: str) -> str:
    """The run's card; and what dead writers left in the store goes."""
    from paddlewheel.card.page import report as step
    from paddlewheel.storage import sweep_leftovers

    recipe, store = _recipe()
    with telling_faults():
        card = step(recipe, promotion, store=store)
    sweep_leftovers(store)
    return card


def wire_chain(recipe_file: str | None) -> None:
    """Every task of the chain in the DAG being defined; recipe_file None takes the form's field `recipe`."""
    ingested = ingest.expand_kwargs(plan(recipe_file))
    packed = preprocess.expand_kwargs(fit_features(shard(validate(ingested))))
    train = PaddleJobOperator(task_id="train", job=prepare_run(packed), retries=2, retry_delay=RETRY_DELAY)
    reported = report(promote(gate(evaluate(train.output))))
    for operator in (train, reported.operator):
        operator.operator_extra_links = (RunCardLink(),)
