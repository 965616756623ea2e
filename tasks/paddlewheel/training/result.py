"""The result of a run: published once, from the final commit, and only with the proof that each sample came once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlewheel.errors import CheckpointError, StorageError
from paddlewheel.manifest import MANIFEST_NAME, Manifest, find_done, input_of, publish_manifest
from paddlewheel.storage import Store
from paddlewheel.training.attempts import Attempt
from paddlewheel.training.checkpoint import Commit, newest_commit
from paddlewheel.training.curve import read_attempts, read_curve


def publish_result(store: Store, run: Manifest, attempts: Sequence[Attempt]) -> str:
    """Publish runs/KEY/result.json; its URI. One that another agent published meanwhile is verified and stands.

    Raises CheckpointError where the run is not whole, whatever its ranks said.
    """
    key, total_steps = run.key.removeprefix("runs/"), int(run.facts["total_steps"])
    result_key = f"{run.key}/result.json"
    if find_done(store, result_key) is not None:
        return store.uri(result_key)
    commit = newest_commit(store, key)
    if commit is None or commit.step != total_steps:
        found = "none" if commit is None else f"step {commit.step}"
        raise CheckpointError(f"the ranks of {run.key} ended well without a commit at step {total_steps} ({found})")
    order = check_order(run, commit)
    wrong = [epoch for epoch, sums in order.items() if not sums["ok"]]
    if wrong:
        raise CheckpointError(f"{run.key} did not train on each sample once: epoch {wrong[0]} has {order[wrong[0]]}")
    curve = read_curve(store, key)
    seconds = sum(record.seconds for record in curve)
    facts: dict[str, Any] = {
        "partition": run.facts["partition"],
        "steps": total_steps,
        "epochs": int(run.facts["epochs"]),
        "order": order,
        "order_ok": True,
        "attempts": [_attempt_facts(record) for record in read_attempts(store, key)],
        "resumes": sum(1 for attempt in attempts if attempt.resumed_from_step),
        "final_loss": next((record.loss for record in curve if record.step == total_steps), None),
        "rows_per_second": round(sum(record.rows for record in curve) / seconds, 1) if seconds else None,
        "seconds": round(seconds, 3),
        "commit": f"{commit.key}/COMMIT.json",
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


def check_order(run: Manifest, commit: Commit) -> dict[str, dict[str, Any]]:
    """By epoch: the sum of sample hashes that the order demands, the sum of what was trained on, whether equal."""
    expected = str(run.facts["order_expected"])
    found = {}
    for epoch in range(1, int(run.facts["epochs"]) + 1):
        seen = str(commit.order.get(epoch, 0))
        found[str(epoch)] = {"expected": expected, "seen": seen, "ok": seen == expected}
    return found


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
