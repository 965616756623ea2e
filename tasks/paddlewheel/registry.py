"""Models by name: promotion of a run to the next version and champion, rollback, and questions about both.

A process that dies while it promotes leaves a claimed number and files that nothing refers to, never a half version.
Rejected: a list of versions beside the pointer, two truths that a crash between them would set at odds.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from paddlewheel.champions import (
    Champion,
    Change,
    ModelVersion,
    champion,
    list_versions,
    move,
    now,
    version_key,
    version_of_run,
)
from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.lineage import manifest_key, nearest
from paddlewheel.manifest import (
    Manifest,
    Shard,
    derive_key,
    find_done,
    input_of,
    publish_manifest,
    read_manifest,
    verify,
)
from paddlewheel.storage import Store, SwapConflict

if TYPE_CHECKING:
    from paddlewheel.recipe import Recipe

__all__ = [
    "Champion",
    "Change",
    "ModelVersion",
    "champion",
    "list_versions",
    "promote",
    "rollback",
    "version_key",
    "version_of_run",
]
CLAIM_SECONDS = 10.0
log = logging.getLogger(__name__)


def promote(recipe: Recipe, verdict_uri: str, *, store: Store) -> str:
    """Publish an accepted run as the next version and make it champion; the URI of the `promotion` manifest either way.

    A refused run, or one of an older partition than the champion's of this moment, leaves the champion as it is.
    Raises StorageError where the champion is not the one that the verdict was judged against: evaluate again.
    """
    verdict, source = _read_verdict(store, verdict_uri), input_of(store, verdict_uri)
    run_key, partition = str(verdict.facts["run"]), str(verdict.facts["partition"])
    became, current = version_of_run(store, recipe.name, run_key), champion(store, recipe.name)
    refusal = "" if became else _refusal(verdict, partition, current)
    kept = current.to_json() if refusal and current else None
    folder = f"runs/{run_key}/promotions/{derive_key('promotion', source.key, source.digest, kept)}"
    if find_done(store, f"{folder}/manifest.json"):
        return store.uri(f"{folder}/manifest.json")
    facts: dict[str, Any] = {"run": run_key, "partition": partition, "judged_against": verdict.facts["champion"]}
    if refusal:
        log.info("promote: the champion stays: %s", refusal)
        facts |= {"promoted": False, "version": None, "kept": kept, "reason": refusal}
    else:
        try:
            version = became.version if became else _make_champion(recipe, verdict, source.key, current, store)
        except SwapConflict:
            if _refusal(verdict, partition, champion(store, recipe.name)):
                return promote(recipe, verdict_uri, store=store)  # the winner is newer: a refusal, not a race to repeat
            raise
        log.info("promote: %s version %d is in service", recipe.name, version)
        facts |= {"promoted": True, "version": version, "kept": None, "reason": f"promoted as version {version}"}
    promotion = Manifest(
        kind="promotion", name=recipe.name, key=folder, inputs=(source,), recipe=recipe.digest, facts=facts
    )
    return publish_manifest(store, promotion)


def rollback(store: Store, name: str, version: int | None = None, *, by: str, reason: str) -> Champion:
    """Put an earlier version (default: the next lower one) into service; its files are verified before.

    Raises RecipeError for an unknown name or version, StorageError for damaged files or a lost race.
    """
    if not by.strip() or not reason.strip():
        raise RecipeError("a rollback needs who does it and why: they stand in the model's history")
    current = champion(store, name)
    if current is None:
        raise RecipeError(f"no model {name!r} in {store.root}")
    numbers = sorted({change.version for change in current.history})
    if version is None:
        lower = [number for number in numbers if number < current.version]
        if not lower:
            raise RecipeError(f"{name} version {current.version} is the lowest; name the version to put into service")
        version = lower[-1]
    if version not in numbers:
        raise RecipeError(f"{name} has no version {version}; there are {', '.join(map(str, numbers))}")
    if version == current.version:
        log.info("rollback: %s version %d is in service already", name, version)
        return current
    manifest = read_manifest(store, version_key(name, version))
    verify(store, manifest)
    change = Change(
        version=version,
        run=str(manifest.facts["run"]),
        partition=str(manifest.facts["partition"]),
        action="rollback",
        by=by.strip(),
        reason=reason.strip(),
        at=now(),
    )
    return move(store, name, current, change)


def _read_verdict(store: Store, uri: str) -> Manifest:
    verdict = read_manifest(store, uri)
    if verdict.kind != "verdict":
        raise StorageError(f"{uri} is a manifest of kind {verdict.kind!r}; promote needs the verdict that gate wrote")
    return verdict


def _refusal(verdict: Manifest, partition: str, current: Champion | None) -> str:
    """Why the champion stays although nothing went wrong; empty where nothing speaks against the challenger."""
    if not verdict.facts["accepted"]:
        failed = [check["text"] for check in verdict.facts["checks"] if not check["passed"]]
        return f"the gate refused it: {' '.join(failed)}"
    if current is not None and current.partition > partition:
        return (
            f"its partition {partition} is older than the champion's: version {current.version} was trained for "
            f"{current.partition}, and an older partition never replaces a newer one"
        )
    return ""


def _make_champion(recipe: Recipe, verdict: Manifest, verdict_at: str, current: Champion | None, store: Store) -> int:
    """Publish the next version and move the pointer to it; fine too if another process just did exactly that."""
    _must_be_judged_against(current, verdict, recipe.name)
    version = _publish_version(recipe, verdict, verdict_at, current, store)
    override = verdict.facts["override"]
    change = Change(
        version=version,
        run=str(verdict.facts["run"]),
        partition=str(verdict.facts["partition"]),
        action="override" if override else "promote",
        by=override["by"] if override else "gate",
        reason=override["reason"] if override else " ".join(verdict.facts["reasons"]),
        at=now(),
    )
    try:
        move(store, recipe.name, current, change)
    except SwapConflict:
        if version_of_run(store, recipe.name, change.run) is None:
            _must_be_judged_against(champion(store, recipe.name), verdict, recipe.name)
            raise
    return version


def _must_be_judged_against(current: Champion | None, verdict: Manifest, name: str) -> None:
    judged = (verdict.facts["champion"] or {}).get("version")
    found = current.version if current else None
    if judged != found:
        was = f"version {judged}" if judged else "no champion"
        is_now = f"version {found}" if found else "none"
        raise SwapConflict(
            f"the champion of {name} moved: the verdict was judged against {was}, the champion is {is_now} now. "
            "Run evaluate, gate and promote again (or the whole chain: finished steps are skipped)"
        )


def _publish_version(recipe: Recipe, verdict: Manifest, verdict_at: str, current: Champion | None, store: Store) -> int:
    """Claim a number and publish the bundle's files and the version's manifest under it; idempotent for a verdict."""
    run_key = str(verdict.facts["run"])
    run, bundle = f"runs/{run_key}/manifest.json", f"runs/{run_key}/bundle/manifest.json"
    exported, evaluation = read_manifest(store, bundle), read_manifest(store, verdict.facts["evaluation"])
    verify(store, exported)
    number = _claim(store, recipe.name, verdict_at, current)
    folder = f"models/{recipe.name}/versions/{number}"
    files = []
    for shard in exported.files:
        key = f"{folder}/{shard.key.rpartition('/')[2]}"
        store.publish(key, store.local_path(shard.key))
        files.append(Shard(key=key, bytes=shard.bytes, digest=shard.digest, rows=shard.rows, facts=shard.facts))
    shards = nearest(store, run, "shards")
    facts = {
        "version": number,
        "run": run_key,
        "partition": verdict.facts["partition"],
        "evaluation": verdict.facts["evaluation"],
        "verdict": verdict_at,
        "data": input_of(store, manifest_key(shards)).digest,
        "metrics": evaluation.facts["metrics"],
        "window": {"train": shards.facts["train"], "holdout": shards.facts["holdout"]},
    }
    manifest = Manifest(
        kind="model",
        name=recipe.name,
        key=folder,
        files=tuple(files),
        inputs=tuple(input_of(store, key) for key in (run, bundle, verdict.facts["evaluation"], verdict_at)),
        recipe=recipe.digest,
        code=read_manifest(store, run).code,
        facts=facts,
    )
    publish_manifest(store, manifest)
    return number


def _claim(store: Store, name: str, verdict_at: str, current: Champion | None) -> int:
    """The lowest free version number, claimed for this verdict.

    A number that another run holds is on its way to be champion: wait for that, and the race is lost. Only if nothing
    comes of it was its process killed, and the next number is tried.
    """
    claim = (json.dumps({"verdict": verdict_at}, sort_keys=True) + "\n").encode()
    number = max((change.version for change in current.history), default=0) + 1 if current else 1
    while True:
        key = f"models/{name}/versions/{number}/claim.json"
        try:
            store.publish(key, claim)
            return number
        except StorageError:
            if store.stat(key) is None:
                raise
        deadline = time.monotonic() + CLAIM_SECONDS
        while time.monotonic() < deadline:
            found = champion(store, name)
            if (found.etag if found else None) != (current.etag if current else None):
                raise SwapConflict(
                    f"another run became champion of {name} meanwhile (version {found.version if found else '?'}). "
                    "Run evaluate, gate and promote again (or the whole chain: finished steps are skipped)"
                )
            time.sleep(0.05)
        log.warning("promote: version %d of %s was claimed and left by a process that died; skipped", number, name)
        number += 1
