"""Any recipe, for any partition, from a form."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from chain_wiring import PICTURE, RECIPES, read_recipe_tree, wire_chain

NAMES = sorted(path.name for path in RECIPES.glob("*.yaml"))
DEFAULT = "flights_delay.yaml"
TITLES = {name: read_recipe_tree(RECIPES / name).get("title", name) for name in NAMES}

with DAG(
    dag_id="train_on_demand",
    description="Any recipe, for any partition, from a form",
    doc_md=f"""### Train on demand
One of the recipes in `recipes/`, for the partition of your choice, with any field of it changed.
{PICTURE}""",
    schedule=None,
    max_active_runs=4,
    tags=["paddlewheel"],
) as dag:
    wire_chain(None)

# After the tasks: Airflow copies the params that a DAG has into each task, and validates every copy again and again.
dag.params = {
    "recipe": Param(DEFAULT, type="string", enum=NAMES, values_display=TITLES, title="Recipe", section="Work"),
    "partition": Param(
        None,
        type=["null", "string"],
        format="date",
        title="Partition",
        section="Work",
        description="The day to train for; left empty, the run's logical date, else the day it is due.",
    ),
    "overrides": Param(
        None,
        type=["null", "array"],
        items={"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*=.*$"},
        title="Changes to the recipe",
        section="Work",
        description="One a line, such as training.epochs=3",
    ),
}
