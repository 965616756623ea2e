"""Canonical text of values and its xxh3 hash: what stored ids rest on, so it may never change with a library's version.

Rejected: polars' own hash(), which is free to change between versions and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import xxhash

SEPARATOR = "\x1f"
NULL_TEXT = "\x00"


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
    """Texts of several columns as one, between separators. A null counts as `null`; with None the whole is null."""
    texts = [canonical_text(column).alias(str(index)) for index, column in enumerate(columns)]
    if null is not None:
        texts = [text.fill_null(null) for text in texts]
    if len(texts) == 1:
        return texts[0]
    return pl.DataFrame(texts).select(pl.concat_str(pl.all(), separator=SEPARATOR, ignore_nulls=False)).to_series()


def hash_texts(texts: pl.Series) -> pl.Series:
    """xxh3-64 of each text as uint64, null where the text is. Distinct texts are hashed once."""
    distinct = texts.drop_nulls().unique()
    hashes = pl.Series(hash_each(distinct), dtype=pl.UInt64)
    return texts.replace_strict(distinct, hashes, default=None, return_dtype=pl.UInt64)


def hash_each(texts: pl.Series) -> np.ndarray:
    """xxh3-64 of each of N texts (none null): uint64[N]."""
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(text.encode()) for text in texts.to_list()), dtype=np.uint64, count=len(texts))
