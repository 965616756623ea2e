"""What the statistics' one pass counts of a block of hashed values: buckets, frequent values, the smallest hashes.

Integers alone: equal rows give equal states on any machine, in any order and however they are split. Arrays are passed
one by one, since a compiled function takes no dataclass: R rows of a block.
"""
# ruff: noqa: PLR0917

from __future__ import annotations

from typing import Any, Final

import numpy as np

from paddlewheel.data.histogram import MANTISSA_BITS, MOST_DAYS
from paddlewheel.data.murmur import DEPTHS, NULL, inline, jit
from paddlewheel.data.table_statistics import VALUES
from paddlewheel.data.theta import THETA_SIZE

THETA_SLOTS: Final = 4 * THETA_SIZE
PAGE_BITS: Final = 9  # of counts that are allocated together: an octave of numbers
NUM_VALUES, LEVEL, NUM_HASHES, THETA = range(4)  # places in a column's state

_ONE = np.uint64(1)


@inline
def _whole_bucket(value: Any) -> Any:
    """Bucket of a whole number: itself where its magnitude is below 2**(MANTISSA_BITS + 1), else by its first bits."""
    size = np.uint64(value) if value >= 0 else np.uint64(0) - np.uint64(value)
    exponent = np.float64(size).view(np.int64) >> np.int64(52)
    shift = max(exponent - np.int64(1023 + MANTISSA_BITS), np.int64(0))
    while shift > 0 and size >> np.uint64(shift) < np.uint64(1 << MANTISSA_BITS):
        shift -= 1  # the float was rounded up to the next power of two
    bucket = (shift << np.int64(MANTISSA_BITS)) + np.int64(size >> np.uint64(shift))
    return bucket if value >= 0 else -bucket


