"""Canonical text of values and its xxh3 hash: what stored ids rest on, so it may never change with a library's version.

A text is taken byte for byte as it is: no Unicode normalisation, no case folding. Rejected: polars' own hash(), which
is free to change between versions and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import xxhash

SEPARATOR = "\x1f"
NULL_TEXT = "\x00"
MARKS = r"[\x00\x10\x1f]"  # in one of several values each stands behind an escape, \x10: equal texts are equal values
ESCAPED = "\x10${0}"
FEW_TEXTS = 10_000  # below, the package's one call a text costs less than loading compiled code


def canonical_text(series: pl.Series) -> pl.Series:
    """One text a value, null where the value is: numbers as Python writes them, times as microseconds since 1970."""
    dtype = series.dtype
    if dtype == pl.String:
        return series
    if dtype == pl.Boolean:
        return series.replace_strict({True: "true", False: "false"}, default=None, return_dtype=pl.String)
    if dtype == pl.Date:
        return series.dt.strftime("%Y-%m-%d")
    if dtype == pl.Datetime:
        return series.dt.timestamp("us").cast(pl.String)
    if dtype.is_float():
        distinct = series.drop_nulls().unique().to_list()
        texts = {value: repr(value + 0.0) for value in distinct}  # + 0.0: one text for 0.0 and -0.0
        return series.replace_strict(texts, default=None, return_dtype=pl.String)
    return series.cast(pl.String)


def joined_text(columns: Sequence[pl.Series], *, null: str | None) -> pl.Series:
    """Texts of several columns as one, between separators. A null counts as `null`; with None the whole is null.

    Different values have different texts, whatever they hold: a separator inside a value is escaped.
    """
    texts = [canonical_text(column).alias(str(index)) for index, column in enumerate(columns)]
    if null is not None or len(texts) > 1:
        texts = [_escaped(text) for text in texts]
    if null is not None:
        texts = [text.fill_null(null) for text in texts]
    if len(texts) == 1:
        return texts[0]
    return pl.DataFrame(texts).select(pl.concat_str(pl.all(), separator=SEPARATOR, ignore_nulls=False)).to_series()


def hash_each(texts: pl.Series) -> np.ndarray:
    """xxh3-64 of each of N texts: uint64[N]. A null hashes as the empty text."""
    if len(texts) < FEW_TEXTS:
        digest = xxhash.xxh3_64_intdigest
        return np.fromiter((digest((text or "").encode()) for text in texts.to_list()), np.uint64, len(texts))
    from paddlewheel.data.xxh3 import hash_spans

    hashes: np.ndarray = hash_spans(*text_bytes(texts))
    return hashes


def text_bytes(texts: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 of N texts end to end and where each begins: uint8[…], int64[N + 1]. A null has no bytes."""
    array: Any = texts.fill_null("").to_arrow(compat_level=pl.CompatLevel.oldest())  # large strings, no views
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return (np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)), starts


def _escaped(texts: pl.Series) -> pl.Series:
    return texts.str.replace_all(MARKS, ESCAPED) if texts.str.contains(MARKS).any() else texts
