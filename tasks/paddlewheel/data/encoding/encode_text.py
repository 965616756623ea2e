"""Ids of features that give several id columns of one text column: multi-valued categories, n-grams, bytes.

Axes: B rows, L id columns, filled from the first; 0 where there is nothing more.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from paddlewheel.data.text import text_bytes

BYTE_IDS = 257


def split_values(texts: pl.Series, separator: str, length: int) -> tuple[np.ndarray, np.ndarray, pl.Series]:
    """The first `length` values of each text: (rows int64[V], places int64[V], values). Empty values are skipped."""
    lists = pl.DataFrame({"row": np.arange(len(texts)), "value": texts.str.split(separator)})
    values = lists.explode("value").filter(pl.col("value") != "")
    rows = values["row"].to_numpy()
    places = np.arange(len(rows)) - np.searchsorted(rows, rows, side="left")
    used = places < length
    return rows[used], places[used], values["value"].filter(used)


def multi_ids(texts: pl.Series, separator: str, length: int, vocabulary: pl.Enum) -> np.ndarray:
    """int32[B, L]: one plus the place in the vocabulary of each value in turn; 0 in the place of one it has not."""
    ids_BL = np.zeros((len(texts), length), np.int32)
    rows, places, values = split_values(texts, separator, length)
    ids_BL[rows, places] = vocabulary_ids(values, vocabulary)
    return ids_BL


def vocabulary_ids(texts: pl.Series, vocabulary: pl.Enum) -> np.ndarray:
    """int32[B]: one plus the place of each text in the vocabulary; 0 where it has not or the text is null."""
    places = texts.cast(vocabulary, strict=False).to_physical().cast(pl.Int32)
    ids: np.ndarray = (places + 1).fill_null(0).to_numpy()
    return ids


def ngram_ids(texts: pl.Series, kind: str, length: int, longest: int, buckets: int) -> np.ndarray:
    """int32[B, L]: one plus the hash modulo `buckets` of the first n-grams of words or of characters."""
    from paddlewheel.data.encoding.ngrams import fill_characters, fill_words

    ids_BL = np.zeros((len(texts), length), np.int32)
    fill = fill_words if kind == "words" else fill_characters
    fill(*text_bytes(texts), buckets, longest, ids_BL)
    return ids_BL


def byte_ids(texts: pl.Series, length: int) -> np.ndarray:
    """int32[B, L]: one plus each of the first bytes of the text in UTF-8."""
    from paddlewheel.data.encoding.ngrams import fill_bytes

    ids_BL = np.zeros((len(texts), length), np.int32)
    fill_bytes(*text_bytes(texts), ids_BL)
    return ids_BL
