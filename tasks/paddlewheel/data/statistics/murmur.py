"""Hashes of a block of values, and of its rows: MurmurHash3_x64_128 with the seed of Apache DataSketches.

Over UTF-8 text or the eight bytes of a number, so that what is kept of them is that library's own theta sketch.
Integers alone, the same on any machine. R: rows of a block; D: distinct values of a column in it; a hash
of 0: no value.
"""

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
def is_null(validity: Any, place: int) -> Any:
    """Whether Arrow's bitmap, which is empty where nothing is missing, has no value there."""
    return len(validity) > 0 and not (validity[place >> 3] >> np.uint8(place & 7)) & np.uint8(1)


@jit
def hash_short_texts(views: Any, hashes_D: Any) -> None:  # pragma: no cover - compiled
    """Hashes of texts of up to 12 bytes, out of Arrow's string views (uint64[D, 2]: length and bytes, zero-padded)."""
    for i in range(len(hashes_D)):
        a, b = views[i, 0], views[i, 1]
        # DataSketches passes over an empty text: it counts as the text of one zero byte
        length = max(a & np.uint64(0xFFFFFFFF), _ONE)
        low = (a >> np.uint64(32)) | (b << np.uint64(32))
        hashes_D[i] = _finish(_SEED64, _SEED64, low, b >> np.uint64(32), length)


@jit
def hash_texts(data: Any, ends: Any, offset: int, hashes_R: Any) -> None:  # pragma: no cover - compiled
    """Hashes of texts of any length, out of Arrow's large_string (uint8 bytes, int64[N+1] offsets) from `offset` on."""
    for i in range(len(hashes_R)):
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
        hashes_R[i] = _finish(h1, h2, k1, k2, np.uint64(size))


@jit
def hash_words(words: Any, hashes_D: Any) -> None:  # pragma: no cover - compiled
    """Hashes of eight-byte values (int64)."""
    for i in range(len(hashes_D)):
        hashes_D[i] = _finish(_SEED64, _SEED64, np.uint64(words[i]), np.uint64(0), np.uint64(8))


@jit
def add_to_rows(codes_R: Any, hashes_D1: Any, rows_R: Any) -> None:  # pragma: no cover - compiled
    """Take a column into the hashes of its rows. hashes_D1: NULL, then the hash of each code."""
    for i in range(len(codes_R)):
        rows_R[i] = rows_R[i] * _ROW_FACTOR + hashes_D1[np.uint64(codes_R[i] + 1)]


@jit
def depths(rows_R: Any, depths_R: Any, order_R: Any, starts: Any) -> None:  # pragma: no cover - compiled
    """How deep each row is sampled: the leading zero bits of its mixed hash, so half of the rows reach each next.

    order_R: the rows by depth, the deepest first; starts[depth]: how many are deeper than that.
    """
    top, counts = np.uint64(1 << 63), np.zeros(DEPTHS, np.int64)
    for i in range(len(rows_R)):
        h, depth = _mix(rows_R[i]), 0
        while depth < DEPTHS - 1 and not h & top:
            h <<= _ONE
            depth += 1
        depths_R[i] = depth
        counts[depth] += 1
    starts[DEPTHS - 1] = 0
    for depth in range(DEPTHS - 2, -1, -1):
        starts[depth] = starts[depth + 1] + counts[depth + 1]
    places = starts.copy()
    for i in range(len(rows_R)):
        order_R[places[depths_R[i]]] = i
        places[depths_R[i]] += 1
