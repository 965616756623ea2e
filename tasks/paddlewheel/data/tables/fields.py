"""The compiled loop that takes delimited text apart: records, their fields as Arrow string views, and what is broken.

One loop for every file, with quotes or without, so that there is no fast way that accepts other rows than a slow one.
Rejected: polars' CSV parser, which fills short rows, trims blanks before numbers and cannot say which line was wrong;
per CPU-second it is slower, too.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from paddlewheel.data.compiled import compile_loop

# Why `split_records` stopped: more bytes are needed, as many rows as there is room for, the end, a line too long.
MORE, FULL, END, TOO_LONG = 0, 1, 2, 3
QUOTE_FAULT: Final = -1
PADDING: Final = 16  # bytes that must stand behind the end of `data`, so that whole words can be loaded

# What stands behind a field: another one, the end of the record, bytes that are not there yet, what may not stand.
_DELIMITER, _RECORD_END, _CUT_OFF, _MISPLACED = 0, 1, 2, 3
MISSING, VALID, MISFIT = 0, 1, 2  # of a value: a text that means missing, one of its type, one that is not
_QUOTE, _NEWLINE, _RETURN, _PLUS, _MINUS = np.uint8(34), np.uint8(10), np.uint8(13), np.uint8(43), np.uint8(45)
_U = np.uint64
inline: Any = numba.njit(inline="always")
_TENTH = _U((1 << 63) // 10)
_ONES, _UPPER_BITS, _PLACES = _U(0x0101010101010101), _U(0x8080808080808080), _U(0x0001020304050607)
_NEWLINES, _QUOTES, _ZEROS = _ONES * _U(10), _ONES * _U(34), _ONES * _U(0x30)
_UPPER_HALVES, _SIXES, _FIFTEENS = _ONES * _U(0xF0), _ONES * _U(6), _ONES * _U(15)
_LEADING_ZEROS = np.array([(1 << 8 * (8 - size)) - 1 for size in range(9)], np.uint64)  # bytes that are not there
_FIRST_BYTES = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(13)], np.uint64)  # of a text of up to 12
_LAST_BYTES = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(13)], np.uint64)


def _load_word(_: Any, data: Any, at: Any) -> Any:  # noqa: ARG001
    """The eight bytes from data[at] on as a little-endian number, wherever they begin."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(builder.bitcast(array.data, ir.IntType(8).as_pointer()), [arguments[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(data, types.int64), generate


_load64: Any = intrinsic(_load_word)


@inline
def _view(first: Any, last: Any, size: int, buffer: int, where: int) -> Any:  # pragma: no cover - compiled
    """The two words of Arrow's view of a text that begins with these 16 bytes and stands at `where` of a buffer."""
    if size > 12:
        return _U(size) | first << _U(32), _U(buffer) | _U(where) << _U(32)
    first &= _FIRST_BYTES[size]
    return _U(size) | first << _U(32), first >> _U(32) | (last & _LAST_BYTES[size]) << _U(32)


@inline
def _place_of(word: Any, delimiters: Any) -> Any:  # pragma: no cover - compiled
    """At which of a word's bytes the first delimiter, line break or quote stands; 8 for none.

    A byte is zero in `word ^ eight of it`; the borrow of a subtraction tells the first one exactly.
    """
    comma, newline, quote = word ^ delimiters, word ^ _NEWLINES, word ^ _QUOTES
    found = (comma - _ONES) & ~comma | (newline - _ONES) & ~newline | (quote - _ONES) & ~quote
    found &= _UPPER_BITS
    first = (found & (~found + _U(1))) >> _U(7)  # 256 to the power of the place
    return np.int64((first * _PLACES) >> _U(56)) if found else 8


@inline
def _eight_digits(word: Any, size: int) -> Any:  # pragma: no cover - compiled
    """(number, True) where the first `size` bytes of a word, 1 to 8, are digits; after Daniel Lemire."""
    word = word << _U(64 - 8 * size) | _ZEROS & _LEADING_ZEROS[size]
    sound = (word & _UPPER_HALVES) == _ZEROS and ((word + _SIXES) & _UPPER_HALVES) == _ZEROS
    word = ((word & _FIFTEENS) * _U(2561)) >> _U(8)
    word = ((word & _U(0x00FF00FF00FF00FF)) * _U(6553601)) >> _U(16)
    return np.int64(((word & _U(0x0000FFFF0000FFFF)) * _U(42949672960001)) >> _U(32)), sound


