"""The result of a run: published once, from its last or its best commit, and only with the proof that each sample came
once in every epoch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paddlewheel.errors import CheckpointError, StorageError
from paddlewheel.manifest import (
    MANIFEST_NAME,
    Manifest,
    find_done,
    input_of,
    publish_manifest,
    read_manifest,
    verify,
)
from paddlewheel.recipe import Training
from paddlewheel.storage import Store
from paddlewheel.training.attempts import Attempt
from paddlewheel.training.checkpoint import COMMIT_NAME, DAMAGE, Commit, list_commits, newest_commit, parse_commit
from paddlewheel.training.curve import curve_of, read_attempts, read_counted, read_machines, read_ranks
from paddlewheel.training.damaged import read_damaged
from paddlewheel.training.diagnosis import diagnose
from paddlewheel.training.goodput import read_goodput

log = logging.getLogger(__name__)


def publish_result(store: Store, run: Manifest, attempts: Sequence[Attempt], training: Training) -> str:
    """Publish runs/KEY/result.json; its URI. One that another agent published meanwhile is verified and stands.

    Raises CheckpointError where the run is not whole, whatever its ranks said.
    """
    key = run.key.removeprefix("runs/")
    result_key = f"{run.key}/result.json"
    if find_done(store, result_key) is not None:
        return store.uri(result_key)
    last = newest_commit(store, key)
    if last is None or not is_end(run, last):
        found = "none" if last is None else f"step {last.step}"
        raise CheckpointError(
            f"the ranks of {run.key} ended well without a commit at step {run.facts['total_steps']} ({found})"
        )
    order = check_order(run, last)
    wrong = [epoch for epoch, sums in order.items() if not sums["ok"]]
    if wrong:
        raise CheckpointError(f"{run.key} did not train on each sample once: epoch {wrong[0]} has {order[wrong[0]]}")
    commit = find_best(store, run, last)
    events = read_counted(store, key)
    curve = curve_of(events)
    seconds = sum(record.seconds for record in curve)
    facts: dict[str, Any] = {
        "partition": run.facts["partition"],
        "steps": last.step,
        "epochs": len(order),
        "order": order,
        "order_ok": True,
        "attempts": [_attempt_facts(record) for record in read_attempts(store, key)],
        "resumes": sum(1 for attempt in attempts if attempt.resumed_from_step),
        "final_loss": next((record.loss for record in curve if record.step == last.step), None),
        "rows_per_second": round(sum(record.rows for record in curve) / seconds, 1) if seconds else None,
        "seconds": round(seconds, 3),
        "commit": f"{commit.key}/{COMMIT_NAME}",
        **_progress_facts(last, commit),
        **_damaged_facts(store, key),
        **_monitor_facts(store, run, training, events),
    }
    result = Manifest(
        kind="result",
        name=run.name,
        key=run.key,
        files=commit.manifest.files,
        inputs=(input_of(store, f"{run.key}/{MANIFEST_NAME}"),),
        recipe=run.recipe,
        code=run.code,
        facts=facts,
    )
    try:
        return publish_manifest(store, result, manifest_key=result_key)
    except StorageError:
        if find_done(store, result_key) is None:
            raise
        return store.uri(result_key)  # somebody was faster; the weights are those of the same order, once each


def is_end(run: Manifest, commit: Commit) -> bool:
    """Whether a training ends regularly with this commit: after all steps, or stopped early by its measurements."""
    stopped = commit.progress.get("validation", {}).get("stopped", False)
    return commit.step == int(run.facts["total_steps"]) or bool(stopped)


def check_order(run: Manifest, commit: Commit) -> dict[str, dict[str, Any]]:
    """By epoch that is trained to its end: the sum of sample hashes that the order demands, the sum of what was
    visited, whether equal."""
    expected, epochs = str(run.facts["order_expected"]), int(run.facts["epochs"])
    found = {}
    for epoch in range(1, commit.step * epochs // int(run.facts["total_steps"]) + 1):
        seen = str(commit.order.get(epoch, 0))
        found[str(epoch)] = {"expected": expected, "seen": seen, "ok": seen == expected}
    return found


def find_best(store: Store, run: Manifest, last: Commit) -> Commit:
    """The commit whose weights are the result: the last, or the best measured one where the recipe has a patience.

    A best one that is gone or damaged is told in a warning, and the last one is taken.
    """
    step = last.progress.get("validation", {}).get("best_step", 0)
    if not run.facts.get("best_is_result") or step in (0, last.step):
        return last
    for commit in list_commits(store, run.key.removeprefix("runs/")):
        if commit.step == step:
            try:
                verify(store, commit.manifest)
            except DAMAGE as error:
                log.warning("the best commit of %s, at step %d, is damaged: %s", run.key, step, error)
                break
            return commit
    log.warning("%s has no whole commit of its best step %d; the result is that of step %d", run.key, step, last.step)
    return last


def result_commit(store: Store, run: Manifest) -> Commit:
    """The commit whose weights are a finished run's result, its digests verified.

    Raises StorageError where the run has no result, or its commit is not there whole.
    """
    result_key = f"{run.key}/result.json"
    if store.stat(result_key) is None:
        raise StorageError(f"{store.uri(result_key)} is missing: the run is not trained to its end; run train again")
    key = str(read_manifest(store, result_key).facts["commit"])
    if store.stat(key) is None:
        raise StorageError(f"{store.uri(run.key)} has a result but not the commit of its weights, {store.uri(key)}")
    manifest = Manifest.from_json(store.read(key), store.uri(key))
    verify(store, manifest)
    return parse_commit(manifest, store.uri(key))


def _progress_facts(last: Commit, commit: Commit) -> dict[str, Any]:
    """What the guard left out and what was measured, where there was any of it."""
    facts: dict[str, Any] = {}
    guard, validation = last.progress.get("guard", {}), last.progress.get("validation")
    if guard.get("skipped") or guard.get("rollbacks"):
        facts["left_out"] = {name: guard[name] for name in ("skipped", "rollbacks", "passed")}
    if validation:
        facts["validation"] = {**validation, "result_step": commit.step}
    return facts


def _damaged_facts(store: Store, run_key: str) -> dict[str, Any]:
    """Commits that were found damaged, where there were any."""
    found = [asdict(one) for one in read_damaged(store, run_key)]
    return {"damaged": found} if found else {}


def _monitor_facts(
    store: Store, run: Manifest, training: Training, events: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Goodput, and what to change, where anything is; events: those of rank 0 that count."""
    goodput = read_goodput(store, run.key)
    ranks, machines = read_ranks(store, run.key, curve_of(events)), read_machines(store, run.key, events)
    found = diagnose(ranks, machines, goodput, training)
    return {"goodput": goodput.to_json(), "diagnosis": [one.to_json() for one in found]}


def _attempt_facts(record: Any) -> dict[str, Any]:
    return {
        "attempt": record.attempt,
        "resumed_from_step": record.resumed_from_step,
        "world_size": record.world_size,
        "last_step": record.last_step,
        "ended": record.ended,
        "exit_code": record.exit_code,
        "why": record.verdict,
    }
