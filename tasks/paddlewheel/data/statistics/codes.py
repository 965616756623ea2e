"""Columns as codes: each distinct value of some rows once, in the order of first sight, and a number of it a row.

Found once for a row group, so that the Parquet writer gets its dictionary ready and the statistics work by distinct
value. R: rows, D: distinct values.
"""
# ruff: noqa: PLR0917

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from paddlewheel.data.statistics.murmur import hash_texts, inline, is_null, jit

MISSING: Final = -1
SHORT: Final = 12  # bytes of a text that stands in its view itself
NOTHING: Final = np.zeros(0, np.uint8)
_FIRST_SLOTS: Final = 1 << 10
_FACTOR, _OTHER_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_LONG: Final = -1


@dataclass(frozen=True, kw_only=True)
class Codes:
    """A column of R rows. codes_R: int32, MISSING for no value.

    firsts_D: int32, the row that has each value first; rows_D: int64, how many have it.

    keys_D: of short texts uint64[D, 2], Arrow's views of them; of numbers their eight bytes, int64; of a column with a
    text of more than SHORT bytes the hashes of its texts, which is what `hashed` says.
    """

    codes_R: Any
    keys_D: Any
    firsts_D: Any
    rows_D: Any
    hashed: bool = False

    @property
    def is_texts(self) -> bool:
        """Whether these are short texts."""
        return bool(self.keys_D.ndim == 2)

    def texts(self) -> Any:
        """The distinct texts, where they are short."""
        return texts_of(self.keys_D)


class Coder:
    """Finds codes of columns of up to `rows` rows, with the same scratch memory for each."""

    def __init__(self, rows: int) -> None:
        size = max(2 * rows, _FIRST_SLOTS)
        self._slots = np.empty(1 << (size - 1).bit_length(), np.int32)
        self._views, self._words = np.empty((rows, 2), np.uint64), np.empty(rows, np.int64)
        self._firsts, self._counts = np.empty(rows, np.int32), np.empty(rows, np.int64)

    def codes(self, column: pl.Series) -> Codes:
        """Of texts, or of values that `words_of` knows; floats that are not finite are missing."""
        codes_R = np.empty(len(column), np.int32)
        if column.dtype == pl.String:
            if (found := self._short_texts(column, codes_R)) is not None:
                return found
            return self._find(*_hashes_of(column), codes_R, hashed=True)
        return self._find(*words_of(column), codes_R)

    def _short_texts(self, column: pl.Series, codes_R: Any) -> Codes | None:
        state, row = self._begin(), 0
        for chunk in column.get_chunks():
            array = chunk.to_arrow(compat_level=pl.CompatLevel.newest())
            validity, views = array.buffers()[:2]
            bits, size = _bits(validity) if array.null_count else NOTHING, len(array)
            if not size:
                continue
            views_2R = np.frombuffer(views, np.uint64)
            stop = row + size
            _code_views(
                views_2R, bits, array.offset, row, codes_R[row:stop],
                self._views, self._firsts, self._counts, self._slots, state,
            )  # fmt: skip
            if state[0] == _LONG:
                return None
            row = stop
        return self._found(codes_R, self._views, state[0])

    def _find(self, words: Any, bits: Any, offset: int, codes_R: Any, *, hashed: bool = False) -> Codes:
        state = self._begin()
        _code_words(words, bits, offset, codes_R, self._words, self._firsts, self._counts, self._slots, state)
        return self._found(codes_R, self._words, state[0], hashed=hashed)

    def _found(self, codes_R: Any, keys: Any, size: int, *, hashed: bool = False) -> Codes:
        firsts_D, rows_D = self._firsts[:size].copy(), self._counts[:size].copy()
        return Codes(codes_R=codes_R, keys_D=keys[:size].copy(), firsts_D=firsts_D, rows_D=rows_D, hashed=hashed)

    def _begin(self) -> Any:
        """How many values there are, and the bits of a slot's number."""
        self._slots[:_FIRST_SLOTS] = 0
        return np.array([0, _FIRST_SLOTS.bit_length() - 1], np.int64)


def texts_of(views_D2: Any) -> Any:
    """Short texts, of their views, as an Arrow array."""
    views = pa.Array.from_buffers(pa.string_view(), len(views_D2), [None, pa.py_buffer(views_D2)])
    return views.cast(pa.string())


