"""Versions and the champion's pointer, with real files and real racing processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlewheel import registry
from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.evaluation.gate import gate, override
from paddlewheel.manifest import read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.registry import champion, list_versions, promote, rollback, version_of_run
from paddlewheel.storage import SwapConflict
from paddlewheel.storage.local import LocalStore

Publish = Callable[..., str]
NIGHTS = ["2013-11-01", "2013-11-02", "2013-11-03"]


def judge_and_promote(store: LocalStore, recipe: Recipe, publish: Publish, **facts: Any) -> dict[str, Any]:
    """One run through gate and promotion against the champion of the moment; the promotion's facts."""
    current = champion(store, recipe.name)
    against = current.to_json() if current else None
    verdict = gate(recipe, publish(store, recipe, champion=against, **facts), store=store)
    return dict(read_manifest(store, promote(recipe, verdict, store=store)).facts)


@pytest.fixture
def three_nights(store: LocalStore, recipe: Recipe, publish: Publish) -> LocalStore:
    for number, partition in enumerate(NIGHTS, 1):
        facts = judge_and_promote(store, recipe, publish, run=f"r{number}", partition=partition, auc=0.7)
        assert facts["promoted"], facts["reason"]
    return store


def test_first_version_is_published_whole_when_the_verdict_accepts(
    store: LocalStore, recipe: Recipe, publish: Publish
) -> None:
    assert champion(store, "late") is None
    facts = judge_and_promote(store, recipe, publish, run="r1")
    assert (facts["promoted"], facts["version"], facts["kept"]) == (True, 1, None)
    current = champion(store, "late")
    assert current is not None
    assert (current.version, current.run, current.partition) == (1, "r1", "2013-11-01")
    assert [(change.version, change.action, change.by) for change in current.history] == [(1, "promote", "gate")]
    model = read_manifest(store, "models/late/versions/1/manifest.json")
    assert model.kind == "model"
    assert [shard.key for shard in model.files] == [
        "models/late/versions/1/network.json",
        "models/late/versions/1/network.pdiparams",
    ]
    assert store.read("models/late/versions/1/network.json") == b"network.json of r1"
    found = version_of_run(store, "late", "runs/r1")
    assert found is not None
    assert (found.version, found.code, found.recipe) == (1, "c0de", recipe.digest)
    assert found.metrics["auc"]["value"] == 0.70


def test_promotion_is_one_version_when_repeated(store: LocalStore, recipe: Recipe, publish: Publish) -> None:
    evaluation = publish(store, recipe)
    verdict = gate(recipe, evaluation, store=store)
    first = promote(recipe, verdict, store=store)
    pointer = store.read("models/late/champion.json")
    assert promote(recipe, verdict, store=store) == first
    assert gate(recipe, evaluation, store=store) == verdict
    assert store.read("models/late/champion.json") == pointer
    assert len(list_versions(store, "late")) == 1