@jit
def add_to_histogram(
    values: Any, words: Any, divisor: int, first: int, start: int, stop: int, hashes_R: Any,
    extremes: Any, pages: Any, base: int, counts: Any,
) -> int:  # pragma: no cover - compiled  # fmt: skip
    """Count a block's values in their buckets; the row at which `counts` must get longer, or `stop`.

    values: int64 or float64; words: the same as int64; first: of the block's rows in them. divisor: a day, or 0 or -1
    for buckets by the first bits of a whole number or of a float. extremes: smallest and largest so far. pages: by
    (bucket - base) / 2**PAGE_BITS, where its counts lie, -1 for nowhere yet; the last element is how many lie there.
    """
    smallest, largest = extremes[0], extremes[1]
    for i in range(start, stop):
        if hashes_R[i] == NULL:
            continue
        value, word = values[first + i], words[first + i]
        if divisor == 0:
            bucket = _whole_bucket(word)
        elif divisor > 0:
            bucket = min(max(word // divisor, -MOST_DAYS), MOST_DAYS)
        else:
            bucket = (word & np.int64(0x7FFFFFFFFFFFFFFF)) >> np.int64(52 - MANTISSA_BITS)
            bucket = bucket if word >= 0 else -bucket
        page = (bucket - base) >> PAGE_BITS
        if pages[page] < 0:
            if pages[-1] == len(counts):
                extremes[0], extremes[1] = smallest, largest
                return i
            pages[page] = pages[-1]
            pages[-1] += 1
        counts[pages[page], (bucket - base) & ((1 << PAGE_BITS) - 1)] += 1
        smallest, largest = min(smallest, value), max(largest, value)
    extremes[0], extremes[1] = smallest, largest
    return stop


@jit
def place_values(slots: Any, entries: Any, keys: Any, size: int) -> None:  # pragma: no cover - compiled
    """Make the open table of these keys anew: their hashes (0: empty slot) and their entries."""
    slots[:] = NULL
    mask = np.uint64(len(slots) - 1)
    for entry in range(size):
        slot = keys[entry] & mask
        while slots[slot] != NULL:
            slot = (slot + _ONE) & mask
        slots[slot], entries[slot] = keys[entry], entry


@jit
def _deepen(state: Any, keys: Any, counts: Any, origins: Any) -> None:  # pragma: no cover - compiled
    """One level deeper: what was counted of shallower rows only is forgotten."""
    state[LEVEL] += 1
    level, kept = state[LEVEL], 0
    counts[level - 1] = 0
    for entry in range(state[NUM_VALUES]):
        held = False
        for depth in range(level, DEPTHS):
            count = counts[depth, entry]
            if count:
                held = True
                counts[depth, entry] = 0
                counts[depth, kept] = count
        if held:
            keys[kept], origins[kept] = keys[entry], origins[entry]
            kept += 1
    state[NUM_VALUES] = kept


@jit
def _insert(hashes: Any, wanted: Any) -> bool:  # pragma: no cover - compiled
    """Put a hash into an open table of hashes (0: empty slot); False where it stood there."""
    mask = np.uint64(len(hashes) - 1)
    slot = wanted & mask
    while hashes[slot] != NULL:
        if hashes[slot] == wanted:
            return False
        slot = (slot + _ONE) & mask
    hashes[slot] = wanted
    return True


@jit
def insert_all(hashes: Any, found: Any) -> None:  # pragma: no cover - compiled
    """Put the hashes of one table into another."""
    for one in found:
        if one != NULL:
            _insert(hashes, one)


@jit
def trim_hashes(state: Any, hashes: Any) -> None:  # pragma: no cover - compiled
    """Keep the THETA_SIZE smallest hashes; the next one becomes theta, below which all are known."""
    if state[NUM_HASHES] <= THETA_SIZE:
        return
    found = np.partition(hashes[hashes != NULL], THETA_SIZE)
    state[THETA], state[NUM_HASHES] = np.int64(found[THETA_SIZE]), THETA_SIZE
    hashes[:] = NULL
    for one in found[:THETA_SIZE]:
        _insert(hashes, one)


@inline
def _is_full(state: Any, keys: Any, theta_hashes: Any) -> Any:
    values_full = state[NUM_VALUES] == len(keys) and len(keys) < VALUES
    return values_full or (2 * state[NUM_HASHES] >= len(theta_hashes) and len(theta_hashes) < THETA_SLOTS)


@jit
def observe(
    hashes_R: Any, depths_R: Any, start: int, stop: int, first_row: int,
    state: Any, slots: Any, entries: Any, keys: Any, counts: Any, origins: Any, theta_hashes: Any,
) -> int:  # pragma: no cover - compiled  # fmt: skip
    """Count the values of a block; the row after which a table must grow, or `stop`.

    slots, entries: open table of hashes to entries; keys, counts, origins: by entry. origins: where a value was first
    seen (first_row + its row), -1 for values whose text is known.
    """
    if _is_full(state, keys, theta_hashes):
        return start
    mask, level, theta = np.uint64(len(slots) - 1), state[LEVEL], np.uint64(state[THETA])
    size, sampled = stop - start, level > 0
    picked = np.empty(size if sampled else 0, np.int32)
    if sampled:  # most rows are neither deep enough nor of a small hash: pick the others without a branch a row
        size = 0
        for row in range(start, stop):
            picked[size] = row
            size += (np.int64(depths_R[row]) >= level) | ((hashes_R[row] >> _ONE) < theta)
    for place in range(size):
        i: Any = np.int64(picked[place]) if sampled else start + place
        h = hashes_R[i]
        if h == NULL:
            continue
        depth = np.int64(depths_R[i])
        new = False
        if depth >= level:
            slot = h & mask
            found = slots[slot]
            while found != h and found != NULL:  # noqa: PLR1714 - compiled
                slot = (slot + _ONE) & mask
                found = slots[slot]
            if found == h:
                counts[depth, entries[slot]] += 1
                if level == 0:
                    continue  # a value that was counted from its first row on: its hash was seen then
            else:
                new = True
        short = h >> _ONE
        if not new and short >= theta:
            continue
        if short < theta and _insert(theta_hashes, short):
            state[NUM_HASHES] += 1
            if 2 * state[NUM_HASHES] >= THETA_SLOTS:
                trim_hashes(state, theta_hashes)
                theta = np.uint64(state[THETA])
        if new:
            while state[NUM_VALUES] == VALUES and depth >= state[LEVEL]:
                _deepen(state, keys, counts, origins)
                place_values(slots, entries, keys, state[NUM_VALUES])
            level = state[LEVEL]
            if depth >= level:
                entry = state[NUM_VALUES]
                slot = h & mask
                while slots[slot] != NULL:
                    slot = (slot + _ONE) & mask
                slots[slot], entries[slot] = h, entry
                keys[entry], origins[entry], counts[depth, entry] = h, first_row + i, 1
                state[NUM_VALUES] = entry + 1
        if _is_full(state, keys, theta_hashes):
            return i + 1
    return stop
