"""Steps that are left out, states that go back, and trainings that end since nothing helps: the guard in real ranks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlewheel.data.loader import open_loader, to_tensors
from paddlewheel.data.order import sample_hash
from paddlewheel.manifest import read_manifest
from paddlewheel.recipe import Guard
from paddlewheel.training.checkpoint import list_commits, load_weights
from paddlewheel.training.curve import read_curve
from paddlewheel.training.events import AnomalyEvent
from paddlewheel.training.guard import StepGuard
from paddlewheel.training.result import publish_result
from paddlewheel.training.run import read_recipe

HERE = str(Path(__file__).parent)
RUN_KEY = "0123456789abcdef0123"
ROWS = 65  # five steps of 16 an epoch, the last of one row
LINEAR = {"training.optimizer": {"name": "sgd", "learning_rate": 0.2}}
NAN = float("nan")
EVENT = AnomalyEvent(attempt=1, rank=0, epoch=2, step=7, kind="loss", value="nan", batch=1, first_ids=(11, 12))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' module on the path of this process and of the ranks."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)


def judged(guard: StepGuard, *norms: float) -> list[str | None]:
    """The kind of each step's fault, the steps of epoch 1 one after the other, as one rank notes them."""
    kinds = []
    for step, norm in enumerate(norms):
        fault = guard.fault(0.5, norm)
        guard.note((1, step), bad=fault is not None, norm=norm)
        kinds.append(fault and fault[0])
    return kinds


def test_only_numbers_that_are_not_finite_are_faults_when_no_factor_is_set() -> None:
    guard = StepGuard(Guard())
    assert judged(guard, 1.0, 1e30, math.inf, NAN, 1e-30) == [None, None, "norm", "norm", None]
    assert guard.fault(NAN, 1.0) == ("loss", pytest.approx(NAN, nan_ok=True))
    assert (guard.skipped, guard.row) == (2, [])


def test_a_norm_is_a_fault_when_it_is_beyond_the_factor_of_the_median_of_the_last_hundred() -> None:
    guard = StepGuard(Guard(norm_factor=4.0))
    assert judged(guard, *[1.0] * 9, 100.0) == [None] * 10  # fewer than ten norms say nothing
    assert judged(guard, 3.9, 4.1, 4.0) == [None, "norm", None]
    # A norm that was left out is no part of the median: nine ones, 100, 3.9 and 4.0 have the median 1.
    assert sorted(guard.norms) == [1.0] * 9 + [3.9, 4.0, 100.0]
    assert judged(guard, *[2.0] * 100) == [None] * 100
    assert list(guard.norms) == [2.0] * 100
    assert judged(guard, 7.9, 8.1) == [None, "norm"]


def test_the_state_goes_back_when_one_step_more_than_max_skips_is_bad_in_a_row() -> None:
    guard = StepGuard(Guard(max_skips=2, max_rollbacks=1))
    judged(guard, NAN, NAN, 1.0, NAN, NAN)
    assert not guard.must_go_back
    judged(guard, NAN)
    guard.row[-1] = (1, 9)
    assert guard.must_go_back
    guard.go_back(EVENT)
    assert guard.passed == [(1, 3), (1, 4), (1, 9)]
    assert (guard.passes_over((1, 9)), guard.passes_over((2, 9)), guard.must_go_back) == (True, False, False)
    again = StepGuard(Guard(max_skips=2, max_rollbacks=1))
    again.load(json.loads(json.dumps(guard.to_json())))
    assert vars(again) == vars(guard)
    judged(again, NAN, NAN, NAN)
    with pytest.raises(ArithmeticError) as told:
        again.go_back(EVENT)
    assert "3 steps in a row were left out (training.guard.max_skips: 2)" in str(told.value)
    assert "loss nan at step 7: batch 1 of epoch 2 (first sample ids: 11, 12)" in str(told.value)
    assert "went back once (training.guard.max_rollbacks: 1)" in str(told.value)


def test_a_training_may_end_with_a_step_left_out_but_not_when_it_went_back_or_nothing_counted() -> None:
    sound = StepGuard(Guard())
    judged(sound, 1.0, NAN)
    sound.check_end(EVENT)
    nothing = StepGuard(Guard())
    judged(nothing, NAN)
    with pytest.raises(ArithmeticError, match="ends with 1 steps left out"):
        nothing.check_end(EVENT)


def weights_of(run: Any) -> dict[str, np.ndarray]:
    return load_weights(run.store, run.commit())


