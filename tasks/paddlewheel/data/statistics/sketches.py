"""What the statistics count of a block of rows as codes: buckets, frequent values, the smallest hashes.

Integers alone: equal rows give equal states on any machine, in any order and however they are split. Arrays are passed
one by one, since a compiled function takes no dataclass: R rows of a block, D distinct values of a column in it; D1: of
NULL and then each of them.
"""
# ruff: noqa: PLR0917

from __future__ import annotations

from typing import Any, Final

import numpy as np

from paddlewheel.data.statistics.histogram import MANTISSA_BITS, MOST_DAYS
from paddlewheel.data.statistics.murmur import DEPTHS, NULL, inline, jit
from paddlewheel.data.statistics.table_statistics import VALUES
from paddlewheel.data.statistics.theta import THETA_SIZE

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
    values: Any, words: Any, divisor: int, start: int, rows_D: Any, extremes: Any, pages: Any, base: int, counts: Any,
) -> int:  # pragma: no cover - compiled  # fmt: skip
    """Count distinct values, from `start` on, with their rows; where `counts` must get longer, or D.

    values: int64 or float64; words: the same as int64. divisor: a day, or 0 or -1 for buckets by the first bits of a
    whole number or of a float. extremes: smallest and largest so far. pages: by (bucket - base) / 2**PAGE_BITS, where
    its counts lie, -1 for nowhere yet; the last element is how many lie there.
    """
    for i in range(start, len(rows_D)):
        value, word = values[i], words[i]
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
                return i
            pages[page] = pages[-1]
            pages[-1] += 1
        counts[pages[page], (bucket - base) & ((1 << PAGE_BITS) - 1)] += rows_D[i]
        extremes[0], extremes[1] = min(extremes[0], value), max(extremes[1], value)
    return len(rows_D)


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
def _deepen(state: Any, keys: Any, held: Any, counts: Any, origins: Any) -> None:  # pragma: no cover - compiled
    """One level deeper: what was counted of shallower rows only is forgotten."""
    state[LEVEL] += 1
    level, kept = state[LEVEL], 0
    counts[level - 1] = 0
    for entry in range(state[NUM_VALUES]):
        deep = False
        for depth in range(level, DEPTHS):
            count = counts[depth, entry]
            if count:
                deep = True
                counts[depth, entry] = 0
                counts[depth, kept] = count
        if deep:
            keys[kept], origins[kept] = keys[entry], origins[entry]
            held[kept, 0], held[kept, 1] = held[entry, 0], held[entry, 1]
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


@jit
def add_hashes(hashes_D1: Any, start: int, state: Any, hashes: Any) -> int:  # pragma: no cover - compiled
    """Keep the smallest hashes; from which on the table must grow first, or all."""
    theta = np.uint64(state[THETA])
    for i in range(start, len(hashes_D1)):
        if 2 * state[NUM_HASHES] >= len(hashes) and len(hashes) < THETA_SLOTS:
            return i
        short = hashes_D1[i] >> _ONE
        if short < theta and _insert(hashes, short):
            state[NUM_HASHES] += 1
            if 2 * state[NUM_HASHES] >= THETA_SLOTS:
                trim_hashes(state, hashes)
                theta = np.uint64(state[THETA])
    return len(hashes_D1)


@jit
def count_values(
    codes_R: Any, depths_R: Any, order_R: Any, starts: Any, hashes_D1: Any, keys_DX: Any, firsts_D: Any, start: int,
    entries_D: Any, state: Any, slots: Any, entries: Any, keys: Any, held: Any, counts: Any, origins: Any,
) -> int:  # pragma: no cover - compiled  # fmt: skip
    """Count the values of the rows that are deep enough, the deepest first; where a table must grow first, or the end.

    order_R, starts: of `murmur.depths`. entries_D: the entry of each code, -1 where it is not known yet. slots,
    entries: open table of hashes to entries; keys (hashes), held, counts, origins: by entry. held: the value, which is
    the one or two words of keys_DX; origins: a row of it in this frame, -1 for one of an earlier frame.
    """
    mask, level, place = np.uint64(len(slots) - 1), state[LEVEL], start
    size = starts[level - 1] if level else len(codes_R)
    while place < size:
        i = np.uint64(order_R[place])
        code = np.int64(codes_R[i])
        if code < 0:
            place += 1
            continue
        entry = np.int64(entries_D[np.uint64(code)])
        if entry < 0:
            h = hashes_D1[code + 1]
            slot = h & mask
            while slots[slot] != h and slots[slot] != NULL:
                slot = (slot + _ONE) & mask
            if slots[slot] == NULL:
                if state[NUM_VALUES] == VALUES:  # a level deeper; this row may be too shallow for it
                    _deepen(state, keys, held, counts, origins)
                    place_values(slots, entries, keys, state[NUM_VALUES])
                    entries_D[:] = -1
                    level = state[LEVEL]
                    size = starts[level - 1]
                    continue
                if state[NUM_VALUES] == len(keys):
                    return place
                entry = state[NUM_VALUES]
                slots[slot], entries[slot] = h, entry
                keys[entry], origins[entry] = h, firsts_D[code]
                held[entry, 0], held[entry, 1] = keys_DX[code, 0], keys_DX[code, keys_DX.shape[1] - 1]
                state[NUM_VALUES] = entry + 1
            else:
                entry = np.int64(entries[slot])
            entries_D[np.uint64(code)] = entry
        counts[np.uint64(depths_R[i]), np.uint64(entry)] += 1
        place += 1
    return len(codes_R)