@compile_loop
def _end_of_line(data: Any, at: int, end: int) -> int:  # pragma: no cover - compiled
    while at < end and data[at] != _NEWLINE:
        at += 1
    return at


@compile_loop
def _end_of_blanks(data: Any, at: int, end: int) -> int:  # pragma: no cover - compiled
    """Where the run of blank lines from `at` ends: at a line with something in it, or at the end."""
    while at < end:
        if data[at] == _NEWLINE:
            at += 1
        elif data[at] == _RETURN and at + 1 < end and data[at + 1] == _NEWLINE:
            at += 2
        elif data[at] == _RETURN and at + 1 == end:
            return end
        else:
            break
    return at


@compile_loop
def _behind(data: Any, at: int, end: int, final: bool, delimiter: Any) -> Any:  # pragma: no cover - compiled
    """What stands at `at`, behind a closing quote, and where the next field or record begins."""
    if at == end:
        return (_RECORD_END if final else _CUT_OFF), end
    if data[at] == delimiter:
        return _DELIMITER, at + 1
    if data[at] == _NEWLINE:
        return _RECORD_END, at + 1
    if data[at] == _RETURN:
        if at + 1 == end:
            return (_RECORD_END if final else _CUT_OFF), end
        if data[at + 1] == _NEWLINE:
            return _RECORD_END, at + 2
    return _MISPLACED, at


@compile_loop
def _quoted(  # noqa: PLR0917
    data: Any, at: int, stop: int, end: int, final: bool, delimiter: Any
) -> Any:  # pragma: no cover - compiled
    """A field whose text begins at `at`, behind its quote; a quote not closed before `stop` is out of place.

    Returns (end of its text, end with its quote, what stands behind, next begin, doubled quotes, line breaks).
    """
    doubled = newlines = 0
    last = min(stop, end)
    while at < last:
        byte = data[at]
        if byte == _QUOTE:
            if at + 1 == end or data[at + 1] != _QUOTE:
                what, following = _behind(data, at + 1, end, final, delimiter)
                return at, at + 1, what, following, doubled, newlines
            doubled += 1
            at += 1
        elif byte == _NEWLINE:
            newlines += 1
        at += 1
    return at, at, (_MISPLACED if final or at >= stop else _CUT_OFF), at, doubled, newlines


@compile_loop
def _undouble(data: Any, start: int, end: int, side: Any, side_at: int) -> int:  # pragma: no cover - compiled
    """Copy data[start:end] to the side with one quote for two; returns where its copy ends."""
    while start < end:
        side[side_at] = data[start]
        side_at += 1
        start += 2 if data[start] == _QUOTE else 1
    return side_at


@compile_loop
def _whole_number(data: Any, at: int, end: int) -> Any:  # pragma: no cover - compiled
    """(value, True) of a text that is a whole number of 64 bits: digits, with a sign or without; else (0, False)."""
    negative = at < end and data[at] == _MINUS
    if at < end and (data[at] == _MINUS or data[at] == _PLUS):
        at += 1
    if at == end:
        return np.int64(0), False
    value = _U(0)
    while at < end:
        digit = _U(data[at]) - _U(48)
        if digit > _U(9) or value > _TENTH or (value == _TENTH and digit > _U(7) + _U(negative)):
            return np.int64(0), False
        value = value * _U(10) + digit
        at += 1
    return (np.int64(_U(0) - value) if negative else np.int64(value)), True


