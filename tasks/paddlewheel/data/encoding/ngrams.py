"""Ids of the n-grams and of the bytes of texts that lie in one buffer, by compiled loops.

Words are what stands between ASCII white space, characters are code points: neither hangs on a version of Unicode's
tables, as letters and their cases do. A row stops at the width of its ids, so a long text costs no more than they.
Axes: B rows, L ids a row (0 after the last). `data` is UTF-8 end to end, uint8[…], `offsets` int64[B + 1].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlewheel.data.compiled import compile_loop
from paddlewheel.data.xxh3 import hash_span

SPACE, TAB, RETURN = 32, 9, 13  # 9 to 13 are tab, line feed, vertical tab, form feed and carriage return
LEAST_CHARACTERS = 3


@compile_loop
def fill_words(data: Any, offsets: Any, buckets: int, longest: int, ids_BL: Any) -> None:
    """At each word in turn the n-grams of 1 to `longest` words, hashed with one space between words; into ids_BL."""
    width = ids_BL.shape[1]
    most = width + longest
    spans = np.empty((most, 2), np.int64)
    for row in range(ids_BL.shape[0]):
        text = np.empty(offsets[row + 1] - offsets[row] + 1, np.uint8)
        count, size, inside = 0, 0, False
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            blank = byte == SPACE or TAB <= byte <= RETURN
            if not blank:
                if not inside:
                    if count == most:
                        break
                    if count:
                        text[size] = SPACE
                        size += 1
                    spans[count, 0] = size
                    count += 1
                text[size] = byte
                size += 1
                spans[count - 1, 1] = size
            inside = not blank
        _fill(text, spans[:count], (1, longest), buckets, ids_BL[row])


@compile_loop
def fill_characters(data: Any, offsets: Any, buckets: int, longest: int, ids_BL: Any) -> None:
    """At each character in turn the n-grams of 3 to `longest`; a text of one or two is one n-gram. Into ids_BL."""
    most = ids_BL.shape[1] + longest
    spans = np.empty((most, 2), np.int64)
    for row in range(ids_BL.shape[0]):
        count = 0
        for at in range(offsets[row], offsets[row + 1]):
            if data[at] & 0xC0 != 0x80:  # not the second or a later byte of a character
                if count == most:
                    break
                spans[count, 0] = at
                count += 1
            spans[count - 1, 1] = at + 1
        _fill(data, spans[:count], (min(count, LEAST_CHARACTERS), longest), buckets, ids_BL[row])


@compile_loop
def _fill(text: Any, spans: Any, sizes: tuple[int, int], buckets: int, ids_L: Any) -> None:
    filled = 0
    for first in range(len(spans)):
        for size in range(sizes[0], sizes[1] + 1):
            if first + size > len(spans) or filled == len(ids_L):
                break
            value = hash_span(text, spans[first, 0], spans[first + size - 1, 1])
            ids_L[filled] = np.int32(value % np.uint64(buckets)) + 1
            filled += 1


@compile_loop
def fill_bytes(data: Any, offsets: Any, ids_BL: Any) -> None:
    """Each byte plus one, into ids_BL."""
    for row in range(ids_BL.shape[0]):
        size = min(offsets[row + 1] - offsets[row], ids_BL.shape[1])
        for at in range(size):
            ids_BL[row, at] = np.int32(data[offsets[row] + at]) + 1
