"""The gate: may the challenger replace the champion? Always a verdict, every rule told as a sentence with numbers.

Floors hold for every model. Against a champion, the recipe's metric may be worse by `max_loss` at most, and no slice
may be surely worse by more than `max_slice_loss`. A champion that cannot be compared is a refusal, not a free pass: a
person may override it, on the record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.evaluation.metrics import HIGHER_IS_BETTER
from paddlewheel.manifest import (
    Manifest,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_manifest,
    read_manifest,
)
from paddlewheel.recipe import Gate, Recipe, dump
from paddlewheel.registry import version_of_run
from paddlewheel.storage import Store

NAMES = {"auc": "AUC", "log_loss": "log loss"}
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One rule's outcome. `difference` is challenger minus champion with its interval; `limit` what the rule allows."""

    rule: str
    passed: bool
    text: str
    metric: str | None = None
    challenger: float | None = None
    champion: float | None = None
    difference: Mapping[str, float | None] | None = None
    limit: float | None = None


def gate(recipe: Recipe, evaluation_uri: str, *, store: Store) -> str:
    """Judge an evaluation; the URI of the `verdict` manifest, accepted or not, with its reasons.

    A run that already is a version returns the verdict that the version records.
    """
    evaluation, source = read_manifest(store, evaluation_uri), input_of(store, evaluation_uri)
    if evaluation.kind != "evaluation":
        raise StorageError(f"{evaluation_uri} is a manifest of kind {evaluation.kind!r}; gate needs an evaluation")
    run_key = str(evaluation.facts["run"])
    became = version_of_run(store, recipe.name, run_key)
    if became is not None:
        log.info("gate: the run is version %d already, its verdict stands", became.version)
        return store.uri(became.verdict)
    code = code_digest(__name__)
    key = derive_key("verdict", source.key, source.digest, dump(recipe.gate), code)
    folder = f"runs/{run_key}/verdicts/{key}"
    if find_done(store, f"{folder}/manifest.json"):
        return store.uri(f"{folder}/manifest.json")
    checks = list(judge(recipe.gate, evaluation.facts))
    accepted = all(check.passed for check in checks)
    for check in checks:
        log.info("gate: %s %s", "passed:" if check.passed else "FAILED:", check.text)
    facts = {
        "accepted": accepted,
        "reasons": [check.text for check in checks],
        "checks": [asdict(check) for check in checks],
        "champion": _identity(evaluation.facts["champion"]),
        "run": run_key,
        "partition": evaluation.facts["partition"],
        "evaluation": source.key,
        "override": None,
    }
    verdict = Manifest(
        kind="verdict", name=recipe.name, key=folder, inputs=(source,), recipe=recipe.digest, code=code, facts=facts
    )
    return publish_manifest(store, verdict)


def override(verdict_uri: str, *, by: str, reason: str, store: Store) -> str:
    """A new verdict that accepts what the gate refused and names who decided and why; the refusal stays beside it.

    An accepted verdict is returned as it is. Raises RecipeError where `by` or `reason` is empty.
    """
    by, reason = by.strip(), reason.strip()
    if not by or not reason:
        raise RecipeError("an override needs who decides and why: both stand in the verdict and in the model's history")
    verdict, source = read_manifest(store, verdict_uri), input_of(store, verdict_uri)
    if verdict.kind != "verdict":
        raise StorageError(f"{verdict_uri} is a manifest of kind {verdict.kind!r}; only a verdict can be overridden")
    if verdict.facts["accepted"]:
        return verdict_uri
    key = derive_key("override", source.key, source.digest, by, reason)
    folder = f"runs/{verdict.facts['run']}/verdicts/{key}"
    facts = dict(verdict.facts) | {
        "accepted": True,
        "reasons": [*verdict.facts["reasons"], f"Accepted by {by} in spite of the gate: {reason}"],
        "override": {"by": by, "reason": reason, "verdict": source.key},
    }
    log.info("gate: accepted by %s in spite of the gate: %s", by, reason)
    return publish_manifest(
        store,
        Manifest(
            kind="verdict",
            name=verdict.name,
            key=folder,
            inputs=(source,),
            recipe=verdict.recipe,
            code=verdict.code,
            facts=facts,
        ),
    )


def judge(rules: Gate, facts: Mapping[str, Any]) -> Iterator[Check]:
    """Every rule applied to the facts of an evaluation."""
    yield from _check_floors(rules, facts)
    champion = facts["champion"]
    if champion is None:
        yield Check(rule="champion", passed=True, text="There is no champion yet: the floors alone decide.")
    elif not champion["comparable"]:
        text = (
            f"The champion, version {champion['version']}, cannot be compared: {champion['why_not']}. A person can "
            "decide: paddlewheel gate EVALUATION --accept --by WHO --reason WHY."
        )
        yield Check(rule="champion", passed=False, text=text)
    else:
        yield _check_metric(rules, facts, champion)
        if rules.max_slice_loss is not None:
            yield _check_slices(rules.max_slice_loss, facts)