@compile_loop
def split_records(  # noqa: PLR0915, PLR0917
    data: Any, begin: int, end: int, final: bool, delimiter: Any, num_fields: int, slots_F: Any, nulls_X2: Any,
    max_bytes: int, line: int, starts_R: Any, ends_R: Any, lines_R: Any, faults_R: Any, views_TR2: Any,
    numbers_NR: Any, states_CR: Any, side: Any,
) -> Any:  # fmt: skip  # pragma: no cover - compiled
    """Take records apart from data[begin:end] on (uint8, with PADDING); `final`: the file ends at `end`.

    slots_F: for each field its column, or -1: T columns of texts come first, then N of whole numbers. nulls_X2: views
    of the texts that mean missing. max_bytes: a quote that is not closed within them is out of place, and a line may
    not be longer. line: of data[begin]. For R records come back start, end (without its line break), line, fault (0,
    QUOTE_FAULT, or the number of fields), views of texts, numbers, and for all C columns whether there is a value;
    `side` takes texts with doubled quotes, without them.
    Returns (records, bytes taken up to, next line, why it stopped).
    """
    longest_null = _U(0)
    for null in range(len(nulls_X2)):
        longest_null = np.maximum(longest_null, nulls_X2[null, 0] & _U(0xFFFFFFFF))
    delimiters, num_texts = _U(delimiter) * _ONES, len(views_TR2)
    row, at, side_at, blank_until = 0, begin, 0, begin
    while at < end and row < len(starts_R):
        start, field, fault, newlines, side_before = at, 0, 0, 0, side_at
        if at >= blank_until and data[at] in (_NEWLINE, _RETURN):  # blank lines are no rows where the file ends
            blank_until = _end_of_blanks(data, at, min(end, at + max_bytes))
            if blank_until == end:
                return row, (end if final else at), line, (END if final else MORE)
        what, record_end = _DELIMITER, at
        while what == _DELIMITER:
            doubled = 0
            if at < end and data[at] == _QUOTE:
                text = at + 1
                stop = start + max_bytes
                text_end, record_end, what, at, doubled, breaks = _quoted(data, text, stop, end, final, delimiter)
                newlines += breaks
            else:
                text = at
                place = 8
                while place == 8 and at < end:
                    place = _place_of(_load64(data, at), delimiters)
                    at += place
                text_end = at = min(at, end)
                record_end = at
                if at == end and not final:
                    what = _CUT_OFF
                elif at < end and data[at] == _QUOTE:
                    what = _MISPLACED
                elif at < end and data[at] == delimiter:
                    at += 1
                else:
                    what = _RECORD_END
                    at = min(at + 1, end)
                    if text_end > text and data[text_end - 1] == _RETURN:
                        text_end -= 1
                        record_end -= 1
            if what <= _RECORD_END and field < num_fields and slots_F[field] >= 0:
                slot, size, state = slots_F[field], text_end - text, VALID
                number = slot - num_texts
                first = _load64(data, text)
                if doubled:
                    where, side_at = side_at, _undouble(data, text, text_end, side, side_at)
                    size = side_at - where
                    head, tail = _view(_load64(side, where), _load64(side, where + 8), size, 1, where)
                else:
                    head, tail = _view(first, _load64(data, text + 8), size, 0, text)
                if number < 0:
                    views_TR2[slot, row, 0] = head
                    views_TR2[slot, row, 1] = tail
                else:
                    value, fits = _eight_digits(first, min(max(size, 1), 8))
                    if not fits or size > 8 or size == 0:
                        value, fits = _whole_number(data, text, text_end)
                    numbers_NR[number, row] = value
                    state = VALID if fits else MISFIT
                if _U(size) <= longest_null:
                    for null in range(len(nulls_X2)):
                        if head == nulls_X2[null, 0] and tail == nulls_X2[null, 1]:
                            state = MISSING
                states_CR[slot, row] = state
            field += 1
        if what == _MISPLACED:  # it spoils its own line only
            fault, newlines = QUOTE_FAULT, 0
            record_end = _end_of_line(data, start, end)
            if record_end == end and not final:
                what = _CUT_OFF
            at = min(record_end + 1, end)
            if record_end > start and data[record_end - 1] == _RETURN:
                record_end -= 1
        elif field != num_fields:
            fault = field
        if what == _CUT_OFF or record_end - start > max_bytes:
            too_long = (end if what == _CUT_OFF else record_end) - start > max_bytes
            return row, start, line, (TOO_LONG if too_long else MORE)
        if fault:
            side_at = side_before
            states_CR[:, row] = MISSING
            views_TR2[:, row, :] = 0
            numbers_NR[:, row] = 0
        starts_R[row], ends_R[row], lines_R[row], faults_R[row] = start, record_end, line, fault
        line += 1 + newlines
        row += 1
    if at < end:
        return row, at, line, FULL
    return row, at, line, (END if final else MORE)
