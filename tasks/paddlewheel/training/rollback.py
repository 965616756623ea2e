"""Going back in-process: the state of the last commit that counts, the same one on all ranks, or the start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paddlewheel.errors import CheckpointError
from paddlewheel.manifest import Manifest, verify
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import DAMAGE, Commit, list_commits
from paddlewheel.training.committer import Committer
from paddlewheel.training.damaged import Damaged, set_aside
from paddlewheel.training.events import AnomalyEvent
from paddlewheel.training.fit import Fit, prepare, restore
from paddlewheel.training.groups import Group


def go_back(fit: Fit, run: Manifest, committer: Committer, event: AnomalyEvent, *, store: Store) -> Fit:
    """The training as the last commit has it, or as it began, with the row of bad batches to be passed over.

    event: of the last step that was left out. All ranks must call. Raises ArithmeticError where no more may go back.
    """
    fit.guard.go_back(event)
    fit.copies.wait()
    committer.finish()
    run_key = run.key.removeprefix("runs/")
    commit = agree_on_commit(store, run_key, fit.strategy.world, attempt=committer.attempt)
    if commit is not None:
        restore(fit, commit, store)
        fit.guard.load_norms(commit.progress.get("guard", {}))
        return fit
    fresh = prepare(fit.recipe, run, None, store=store, loader=fit.loader, strategy=fit.strategy)
    fresh.guard, fresh.shares = fit.guard, fit.shares
    fresh.guard.load_norms({})
    return fresh


def agree_on_commit(store: Store, run_key: str, world: Group, *, attempt: int) -> Commit | None:
    """The newest commit that counts for rank 0 and is whole for every rank; None where there is none.

    One of this attempt that is damaged is removed, since the attempt will come to its step again. Raises
    CheckpointError where a rank does not see the commit that rank 0 chose.
    """
    known = list(list_commits(store, run_key))
    place, damaged = 0, list[Commit]()
    while True:
        mine = known[place] if place < len(known) else None
        step, made_by = _told_by_first(world, (mine.step, mine.attempt) if mine is not None else (-1, -1))
        if step < 0:
            _tell_damaged(store, run_key, world, damaged, attempt=attempt, went_on_from=0)
            return None
        chosen = next((one for one in known if (one.step, one.attempt) == (step, made_by)), None)
        if chosen is None:
            raise CheckpointError(
                f"rank {world.rank} does not see the commit of step {step} of attempt {made_by} of run {run_key}, to "
                "which rank 0 goes back; all ranks must read the same store"
            )
        if _all_read(store, chosen, world):
            _tell_damaged(store, run_key, world, damaged, attempt=attempt, went_on_from=step)
            return chosen
        damaged.append(chosen)
        place += 1


def _tell_damaged(
    store: Store, run_key: str, world: Group, damaged: Sequence[Commit], *, attempt: int, went_on_from: int
) -> None:
    """Rank 0 sets the damaged commits aside, and removes those of its own attempt."""
    for commit in damaged if world.rank == 0 else ():
        told = Damaged(
            step=commit.step,
            attempt=commit.attempt,
            reason="a rank read other bytes than were written",
            found_by=attempt,
            went_on_from=went_on_from,
        )
        set_aside(store, run_key, told, removed=commit.attempt == attempt)
        for stat in list(store.list(commit.key)) if commit.attempt == attempt else ():
            store.remove(stat.key)


def _told_by_first(world: Group, told: tuple[int, int]) -> tuple[int, int]:
    """Rank 0's word."""
    if world.size == 1:
        return told
    import paddle

    tensor = paddle.to_tensor(np.array(told, np.int64))
    world.broadcast_(tensor)
    step, attempt = (int(one) for one in tensor.numpy())
    return step, attempt


def _all_read(store: Store, commit: Commit, world: Group) -> bool:
    """Whether the commit's digests are right for every rank. Raises StorageError where the store cannot be read."""
    try:
        verify(store, commit.manifest)
        faults = 0
    except DAMAGE:
        faults = 1
    if world.size > 1:
        import paddle

        tensor = paddle.to_tensor(np.array([faults], np.int64))
        world.sum_(tensor)
        faults = int(tensor.numpy()[0])
    return faults == 0
