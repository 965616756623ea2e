from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.evaluation.gate import Check, gate, judge, override
from paddlewheel.manifest import read_manifest
from paddlewheel.recipe import Gate, Recipe
from paddlewheel.registry import promote
from paddlewheel.storage.local import LocalStore

Facts = Callable[..., dict[str, Any]]
CHAMPION = {"version": 3, "run": "r0", "partition": "2013-10-31"}


def outcome(checks: list[Check]) -> list[tuple[str, bool]]:
    return [(check.rule, check.passed) for check in checks]


@pytest.mark.parametrize(("auc", "passed"), [(0.61, True), (0.60, True), (0.5999, False)])
def test_first_model_passes_when_it_reaches_the_floor(facts_of: Facts, auc: float, passed: bool) -> None:
    checks = list(judge(Gate(min_auc=0.6), facts_of(auc=auc)))
    assert outcome(checks) == [("floor", passed), ("champion", True)]
    assert f"{auc:.4f}" in checks[0].text
    assert "0.6." in checks[0].text


def test_first_model_fails_when_its_log_loss_is_above_the_floor(facts_of: Facts) -> None:
    rules = Gate(min_auc=0.6, max_log_loss=0.44)
    checks = list(judge(rules, facts_of(auc=0.7, log_loss=0.45)))
    assert outcome(checks) == [("floor", True), ("floor", False), ("champion", True)]
    assert checks[1].text == "log loss 0.4500 (0.4400 to 0.4600) is above 0.44."


def test_floor_holds_too_when_the_champion_is_even_worse(facts_of: Facts) -> None:
    checks = list(judge(Gate(min_auc=0.6), facts_of(auc=0.59, champion=CHAMPION, champion_auc=0.55)))
    assert outcome(checks) == [("floor", False), ("champion", True)]


@pytest.mark.parametrize(("auc", "passed"), [(0.72, True), (0.696, True), (0.694, False)])
def test_auc_may_be_lower_by_max_loss_when_there_is_a_champion(facts_of: Facts, auc: float, passed: bool) -> None:
    rules = Gate(metric="auc", max_loss=0.005)
    checks = list(judge(rules, facts_of(auc=auc, champion=CHAMPION, champion_auc=0.70)))
    assert outcome(checks)[1] == ("champion", passed)


@pytest.mark.parametrize(("log_loss", "passed"), [(0.40, True), (0.454, True), (0.456, False)])
def test_log_loss_may_be_higher_by_max_loss_when_it_is_the_metric(
    facts_of: Facts, log_loss: float, passed: bool
) -> None:
    rules = Gate(metric="log_loss", max_loss=0.005)
    facts = facts_of(log_loss=log_loss, champion=CHAMPION, champion_log_loss=0.45)
    assert outcome(list(judge(rules, facts)))[1] == ("champion", passed)


def test_reason_tells_both_values_difference_interval_and_limit_when_worse(facts_of: Facts) -> None:
    facts = facts_of(auc=0.69, champion=CHAMPION, champion_auc=0.70)
    check = list(judge(Gate(max_loss=0.005), facts))[1]
    assert check.text == (
        "AUC 0.6900 against 0.7000 of the champion, version 3: 0.0100 worse, "
        "difference -0.0100 (-0.0120 to -0.0080); at most 0.005 worse is allowed."
    )


def test_reason_says_so_when_the_champion_was_trained_on_holdout_days(facts_of: Facts) -> None:
    facts = facts_of(champion=CHAMPION, seen_days=["2013-10-31"])
    check = list(judge(Gate(), facts))[1]
    assert check.text.endswith("The champion was trained on 1 of these 2 holdout days, which favours it.")


def test_slice_fails_only_when_its_whole_interval_lies_beyond_the_limit(facts_of: Facts) -> None:
    rules = Gate(max_loss=0.005, max_slice_loss=0.05)
    unsure = facts_of(champion=CHAMPION, slices=[("UA", 400, 0.60, 0.70, 0.06), ("AA", 300, 0.71, 0.70, 0.02)])
    assert outcome(list(judge(rules, unsure)))[2] == ("slices", True)
    sure = facts_of(champion=CHAMPION, slices=[("UA", 400, 0.60, 0.70, 0.04), ("AA", 300, 0.71, 0.70, 0.02)])
    check = list(judge(rules, sure))[2]
    assert not check.passed
    assert check.text == (
        "1 of 2 slices surely lost more than 0.05 of AUC: carrier UA (400 rows): AUC 0.6000 against 0.7000, "
        "difference -0.1000 (-0.1400 to -0.0600)."
    )