def by_hand(run: Any) -> dict[str, np.ndarray]:
    """The weights after plain SGD over the same batches, those with a number that is none left out."""
    import paddle

    from paddlewheel.training.models import InputSpec, build_model
    from paddlewheel.training.seeds import seed_all

    loader = open_loader(run.store, read_manifest(run.store, run.uri), seed=5, global_batch=16)
    seed_all(5)
    model = build_model("deepfm", InputSpec(id_sizes=(7, 4, 11), num_dense=3), {"embedding": 4, "hidden": [8]})
    optimizer = paddle.optimizer.SGD(0.2, parameters=model.parameters())
    for epoch in (1, 2):
        for step in range(loader.steps_per_epoch):
            batch = loader.batch(epoch, step, 0, 1)
            if not np.isnan(batch.dense_BD).any():
                model.loss(to_tensors(batch)).backward()
                optimizer.step()
                optimizer.clear_grad()
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def anomalies(run: Any, rank: int = 0) -> list[tuple[str, int, int, int | None]]:
    """(kind, epoch, batch, back_to) as they were told."""
    told = [one for one in run.events() if one["event"] == "AnomalyEvent" and one["rank"] == rank]
    return [(one["kind"], one["epoch"], one["batch"], one["back_to"]) for one in told]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_batch_that_gives_no_number_is_left_out_and_counted(new_run: Callable[..., Any], world_size: int) -> None:
    run = new_run("run", rows=ROWS, overrides=LINEAR, poisoned=[20])
    assert run.train(1, world_size=world_size) == [0] * world_size, run.logs(1)
    assert distance(weights_of(run), by_hand(run)) <= 1e-6
    told = anomalies(run)
    assert [(kind, epoch, back_to) for kind, epoch, _, back_to in told] == [("loss", 1, None), ("loss", 2, None)]
    assert all(anomalies(run, rank) == told for rank in range(world_size))
    commit = run.commit()
    assert commit.order == {1: sample_hash(run.ids), 2: sample_hash(run.ids)}
    guard = commit.progress["guard"]
    assert (guard["skipped"], guard["rollbacks"], guard["row"], guard["passed"]) == (2, 0, [], [])
    left_out = [5 * (epoch - 1) + batch + 1 for _, epoch, batch, _ in told]
    steps = [record.step for record in read_curve(run.store, RUN_KEY)]
    assert sorted([*steps, *left_out]) == list(range(1, 11))