def test_promotion_is_told_when_the_process_died_after_the_pointer_moved(
    store: LocalStore, recipe: Recipe, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = gate(recipe, publish(store, recipe), store=store)
    publish_manifest = registry.publish_manifest

    def die_at_the_promotion(store: Any, manifest: Any) -> str:
        if manifest.kind == "promotion":
            raise KeyboardInterrupt
        return publish_manifest(store, manifest)

    monkeypatch.setattr(registry, "publish_manifest", die_at_the_promotion)
    with pytest.raises(KeyboardInterrupt):
        promote(recipe, verdict, store=store)
    monkeypatch.undo()
    facts = read_manifest(store, promote(recipe, verdict, store=store)).facts
    assert (facts["promoted"], facts["version"]) == (True, 1)
    current = champion(store, "late")
    assert current is not None
    assert len(current.history) == 1


def test_number_is_claimed_again_when_the_process_died_before_the_pointer_moved(
    store: LocalStore, recipe: Recipe, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = gate(recipe, publish(store, recipe), store=store)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "move", die)
    with pytest.raises(KeyboardInterrupt):
        promote(recipe, verdict, store=store)
    assert list_versions(store, "late") == []
    monkeypatch.undo()
    assert read_manifest(store, promote(recipe, verdict, store=store)).facts["version"] == 1
    # A number that a dead process of another run left behind is passed over.
    store.publish("models/late/versions/2/claim.json", b"of a run that died\n")
    monkeypatch.setattr(registry, "CLAIM_SECONDS", 0.2)
    facts = judge_and_promote(store, recipe, publish, run="r2", partition="2013-11-02")
    assert facts["version"] == 3
    assert [model.version for model in list_versions(store, "late")] == [1, 3]


def test_refusal_keeps_the_champion_when_the_gate_refuses(
    three_nights: LocalStore, recipe: Recipe, publish: Publish
) -> None:
    facts = judge_and_promote(three_nights, recipe, publish, run="r4", partition="2013-11-04", auc=0.65)
    assert facts["promoted"] is False
    assert facts["kept"] == {"version": 3, "run": "r3", "partition": "2013-11-03"}
    assert facts["reason"].startswith("the gate refused it: AUC 0.6500 against 0.7000")
    assert [model.version for model in list_versions(three_nights, "late")] == [1, 2, 3]


def test_older_partition_is_refused_when_the_champion_is_newer(
    three_nights: LocalStore, recipe: Recipe, publish: Publish
) -> None:
    facts = judge_and_promote(three_nights, recipe, publish, run="old", partition="2013-10-15", auc=0.9)
    assert facts["promoted"] is False
    assert "2013-10-15 is older than the champion's: version 3 was trained for 2013-11-03" in facts["reason"]
    assert version_of_run(three_nights, "late", "old") is None


def test_older_partition_is_refused_when_a_newer_one_won_after_the_verdict(
    store: LocalStore, recipe: Recipe, publish: Publish
) -> None:
    verdict = gate(recipe, publish(store, recipe, run="old", partition="2013-10-15"), store=store)
    judge_and_promote(store, recipe, publish, run="r1")
    facts = read_manifest(store, promote(recipe, verdict, store=store)).facts
    assert facts["promoted"] is False
    assert "older" in facts["reason"]


def test_refusal_for_age_is_lifted_when_the_champion_is_rolled_back(
    three_nights: LocalStore, recipe: Recipe, publish: Publish
) -> None:
    rollback(three_nights, "late", 1, by="Ada", reason="trial")
    against = {"version": 1, "run": "r1", "partition": "2013-11-01"}
    verdict = gate(
        recipe, publish(three_nights, recipe, run="x", partition="2013-11-02", champion=against), store=three_nights
    )
    rollback(three_nights, "late", 3, by="Ada", reason="trial")
    assert read_manifest(three_nights, promote(recipe, verdict, store=three_nights)).facts["promoted"] is False
    rollback(three_nights, "late", 1, by="Ada", reason="trial")
    assert read_manifest(three_nights, promote(recipe, verdict, store=three_nights)).facts["version"] == 4


def test_error_says_evaluate_again_when_the_champion_moved_after_the_verdict(
    store: LocalStore, recipe: Recipe, publish: Publish
) -> None:
    verdict = gate(recipe, publish(store, recipe, run="r2", partition="2013-11-02"), store=store)
    judge_and_promote(store, recipe, publish, run="r1")
    with pytest.raises(StorageError, match=r"against no champion, the champion is version 1 now\. Run evaluate"):
        promote(recipe, verdict, store=store)
    facts = judge_and_promote(store, recipe, publish, run="r2", partition="2013-11-02")
    assert (facts["promoted"], facts["version"]) == (True, 2)


RACER = """
import sys, time
from paddlewheel.errors import StorageError
from paddlewheel.manifest import read_manifest
from paddlewheel.recipe_check import load_recipe
from paddlewheel.registry import promote
from paddlewheel.storage import open_store
import json, pathlib
root, recipe_path, verdict, gun = sys.argv[1:]
recipe, store = load_recipe(json.loads(pathlib.Path(recipe_path).read_text())), open_store(root)
pathlib.Path(gun + "." + verdict.split("/")[-4]).touch()
while not pathlib.Path(gun).exists():
    time.sleep(0.001)
try:
    print("promoted", read_manifest(store, promote(recipe, verdict, store=store)).facts["version"])
except StorageError as error:
    print("lost", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_champion", [False, True])
def test_one_of_sixteen_processes_wins_when_they_race_for_the_champion(
    store: LocalStore, recipe: Recipe, publish: Publish, tmp_path: Path, with_champion: bool
) -> None:
    if with_champion:
        judge_and_promote(store, recipe, publish, run="r0")
    current = champion(store, "late")
    against = current.to_json() if current else None
    verdicts = [
        gate(recipe, publish(store, recipe, run=f"run{number}", champion=against), store=store) for number in range(16)
    ]
    gun, recipe_path = tmp_path / "gun", tmp_path / "recipe.json"
    from paddlewheel.recipe import dump

    recipe_path.write_text(json.dumps(dump(recipe)))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, store.root, str(recipe_path), verdict, str(gun)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for verdict in verdicts
    ]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("gun.*"))) < 16 and time.monotonic() < deadline:
        time.sleep(0.02)
    gun.touch()
    said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    number = 2 if with_champion else 1
    assert sorted(text.split()[0] for text in said) == ["lost"] * 15 + ["promoted"]
    assert f"promoted {number}" in said
    assert all("Run evaluate, gate and promote again" in text for text in said if text.startswith("lost"))
    winner = champion(store, "late")
    assert winner is not None
    assert winner.version == number
    assert len(winner.history) == number
    assert f"run{said.index(f'promoted {number}')}" == winner.run


def test_rollback_puts_the_version_before_into_service_and_keeps_the_history(three_nights: LocalStore) -> None:
    back = rollback(three_nights, "late", by="Ada", reason="it scored everything 0")
    assert (back.version, back.run, back.partition) == (2, "r2", "2013-11-02")
    current = champion(three_nights, "late")
    assert current == back
    assert [(one.version, one.action, one.by) for one in back.history] == [
        (1, "promote", "gate"),
        (2, "promote", "gate"),
        (3, "promote", "gate"),
        (2, "rollback", "Ada"),
    ]
    assert back.history[-1].reason == "it scored everything 0"
    assert [model.version for model in list_versions(three_nights, "late")] == [1, 2, 3]
    assert rollback(three_nights, "late", by="Ada", reason="again").version == 1
    assert rollback(three_nights, "late", 3, by="Ada", reason="it was the data").version == 3


def test_next_night_follows_the_version_in_service_when_it_was_rolled_back(
    three_nights: LocalStore, recipe: Recipe, publish: Publish
) -> None:
    rollback(three_nights, "late", 1, by="Ada", reason="both are broken")
    facts = judge_and_promote(three_nights, recipe, publish, run="r4", partition="2013-11-04")
    assert (facts["promoted"], facts["version"]) == (True, 4)
    assert facts["judged_against"]["version"] == 1


def test_rollback_is_refused_with_the_reason_when_it_cannot_be(three_nights: LocalStore) -> None:
    with pytest.raises(RecipeError, match="late has no version 9; there are 1, 2, 3"):
        rollback(three_nights, "late", 9, by="Ada", reason="why not")
    with pytest.raises(RecipeError, match="no model 'early'"):
        rollback(three_nights, "early", by="Ada", reason="why not")
    with pytest.raises(RecipeError, match="who does it and why"):
        rollback(three_nights, "late", by="", reason="why not")
    damaged = three_nights.local_path("models/late/versions/2/network.json")
    damaged.chmod(0o644)
    damaged.write_bytes(b"network.json of XX")
    with pytest.raises(StorageError, match=r"versions/2/network\.json has the digest"):
        rollback(three_nights, "late", by="Ada", reason="it scored everything 0")
    assert champion(three_nights, "late").version == 3  # type: ignore[union-attr]


def test_rollback_says_so_when_the_pointer_moved_meanwhile(
    three_nights: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = champion(three_nights, "late")
    rollback(three_nights, "late", 1, by="Ada", reason="first")
    monkeypatch.setattr(registry, "champion", lambda *_: stale)
    with pytest.raises(SwapConflict, match="moved by somebody else"):
        rollback(three_nights, "late", 2, by="Bob", reason="second")


def test_override_stands_in_the_history_when_it_promotes(store: LocalStore, recipe: Recipe, publish: Publish) -> None:
    refused = gate(recipe, publish(store, recipe, auc=0.5), store=store)
    promote(recipe, override(refused, by="Ada", reason="the first night has few rows", store=store), store=store)
    current = champion(store, "late")
    assert current is not None
    assert (current.history[0].action, current.history[0].by) == ("override", "Ada")


def test_registry_loads_nothing_heavy_when_imported() -> None:
    code = (
        "import sys, paddlewheel.registry; "
        "print(sorted({'paddle', 'pandas', 'polars', 'pyarrow', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