def test_slice_is_not_judged_when_it_has_too_few_rows(facts_of: Facts) -> None:
    facts = facts_of(champion=CHAMPION, slices=[("HA", 8, 0.10, 0.90, None)])
    check = list(judge(Gate(max_slice_loss=0.05), facts))[2]
    assert check.passed
    assert "No slice has enough rows" in check.text


def test_gate_refuses_when_the_champion_cannot_be_compared(facts_of: Facts) -> None:
    facts = facts_of(auc=0.9, champion=CHAMPION, why_not="the rows have no column seats (int64)")
    checks = list(judge(Gate(), facts))
    assert outcome(checks) == [("floor", True), ("champion", False)]
    assert "version 3, cannot be compared: the rows have no column seats (int64)" in checks[1].text


def test_gate_refuses_when_the_auc_is_not_defined(facts_of: Facts) -> None:
    checks = list(judge(Gate(), facts_of(auc=None, champion=CHAMPION)))
    assert [passed for _, passed in outcome(checks)] == [False, False]
    assert "of 1000 holdout rows 220 have label 1" in checks[0].text


def test_verdict_names_the_champion_and_is_found_again_when_asked_twice(
    store: LocalStore, recipe: Recipe, publish: Callable[..., str]
) -> None:
    uri = publish(store, recipe, auc=0.5, champion=CHAMPION)
    verdict = gate(recipe, uri, store=store)
    facts = read_manifest(store, verdict).facts
    assert facts["accepted"] is False
    assert facts["champion"] == CHAMPION
    assert [check["passed"] for check in facts["checks"]] == [False, False, True]
    assert facts["reasons"] == [check["text"] for check in facts["checks"]]
    assert gate(recipe, uri, store=store) == verdict


def test_verdict_is_another_when_the_rules_change(
    store: LocalStore, make_recipe: Callable[..., Recipe], publish: Callable[..., str]
) -> None:
    uri = publish(store, make_recipe(), auc=0.61)
    accepted = gate(make_recipe(), uri, store=store)
    refused = gate(make_recipe(**{"gate.min_auc": 0.65}), uri, store=store)
    assert read_manifest(store, accepted).facts["accepted"] is True
    assert read_manifest(store, refused).facts["accepted"] is False


def test_gate_names_the_kind_when_given_another_manifest(
    store: LocalStore, recipe: Recipe, publish: Callable[..., str]
) -> None:
    verdict = gate(recipe, publish(store, recipe), store=store)
    with pytest.raises(StorageError, match="kind 'verdict'; gate needs an evaluation"):
        gate(recipe, verdict, store=store)


def test_override_names_who_and_why_when_a_refusal_is_accepted(
    store: LocalStore, recipe: Recipe, publish: Callable[..., str]
) -> None:
    refused = gate(recipe, publish(store, recipe, auc=0.5), store=store)
    accepted = override(refused, by="Ada", reason="the floor was set for winter", store=store)
    facts = read_manifest(store, accepted).facts
    assert facts["accepted"] is True
    assert facts["override"]["by"] == "Ada"
    assert facts["reasons"][-1] == "Accepted by Ada in spite of the gate: the floor was set for winter"
    assert read_manifest(store, refused).facts["accepted"] is False
    promotion = read_manifest(store, promote(recipe, accepted, store=store))
    assert promotion.facts["promoted"] is True


def test_override_needs_a_reason_and_leaves_an_accepted_verdict_alone(
    store: LocalStore, recipe: Recipe, publish: Callable[..., str]
) -> None:
    accepted = gate(recipe, publish(store, recipe), store=store)
    assert override(accepted, by="Ada", reason="sure", store=store) == accepted
    refused = gate(recipe, publish(store, recipe, run="r2", auc=0.5), store=store)
    with pytest.raises(RecipeError, match="who decides and why"):
        override(refused, by="Ada", reason="  ", store=store)