@pytest.mark.slow
def test_the_state_goes_back_in_process_and_the_batch_is_passed_over_when_it_is_bad_again(
    new_run: Callable[..., Any],
) -> None:
    settings = {
        **LINEAR,
        "training.guard": {"max_skips": 0, "max_rollbacks": 2},
        "training.checkpoint_every_steps": 2,
        "training.handlers": ["observer:kill"],
    }
    whole = new_run("whole", rows=ROWS, overrides=settings, poisoned=[20])
    assert whole.train(1, world_size=2) == [0, 0], whole.logs(1)
    assert distance(weights_of(whole), by_hand(whole)) <= 1e-6
    commit = whole.commit()
    assert (commit.step, commit.attempt) == (10, 1)
    assert commit.order == {1: sample_hash(whole.ids), 2: sample_hash(whole.ids)}
    told = anomalies(whole)
    # Left out, gone back, passed over, in each of the two epochs.
    assert [kind for kind, *_ in told] == ["loss", "loss", "passed"] * 2
    bad = [(epoch, batch) for _, epoch, batch, _ in told[::3]]
    steps = [5 * (epoch - 1) + batch + 1 for epoch, batch in bad]
    assert [back_to for *_, back_to in told[1::3]] == [2 * ((step - 1) // 2) for step in steps]
    guard = commit.progress["guard"]
    assert (guard["rollbacks"], [tuple(one) for one in guard["passed"]]) == (2, bad)
    manifest = read_manifest(whole.store, whole.uri)
    publish_result(whole.store, manifest, [], read_recipe(whole.store, manifest).training)
    facts = read_manifest(whole.store, f"runs/{RUN_KEY}/result.json").facts
    assert facts["left_out"] == {"skipped": 2, "rollbacks": 2, "passed": [list(one) for one in bad]}
    assert (facts["order_ok"], facts["steps"]) == (True, 10)
    records = read_curve(whole.store, RUN_KEY)
    assert [record.step for record in records] == [step for step in range(1, 11) if step not in steps]

    # Killed after it had gone back the second time, and gone on: bit for bit the same.
    killed = new_run("killed", rows=ROWS, overrides=settings, poisoned=[20])
    codes = killed.train(1, world_size=2, KILL_AT=f"1:{steps[1] + 1 if steps[1] < 9 else steps[1]}")
    assert codes == [13, -9], killed.logs(1)
    assert killed.train(2, world_size=2) == [0, 0], killed.logs(2)
    assert [one.digest for one in killed.commit().manifest.files] == [one.digest for one in commit.manifest.files]
    assert killed.commit().progress == commit.progress


@pytest.mark.slow
def test_the_training_begins_anew_when_nothing_was_committed_before_the_bad_batch(new_run: Callable[..., Any]) -> None:
    settings = {
        **LINEAR,
        "training.guard": {"max_skips": 0, "max_rollbacks": 2},
        "training.checkpoint_every_steps": None,
    }
    run = new_run("run", rows=ROWS, overrides=settings, poisoned=[20])
    assert run.train(1) == [0], run.logs(1)
    assert [back_to for kind, _, _, back_to in anomalies(run) if back_to is not None] == [0, 0]
    assert distance(weights_of(run), by_hand(run)) <= 1e-6
    assert run.commit().order == {1: sample_hash(run.ids), 2: sample_hash(run.ids)}


@pytest.mark.slow
def test_the_commit_before_is_taken_when_the_newest_is_damaged(new_run: Callable[..., Any]) -> None:
    settings = {
        **LINEAR,
        "training.epochs": 1,
        "training.guard": {"max_skips": 0},
        "training.checkpoint_every_steps": 1,
        "training.keep_checkpoints": 9,
        "training.handlers": ["observer:damage"],
    }
    run = new_run("run", rows=ROWS, overrides=settings, poisoned=[20])
    loader = open_loader(run.store, read_manifest(run.store, run.uri), seed=5, global_batch=16)
    bad = 1 + next(step for step in range(5) if np.isnan(loader.batch(1, step, 0, 1).dense_BD).any())
    assert bad >= 3  # so that two commits are there before it
    checkpoints = str(run.folder / f"root/runs/{RUN_KEY}/checkpoints")
    codes = run.train(1, world_size=2, DAMAGE_AT=f"{bad - 1}:{bad - 1}", CHECKPOINTS=checkpoints)
    assert codes == [0, 0], run.logs(1)
    assert [back_to for *_, back_to in anomalies(run) if back_to is not None] == [bad - 2]
    assert f"the commit at step {bad - 1} of attempt 1 is damaged and set aside" in run.logs(1)
    assert run.commit().order == {1: sample_hash(run.ids)}
    assert {commit.step for commit in list_commits(run.store, RUN_KEY)} == {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_the_batch_and_the_settings_are_named_when_the_state_may_not_go_back_again(new_run: Callable[..., Any]) -> None:
    settings = {**LINEAR, "training.guard": {"max_skips": 0, "max_rollbacks": 1}}
    run = new_run("run", rows=ROWS, overrides=settings, poisoned=[20])
    assert run.train(1, world_size=2) == [10, 10], run.logs(1)
    error = json.loads((run.work(1) / "error-0.json").read_text())
    assert error["type"] == "ArithmeticError"
    assert (
        "1 steps in a row were left out (training.guard.max_skips: 0), the last with loss nan at step"
        in (error["message"])
    )
    assert "of epoch 2 (first sample ids: " in error["message"]
    assert "went back once (training.guard.max_rollbacks: 1)" in error["message"]


@pytest.mark.slow
def test_ranks_of_local_sgd_go_back_together_when_one_of_them_had_a_bad_batch(new_run: Callable[..., Any]) -> None:
    settings = {
        **LINEAR,
        "training.sync": "local_sgd",
        "training.exchange": {"steps": 2},
        "training.guard": {"max_skips": 0, "max_rollbacks": 2},
        "training.checkpoint_every_steps": 2,
    }
    run = new_run("run", rows=ROWS, overrides=settings, poisoned=[20])
    assert run.train(1, world_size=2) == [0, 0], run.logs(1)
    commit = run.commit()
    guard = commit.progress["guard"]
    assert guard["rollbacks"] == 2
    # One batch ended a round, where all hear of a loss that is none; the other lay within one, on one rank alone.
    assert sorted((5 * (epoch - 1) + batch + 1) % 2 for epoch, batch in guard["passed"]) == [0, 1]
    told = [one for one in run.events() if one["event"] == "AnomalyEvent" and one["back_to"] is not None]
    assert sorted(one["value"] for one in told) == ["nan", "nan", "nan", "of another rank"]
    assert len({(one["epoch"], one["batch"], one["back_to"]) for one in told}) == 2
    assert commit.order == {1: sample_hash(run.ids), 2: sample_hash(run.ids)}
    assert all(np.isfinite(value).all() for value in weights_of(run).values())


@pytest.mark.slow
def test_running_means_are_those_of_before_when_a_step_is_left_out(new_run: Callable[..., Any]) -> None:
    settings = {
        **LINEAR,
        "training.epochs": 1,
        "model": {"name": "normed:build", "params": {}},
        "training.checkpoint_every_steps": 1,
        "training.keep_checkpoints": 9,
    }
    run = new_run("run", rows=80, overrides=settings, poisoned=[50])
    assert run.train(1, world_size=2) == [0, 0], run.logs(1)
    [(_, _, batch, _)] = anomalies(run)
    assert batch == 1
    means = {commit.step: load_weights(run.store, commit)["norm._mean"] for commit in list_commits(run.store, RUN_KEY)}
    assert all(np.isfinite(mean).all() for mean in means.values())
    # No commit is made right after the bad step; the next one has its own batch alone in the mean of before.
    assert sorted(means) == [1, 3, 4, 5]
    loader = open_loader(run.store, read_manifest(run.store, run.uri), seed=5, global_batch=16)
    rows_BD = loader.batch(1, 2, 0, 1).dense_BD
    # Paddle's momentum of 0.9; the mean over two ranks, weighted by rows, is that of the batch.
    np.testing.assert_allclose(means[3], 0.9 * means[1] + 0.1 * rows_BD.mean(0), atol=1e-6)