def _check_floors(rules: Gate, facts: Mapping[str, Any]) -> Iterator[Check]:
    floors = [("auc", rules.min_auc, "at least", "below")]
    if rules.max_log_loss is not None:
        floors.append(("log_loss", rules.max_log_loss, "at most", "above"))
    for metric, limit, kept, broken in floors:
        estimate = facts["metrics"][metric]
        value = estimate["value"]
        if value is None:
            yield Check(rule="floor", metric=metric, passed=False, limit=limit, text=_undefined(metric, facts))
            continue
        passed = value >= limit if HIGHER_IS_BETTER[metric] else value <= limit
        text = f"{NAMES[metric]} {value:.4f}{_interval(estimate)} is {kept if passed else broken} {limit:g}."
        yield Check(rule="floor", metric=metric, passed=passed, challenger=value, limit=limit, text=text)


def _check_metric(rules: Gate, facts: Mapping[str, Any], champion: Mapping[str, Any]) -> Check:
    metric, limit = rules.metric, rules.max_loss
    mine, theirs = facts["metrics"][metric]["value"], champion["metrics"][metric]["value"]
    difference = champion["difference"][metric]
    if mine is None or theirs is None:
        return Check(rule="champion", metric=metric, passed=False, limit=limit, text=_undefined(metric, facts))
    loss = -difference["value"] if HIGHER_IS_BETTER[metric] else difference["value"]
    passed = loss <= limit
    change = f"{loss:.4f} worse" if loss > 0 else f"{-loss:.4f} better" if loss < 0 else "the same"
    text = (
        f"{NAMES[metric]} {mine:.4f} against {theirs:.4f} of the champion, version {champion['version']}: {change}, "
        f"difference {_told(difference)}; {_allowed(limit)}.{_seen(facts, champion)}"
    )
    return Check(
        rule="champion",
        metric=metric,
        passed=passed,
        challenger=mine,
        champion=theirs,
        difference=difference,
        limit=limit,
        text=text,
    )


def _check_slices(limit: float, facts: Mapping[str, Any]) -> Check:
    """One check over all slices: it fails where the whole interval of a slice's loss of AUC lies beyond the limit."""
    judged = [
        (part["difference"]["auc"], f"{cut['column']} {part['value']} ({part['rows']} rows)", part)
        for cut in facts["slices"]
        for part in cut["slices"]
        if part["enough"] and part["difference"]["auc"]["high"] is not None
    ]
    judged.sort(key=lambda entry: entry[0]["value"])
    told = [
        f"{name}: AUC {part['challenger']['auc']['value']:.4f} against {part['champion']['auc']['value']:.4f}, "
        f"difference {_told(difference)}"
        for difference, name, part in judged
    ]
    failed = [text for (difference, _, _), text in zip(judged, told, strict=True) if -difference["high"] > limit]
    if failed:
        text = f"{len(failed)} of {len(judged)} slices surely lost more than {limit:g} of AUC: {'; '.join(failed)}."
    elif told:
        text = f"None of {len(judged)} slices surely lost more than {limit:g} of AUC; the worst is {told[0]}."
    else:
        text = f"No slice has enough rows for an interval, so none surely lost more than {limit:g} of AUC."
    return Check(rule="slices", metric="auc", passed=not failed, limit=limit, text=text)


def _told(difference: Mapping[str, float | None]) -> str:
    """A difference with its interval: +0.0012 (-0.0010 to +0.0034)."""
    value, low, high = (difference[name] for name in ("value", "low", "high"))
    interval = "" if low is None or high is None else f" ({low:+.4f} to {high:+.4f})"
    return f"{value:+.4f}{interval}"


def _allowed(limit: float) -> str:
    return f"at most {limit:g} worse is allowed" if limit else "no worse is allowed"


def _seen(facts: Mapping[str, Any], champion: Mapping[str, Any]) -> str:
    """A warning where the champion was trained on days of the holdout."""
    days = len(champion["seen_days"])
    if not days:
        return ""
    return f" The champion was trained on {days} of these {len(facts['holdout'])} holdout days, which favours it."


def _interval(estimate: Mapping[str, float | None]) -> str:
    low, high = estimate["low"], estimate["high"]
    return "" if low is None or high is None else f" ({low:.4f} to {high:.4f})"


def _undefined(metric: str, facts: Mapping[str, Any]) -> str:
    return (
        f"{NAMES[metric]} is not defined: of {facts['rows']} holdout rows {facts['positives']} have label 1; "
        "both labels must occur. Widen data.window.holdout_days."
    )


def _identity(champion: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if champion is None else {name: champion[name] for name in ("version", "run", "partition")}
