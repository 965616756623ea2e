"""The chain without Airflow: every step in order in one process tree; and from a manifest back to its recipe."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paddlewheel.data.ingest import ingest, plan_ingest
from paddlewheel.data.plan import plan, recipe_of
from paddlewheel.data.shard import shard
from paddlewheel.data.validate import validate
from paddlewheel.errors import TrainingError
from paddlewheel.lineage import manifest_key, nearest
from paddlewheel.manifest import read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store, sweep_leftovers

# The agent's codes for user code, and for data or recipe: trying again changes nothing.
FAULTS_OF_THE_WORK = (10, 11)
FENCED = 17
log = logging.getLogger(__name__)
Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Night:
    """URIs of what one partition's chain made."""

    plan: str
    run: str
    promotion: str
    card: str


def run_chain(
    recipe: Recipe,
    partition: str,
    *,
    store: Store,
    on_progress: Progress | None = None,
    say: Callable[[str], None] = log.debug,
) -> Night:
    """Every step for one partition; finished ones are verified and skipped. Raises the first step's PaddlewheelError.

    on_progress gets the agent's progress while the ranks train; `say` a line before each step.
    """
    from paddlewheel.card.page import report
    from paddlewheel.data.features import fit_features
    from paddlewheel.data.preprocess import plan_batches, preprocess
    from paddlewheel.evaluation.evaluate import evaluate
    from paddlewheel.evaluation.gate import gate
    from paddlewheel.registry import promote

    say(f"plan: the window of {partition}")
    planned = plan(recipe, partition, store=store)
    say("ingest: landing files into typed tables")
    ingested = [ingest(recipe, planned, batch, store=store) for batch in plan_ingest(recipe, planned, store=store)]
    say("validate: the recipe's limits")
    validated = validate(recipe, ingested, store=store)
    say("shard: labels, joins, sample ids")
    shards = shard(recipe, validated, store=store)
    say("fit-features: on the training days alone")
    features = fit_features(recipe, shards, store=store)
    say("preprocess: fixed-width rows")
    packed = [
        preprocess(recipe, shards, features, batch, store=store) for batch in plan_batches(recipe, shards, store=store)
    ]
    say("train")
    run = train(recipe, packed, store=store, on_progress=on_progress)
    say("evaluate: the holdout days, against the champion")
    evaluated = evaluate(recipe, run, store=store)
    say("gate")
    verdict = gate(recipe, evaluated, store=store)
    say("promote")
    promotion = promote(recipe, verdict, store=store)
    say("report")
    card = report(recipe, promotion, store=store)
    sweep_leftovers(store)
    return Night(plan=planned, run=run, promotion=promotion, card=card)


def train(recipe: Recipe, packed: list[str], *, store: Store, on_progress: Progress | None = None) -> str:
    """One training on this host without Airflow: open the run, be its agent; the run's URI. Raises TrainingError."""
    from paddlewheel.training.agent import run_agent
    from paddlewheel.training.run import open_run

    run = open_run(recipe, packed, store=store)
    code = run_agent(run, store=store, resources=recipe.resources, on_progress=on_progress)
    if code != 0:
        raise TrainingError(_why(store, run, code))
    return run


def _why(store: Store, run: str, code: int) -> str:
    """What the newest verdict says, and the way out: a fault of the user's own is mended first, the rest goes on."""
    from paddlewheel.training.curve import read_attempts

    key = read_manifest(store, run).key
    told = [attempt.verdict for attempt in read_attempts(store, key.removeprefix("runs/")) if attempt.verdict]
    if code in FAULTS_OF_THE_WORK:
        way_out = "mend that, then run the same command again"
    elif code == FENCED:
        way_out = "wait until that one is done, then run the same command again: sooner, it would take over in turn"
    else:
        way_out = "run the same command again: it goes on from the last commit"
    return (
        f"the training {key} ended with the agent's code {code}: {told[-1] if told else 'no verdict was left'}; "
        f"verdicts and logs are in {store.uri(key)}/attempts/ and logs/; {way_out}"
    )


def recipe_behind(store: Store, uri: str) -> Recipe:
    """The resolved recipe that the plan behind this manifest recorded."""
    return recipe_of(store, store.uri(manifest_key(nearest(store, uri, "plan"))))
