"""Every night: the day that has just ended goes through the chain; a model that is good enough goes into service."""

from __future__ import annotations

import datetime

from airflow.sdk import DAG, CronDataIntervalTimetable, Param

from chain_wiring import PICTURE, RECIPES, read_recipe_tree, recipe_params, wire_chain

RECIPE = "flights_delay.yaml"
TREE = read_recipe_tree(RECIPES / RECIPE)

with DAG(
    dag_id="nightly_retrain",
    description=TREE["title"],
    doc_md=f"""### {TREE["title"]}
{TREE["description"]}

The partition is one day: the holdout is the last days up to it, the training days come before. A step that is done is
verified by its digests and skipped; the training is one job whose worker slot is free while it runs. A challenger that
the gate refuses is a normal end. Recipe: `recipes/{RECIPE}`.
{PICTURE}""",
    # A data interval, so that a scheduled night's logical date is the day that has just ended.
    schedule=CronDataIntervalTimetable("0 3 * * *", timezone="UTC"),
    start_date=datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC),
    catchup=False,
    max_active_runs=1,
    tags=["paddlewheel", TREE["name"]],
) as dag:
    wire_chain(RECIPE)

# After the tasks: Airflow copies the params that a DAG has into each task, and validates every copy again and again.
dag.params = {
    "partition": Param(
        None,
        type=["null", "string"],
        format="date",
        title="Partition",
        description="The day to train for; left empty, the run's logical date, else the day it is due.",
    ),
    **recipe_params(RECIPES / RECIPE),
}
