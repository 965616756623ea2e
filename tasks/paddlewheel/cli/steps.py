"""The steps from the command line: what each makes, (the machine's form, lines for people)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Override:
    """Who accepts, and why, what the gate refuses."""

    by: str
    reason: str


def run_night(recipe: Recipe, store: Store, *, partition: str | None, quiet: bool) -> tuple[Any, list[str]]:
    """Every step for a day, the newest that the landing folder holds whole where none is named."""
    from paddlewheel.card.page import summary_lines
    from paddlewheel.chain import run_chain
    from paddlewheel.cli.progress import TrainingProgress
    from paddlewheel.data.demos.landing import fill_empty_landing

    with TrainingProgress(quiet=quiet) as progress:
        fill_empty_landing(recipe, store=store, say=progress.say)
        day = _newest(recipe, store, progress.say) if partition is None else partition
        night = run_chain(recipe, day, store=store, on_progress=progress.update, say=progress.say)
        progress.say("")
    return {**dataclasses.asdict(night), "partition": day}, summary_lines(store, night.promotion)


def plan_day(recipe: Recipe, store: Store, *, partition: str | None) -> tuple[Any, list[str]]:
    """The plan of a day; what differs from the plan before goes to the log, so that a script can use the URI."""
    from paddlewheel.data.landing.plan_diff import diff_plans, newest_other
    from paddlewheel.data.plan import plan

    day = _newest(recipe, store, log.info) if partition is None else partition
    uri = plan(recipe, day, store=store)
    older = newest_other(uri, store=store)
    if older is None:
        return {"uri": uri, "diff": None}, [uri]
    diff = diff_plans(uri, older, store=store)
    for line in diff.lines():
        log.info("%s", line)
    return {"uri": uri, "diff": diff.to_json()}, [uri]


def make(
    step: str, uris: Sequence[str], store: Store, *, batch: int | None, override: Override | None, quiet: bool
) -> tuple[Any, list[str]]:
    """A step whose inputs are manifests; the recipe is the one that the plan behind them recorded."""
    from paddlewheel.chain import recipe_behind

    recipe = recipe_behind(store, uris[0])
    if step in ("ingest", "preprocess"):
        made = _make_batches(step, recipe, uris[0], store, batch)
    elif step == "train":
        made = [_train(recipe, uris, store, quiet=quiet)]
    else:
        made = [_make_one(step, recipe, uris, store)]
    if override is not None:
        from paddlewheel.evaluation.gate import override as accept

        made = [accept(made[0], by=override.by, reason=override.reason, store=store)]
    return {"uri": made[0]} if len(made) == 1 else {"uris": made}, made


def _newest(recipe: Recipe, store: Store, say: Callable[[str], None]) -> str:
    from paddlewheel.data.plan import newest_day

    day = newest_day(recipe, store=store)
    say(f"partition {day}: the newest day of which the landing folder holds every source")
    return day


def _make_batches(step: str, recipe: Recipe, uri: str, store: Store, batch: int | None) -> list[str]:
    if step == "ingest":
        from paddlewheel.data.ingest import ingest, plan_ingest

        wanted = plan_ingest(recipe, uri, store=store) if batch is None else [batch]
        return [ingest(recipe, uri, number, store=store) for number in wanted]
    from paddlewheel.data.preprocess import plan_batches, preprocess
    from paddlewheel.lineage import manifest_key, nearest

    shards = store.uri(manifest_key(nearest(store, uri, "shards")))
    wanted = plan_batches(recipe, shards, store=store) if batch is None else [batch]
    return [preprocess(recipe, shards, uri, number, store=store) for number in wanted]


def _make_one(step: str, recipe: Recipe, uris: Sequence[str], store: Store) -> str:
    from paddlewheel import registry
    from paddlewheel.card import page as card
    from paddlewheel.data import features, shard, validate
    from paddlewheel.evaluation import evaluate, gate

    if step == "validate":
        return validate.validate(recipe, uris, store=store)
    functions: dict[str, Callable[..., str]] = {
        "shard": shard.shard, "fit-features": features.fit_features, "evaluate": evaluate.evaluate,
        "gate": gate.gate, "promote": registry.promote, "report": card.report,
    }  # fmt: skip
    if step not in functions:
        raise RecipeError(f"there is no step {step!r}")
    return functions[step](recipe, uris[0], store=store)


def _train(recipe: Recipe, uris: Sequence[str], store: Store, *, quiet: bool) -> str:
    from paddlewheel.chain import train
    from paddlewheel.cli.progress import TrainingProgress

    with TrainingProgress(quiet=quiet) as progress:
        return train(recipe, list(uris), store=store, on_progress=progress.update)
