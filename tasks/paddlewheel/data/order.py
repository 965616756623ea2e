"""Which samples a step trains on: pure functions of (seed, epoch, step), never of the number of ranks.

The shuffle is an argsort of a hash of (seed, epoch, index), so that it stays the same in every version of numpy and can
be written again in any language; numpy's own shuffles promise neither. Epochs count from 1, steps of an epoch from 0.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def steps_per_epoch(num_samples: int, global_batch: int) -> int:
    """Global batches of an epoch; the last one may be short."""
    return -(-num_samples // global_batch)


def batch_indices(seed: int, epoch: int, step: int, *, num_samples: int, global_batch: int) -> np.ndarray:
    """Indices of the samples of the `step`-th global batch of `epoch`: int64[B], each index once an epoch.

    Raises IndexError for a step outside the epoch.
    """
    if not 0 <= step < steps_per_epoch(num_samples, global_batch):
        raise IndexError(f"an epoch of {num_samples} samples by {global_batch} has no step {step}")
    return epoch_order(seed, epoch, num_samples)[step * global_batch : (step + 1) * global_batch]


@functools.lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, num_samples: int) -> np.ndarray:
    """A permutation of 0..num_samples-1, int64[num_samples], read-only."""
    start = int(mix(np.array([(seed + GOLDEN * epoch) & MASK], np.uint64))[0])
    keys = mix(np.arange(num_samples, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(start))
    order = np.argsort(keys, kind="stable")
    order.setflags(write=False)
    return order


def rank_slice(size: int, rank: int, world_size: int, shares: Sequence[float] | None = None) -> slice:
    """The contiguous part of a global batch of `size` samples that a rank takes, possibly empty.

    Equal but for 1; with `shares`, one weight a rank, each bound lies at its part of the sum, rounded to a whole row:
    the parts follow one another and leave nothing out, since bounds grow with the rank and the last is `size`.
    """
    if shares is None:
        return slice(size * rank // world_size, size * (rank + 1) // world_size)
    ends = list(itertools.accumulate(shares, initial=0.0))
    start, stop = (int(size * (ends[place] / ends[-1]) + 0.5) for place in (rank, rank + 1))
    return slice(start, stop)


def kept_aside(seed: int, sample_ids_B: np.ndarray, fraction: float) -> np.ndarray:
    """Which samples are kept for validation, bool[B]: by a hash of (seed, id), so that a sample's side does not change
    with the rows around it, and is the same every night."""
    if not fraction:
        return np.zeros(len(sample_ids_B), bool)
    start = np.uint64(mix_one((seed * GOLDEN + 1) & MASK))
    return mix(mix(sample_ids_B.astype(np.uint64)) ^ start) < np.uint64(min(MASK, int(fraction * (MASK + 1))))


def sample_hash(sample_ids_B: np.ndarray) -> int:
    """Sum of a 64-bit mix of the ids, modulo 2**64: the same for any order, and for any split added up."""
    return int(mix(sample_ids_B.astype(np.uint64)).sum(dtype=np.uint64))


def mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014; variant 13 of Stafford), elementwise on uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mix_one(value: int) -> int:
    """`mix` of one number, without the dozen microseconds that an array costs."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