def words_of(column: pl.Series) -> tuple[Any, Any, int]:
    """Eight bytes a value (int64), the bitmap of those that are there, and the place of the first in both.

    Of binary values it is their length; -0.0 is 0.0.
    """
    if column.dtype == pl.Binary:
        column = column.bin.size().cast(pl.Int64)
    elif column.dtype == pl.Float64:
        finite = column.is_finite()
        column = column if finite.all() else column.set(~finite, None)
    elif column.dtype != pl.Int64:  # a cast to what it is takes as long as the rest
        column = column.to_physical().cast(pl.Int64)
    array = column.rechunk().to_arrow()
    validity, data = array.buffers()
    words = np.frombuffer(data, np.int64)
    if column.dtype == pl.Float64:
        words = (words.view(np.float64) + 0.0).view(np.int64)
    return words, _bits(validity) if array.null_count else NOTHING, array.offset


def _hashes_of(column: pl.Series) -> tuple[Any, Any, int]:
    """As `words_of`, of texts of any length."""
    array = column.rechunk().to_arrow(compat_level=pl.CompatLevel.newest()).cast(pa.large_string())
    validity, ends, data = array.buffers()
    bits = _bits(validity) if array.null_count else NOTHING
    hashes_R = np.zeros(len(array), np.uint64)
    hash_texts(_bits(data), np.frombuffer(ends, np.int64), array.offset, hashes_R)
    if array.offset and len(bits):
        bits = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    return hashes_R.view(np.int64), bits, 0


def _bits(buffer: Any) -> Any:
    return NOTHING if buffer is None else np.frombuffer(buffer, np.uint8)


@inline
def _slot_of_view(a: Any, b: Any, bits: Any) -> Any:
    mixed = a * _FACTOR + b * _OTHER_FACTOR
    return ((mixed ^ (mixed >> np.uint64(32))) * _FACTOR) >> np.uint64(64 - bits)


@inline
def _slot_of_word(word: Any, bits: Any) -> Any:
    mixed = np.uint64(word)
    return ((mixed ^ (mixed >> np.uint64(32))) * _FACTOR) >> np.uint64(64 - bits)


@jit
def _code_views(
    views: Any, validity: Any, offset: int, row: int, codes_R: Any,
    keys: Any, firsts: Any, counts: Any, slots: Any, state: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Codes of more rows, the first of which is `row`. state: how many values there are (_LONG at a long text), bits.

    slots: an open table of 2**bits codes + 1, 0 for none; half of it at least stays empty.
    """
    found, bits = state[0], state[1]
    last = np.uint64((1 << bits) - 1)
    one = np.uint64(1)
    for i in range(len(codes_R)):
        if is_null(validity, offset + i):
            codes_R[i] = MISSING
            continue
        a, b = views[2 * (offset + i)], views[2 * (offset + i) + 1]
        if a & np.uint64(0xFFFFFFFF) > np.uint64(SHORT):
            state[0] = _LONG
            return
        slot = _slot_of_view(a, b, bits)
        code = slots[slot] - 1
        while code >= 0 and (keys[code, 0] != a or keys[code, 1] != b):
            slot = (slot + one) & last
            code = slots[slot] - 1
        if code < 0:
            code = found
            keys[code, 0], keys[code, 1], firsts[code], counts[code] = a, b, row + i, 0
            slots[slot] = code + 1
            found += 1
            if 2 * found > 1 << bits:
                bits += 2 if 4 << bits <= len(slots) else 1
                last = np.uint64((1 << bits) - 1)
                slots[: 1 << bits] = 0
                for other in range(found):
                    slot = _slot_of_view(keys[other, 0], keys[other, 1], bits)
                    while slots[slot]:
                        slot = (slot + one) & last
                    slots[slot] = other + 1
        counts[code] += 1
        codes_R[i] = code
    state[0], state[1] = found, bits


@jit
def _code_words(
    words: Any, validity: Any, offset: int, codes_R: Any,
    keys: Any, firsts: Any, counts: Any, slots: Any, state: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """As `_code_views`, of all rows, eight bytes a value."""
    found, bits = state[0], state[1]
    last = np.uint64((1 << bits) - 1)
    one = np.uint64(1)
    for i in range(len(codes_R)):
        if is_null(validity, offset + i):
            codes_R[i] = MISSING
            continue
        word = words[offset + i]
        slot = _slot_of_word(word, bits)
        code = slots[slot] - 1
        while code >= 0 and keys[code] != word:
            slot = (slot + one) & last
            code = slots[slot] - 1
        if code < 0:
            code = found
            keys[code], firsts[code], counts[code] = word, i, 0
            slots[slot] = code + 1
            found += 1
            if 2 * found > 1 << bits:
                bits += 2 if 4 << bits <= len(slots) else 1
                last = np.uint64((1 << bits) - 1)
                slots[: 1 << bits] = 0
                for other in range(found):
                    slot = _slot_of_word(keys[other], bits)
                    while slots[slot]:
                        slot = (slot + one) & last
                    slots[slot] = other + 1
        counts[code] += 1
        codes_R[i] = code
    state[0], state[1] = found, bits
