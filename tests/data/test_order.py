"""The order of samples: each once an epoch, whatever the number of ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlewheel.data.order import batch_indices, kept_aside, mix, mix_one, rank_slice, sample_hash, steps_per_epoch

SEEDS = st.integers(0, 2**63 - 1)


@given(
    seed=SEEDS,
    epoch=st.integers(1, 1000),
    num_samples=st.integers(1, 400),
    global_batch=st.integers(1, 450),
    world_size=st.integers(1, 9),
)
def test_each_index_comes_once_an_epoch_when_ranks_take_slices(
    seed: int, epoch: int, num_samples: int, global_batch: int, world_size: int
) -> None:
    seen = []
    for step in range(steps_per_epoch(num_samples, global_batch)):
        indices = batch_indices(seed, epoch, step, num_samples=num_samples, global_batch=global_batch)
        assert indices.dtype == np.int64
        for rank in range(world_size):
            seen += indices[rank_slice(len(indices), rank, world_size)].tolist()
    assert sorted(seen) == list(range(num_samples))


@given(size=st.integers(0, 1000), world_size=st.integers(1, 64))
def test_slices_follow_one_another_and_differ_by_one_row_when_a_batch_is_cut(size: int, world_size: int) -> None:
    slices = [rank_slice(size, rank, world_size) for rank in range(world_size)]
    assert slices[0].start == 0
    assert slices[-1].stop == size
    assert all(left.stop == right.start for left, right in itertools.pairwise(slices))
    lengths = {one.stop - one.start for one in slices}
    assert max(lengths) - min(lengths) <= 1


@given(
    size=st.integers(0, 5000),
    shares=st.lists(st.floats(1e-3, 1e3) | st.integers(1, 64).map(lambda one: one / 64), min_size=1, max_size=24),
)
def test_slices_are_disjoint_and_complete_and_in_proportion_when_shares_are_uneven(
    size: int, shares: list[float]
) -> None:
    slices = [rank_slice(size, rank, len(shares), shares) for rank in range(len(shares))]
    assert slices[0].start == 0
    assert slices[-1].stop == size
    assert all(left.stop == right.start for left, right in itertools.pairwise(slices))
    for share, one in zip(shares, slices, strict=True):
        assert abs((one.stop - one.start) - size * share / sum(shares)) <= 1 + 1e-6 * size


@pytest.mark.parametrize(
    ("size", "shares", "lengths"),
    [(16, (3, 1), [12, 4]), (16, (0.5, 0.25, 0.25), [8, 4, 4]), (5, (1, 1), [3, 2]), (1, (1, 9), [0, 1])],
)
def test_slices_have_the_rows_that_their_shares_say(size: int, shares: tuple[float, ...], lengths: list[int]) -> None:
    slices = [rank_slice(size, rank, len(shares), shares) for rank in range(len(shares))]
    assert [one.stop - one.start for one in slices] == lengths


# Reckoned by hand from the definition, in whole numbers of Python: mix(mix(id) ^ mix(seed * GOLDEN + 1)) < 2**64 / 4.
@pytest.mark.parametrize(
    ("seed", "aside"),
    [
        (0, [1, 4, 6, 8, 13, 14, 15, 16, 19, 21, 26, 27, 32, 37]),
        (7, [1, 2, 3, 12, 13, 22, 23, 24, 37, 38]),
    ],
)
def test_a_sample_is_kept_aside_by_its_id_and_the_seed_alone(seed: int, aside: list[int]) -> None:
    ids_B = np.arange(40, dtype=np.uint64)
    assert np.flatnonzero(kept_aside(seed, ids_B, 0.25)).tolist() == aside
    backwards_B = kept_aside(seed, ids_B[::-1], 0.25)[::-1]
    assert np.flatnonzero(backwards_B).tolist() == aside
    assert not kept_aside(seed, ids_B, 0.0).any()


def test_the_part_that_is_kept_aside_is_near_the_fraction_when_samples_are_many() -> None:
    ids_B = np.arange(100_000, dtype=np.uint64)
    # Four standard deviations of a binomial of 100,000 at 0.1 are 380.
    assert abs(int(kept_aside(3, ids_B, 0.1).sum()) - 10_000) < 380
    assert kept_aside(3, ids_B, 0.5)[kept_aside(3, ids_B, 0.1)].all()


@pytest.mark.parametrize(("num_samples", "global_batch", "steps"), [(1, 1, 1), (10, 5, 2), (11, 5, 3), (3, 5, 1)])
def test_last_batch_is_short_when_samples_do_not_fill_it(num_samples: int, global_batch: int, steps: int) -> None:
    assert steps_per_epoch(num_samples, global_batch) == steps
    last = batch_indices(1, 1, steps - 1, num_samples=num_samples, global_batch=global_batch)
    assert len(last) == num_samples - (steps - 1) * global_batch


def test_step_outside_the_epoch_is_refused() -> None:
    with pytest.raises(IndexError, match="10 samples by 5 has no step 2"):
        batch_indices(1, 1, 2, num_samples=10, global_batch=5)


def test_order_differs_when_seed_or_epoch_differ() -> None:
    orders = {
        tuple(batch_indices(seed, epoch, 0, num_samples=50, global_batch=50).tolist())
        for seed in (0, 1, 2)
        for epoch in (1, 2, 3)
    }
    assert len(orders) == 9


def test_shuffle_leaves_no_trend_when_many_samples() -> None:
    order = batch_indices(7, 1, 0, num_samples=20_000, global_batch=20_000)
    assert abs(np.corrcoef(np.arange(20_000), order)[0, 1]) < 0.03


def test_mix_is_the_finaliser_of_splitmix64_when_held_against_its_published_stream() -> None:
    # The first outputs of splitmix64 with seed 1234567 (Rosetta Code, from Vigna's reference program).
    states = np.array([(1234567 + step * 0x9E3779B97F4A7C15) % 2**64 for step in (1, 2, 3)], np.uint64)
    assert mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_mix_of_one_number_equals_that_of_an_array_when_numbers_are_extreme() -> None:
    numbers = [0, 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15]
    assert [mix_one(number) for number in numbers] == mix(np.array(numbers, np.uint64)).tolist()


@given(ids=st.lists(st.integers(0, 2**64 - 1), max_size=50), cut=st.integers(0, 50), shuffle=st.randoms())
def test_hash_is_the_same_when_ids_are_shuffled_and_split(ids: list[int], cut: int, shuffle: object) -> None:
    mixed = list(ids)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    parts = [np.array(part, np.uint64) for part in (mixed[:cut], mixed[cut:])]
    assert sum(sample_hash(part) for part in parts) % 2**64 == sample_hash(np.array(ids, np.uint64))


def test_hash_differs_when_one_sample_comes_twice_instead_of_another() -> None:
    once, twice = np.array([3, 4, 5], np.uint64), np.array([3, 4, 4], np.uint64)
    assert sample_hash(once) != sample_hash(twice)
