"""Hashes of a block of values, and of its rows: MurmurHash3_x64_128 with the seed of Apache DataSketches.

Over UTF-8 text or the eight bytes of a number, so that what is kept of them is that library's own theta sketch.
Integers alone, the same on any machine. Loops without a branch a row, so that the compiler makes vectors of them. R:
rows of a block; 0 in a block of hashes: no value.
"""
# ruff: noqa: PLR0917

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from paddlewheel.data.compiled import compile_loop

SEED: Final = 9001
DEPTHS: Final = 32  # levels of the sample of rows: a row of depth d is in those up to d
NULL: Final = np.uint64(0)
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_FMIX1, _FMIX2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_ROW_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SEED64 = np.uint64(SEED)
_ONE, _FIVE = np.uint64(1), np.uint64(5)


jit: Any = compile_loop
inline: Any = numba.njit(inline="always")


@inline
def _rotate(x: Any, left: int) -> Any:
    return (x << np.uint64(left)) | (x >> np.uint64(64 - left))


@inline
def _mix(x: Any) -> Any:
    x ^= x >> np.uint64(33)
    x *= _FMIX1
    x ^= x >> np.uint64(33)
    x *= _FMIX2
    return x ^ (x >> np.uint64(33))


@inline
def _finish(h1: Any, h2: Any, k1: Any, k2: Any, size: Any) -> Any:
    """The hash of a tail of up to 15 bytes (k1, k2: its little-endian words) after the whole 16-byte blocks."""
    if k2:
        h2 ^= _rotate(k2 * _C2, 33) * _C1
    h1 ^= _rotate(k1 * _C1, 31) * _C2
    h1 ^= size
    h2 ^= size
    h1 += h2
    h2 += h1
    h1 = _mix(h1) + _mix(h2)
    return h1 if h1 > _ONE else np.uint64(2)  # 0 is a null here, and a hash that the sketches know not


@inline
def _is_null(validity: Any, place: int) -> Any:
    return len(validity) > 0 and not (validity[place >> 3] >> np.uint8(place & 7)) & np.uint8(1)


@inline
def _take_nulls(validity: Any, place: int, hashes_R: Any, rows_R: Any) -> None:
    """Nulls' hashes become NULL, then all go into the hashes of their rows. place: of the first row in the bitmap."""
    if len(validity):
        for i in range(len(hashes_R)):
            if _is_null(validity, place + i):
                hashes_R[i] = NULL
    for i in range(len(hashes_R)):
        rows_R[i] = rows_R[i] * _ROW_FACTOR + hashes_R[i]


@jit
def hash_short_texts(
    views: Any, validity: Any, offset: int, start: int, stop: int, hashes_R: Any, rows_R: Any
) -> None:  # pragma: no cover - compiled
    """Hashes of texts of up to 12 bytes, out of Arrow's string views (uint64[2N]: length and bytes, zero-padded).

    Without a branch a row, so that the compiler makes vectors of it: three times as fast.
    """
    size = stop - start
    block, hashes, rows = views[2 * (offset + start) : 2 * (offset + stop)], hashes_R[:size], rows_R[:size]
    for i in range(size):
        a, b = block[2 * i], block[2 * i + 1]
        # DataSketches passes over an empty text: it counts as the text of one zero byte
        length = max(a & np.uint64(0xFFFFFFFF), _ONE)
        low = (a >> np.uint64(32)) | (b << np.uint64(32))
        hashes[i] = _finish(_SEED64, _SEED64, low, b >> np.uint64(32), length)
    _take_nulls(validity, offset + start, hashes, rows)


@jit
def hash_texts(
    data: Any, ends: Any, validity: Any, offset: int, start: int, stop: int, hashes_R: Any, rows_R: Any
) -> None:  # pragma: no cover - compiled
    """Hashes of texts of any length, out of Arrow's large_string (uint8 bytes, int64[N+1] offsets)."""
    for i in range(start, stop):
        place = offset + i
        first, last = ends[place], ends[place + 1]
        size = max(last - first, 1)
        h1 = h2 = _SEED64
        blocks = (last - first) >> 4
        for block in range(blocks):
            at = first + 16 * block
            k1 = k2 = np.uint64(0)
            for byte in range(8):
                k1 |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
                k2 |= np.uint64(data[at + 8 + byte]) << np.uint64(8 * byte)
            h1 ^= _rotate(k1 * _C1, 31) * _C2
            h1 = (_rotate(h1, 27) + h2) * _FIVE + np.uint64(0x52DCE729)
            h2 ^= _rotate(k2 * _C2, 33) * _C1
            h2 = (_rotate(h2, 31) + h1) * _FIVE + np.uint64(0x38495AB5)
        k1 = k2 = np.uint64(0)
        at = first + 16 * blocks
        for byte in range(last - at):
            if byte < 8:
                k1 |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
            else:
                k2 |= np.uint64(data[at + byte]) << np.uint64(8 * (byte - 8))
        hashes_R[i - start] = _finish(h1, h2, k1, k2, np.uint64(size))
    _take_nulls(validity, offset + start, hashes_R[: stop - start], rows_R[: stop - start])


@jit
def hash_words(
    words: Any, validity: Any, offset: int, start: int, stop: int, hashes_R: Any, rows_R: Any
) -> None:  # pragma: no cover - compiled
    """Hashes of eight-byte values (int64)."""
    size, first = stop - start, offset + start
    hashes, rows = hashes_R[:size], rows_R[:size]
    for i in range(size):
        hashes[i] = _finish(_SEED64, _SEED64, np.uint64(words[first + i]), np.uint64(0), np.uint64(8))
    _take_nulls(validity, first, hashes, rows)


@jit
def depths(rows_R: Any, num_rows: int, depths_R: Any) -> None:  # pragma: no cover - compiled
    """How deep each row is sampled: the leading zero bits of its mixed hash, so half of the rows reach each next."""
    top = np.uint64(1 << 63)
    for i in range(num_rows):
        h, depth = _mix(rows_R[i]), 0
        while depth < DEPTHS - 1 and not h & top:
            h <<= _ONE
            depth += 1
        depths_R[i] = depth
