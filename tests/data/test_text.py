"""Canonical texts and their hashes: the package's own on every length, one text a value."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlewheel.data.text import FEW_TEXTS, NULL_TEXT, canonical_text, hash_each, joined_text
from paddlewheel.data.xxh3 import hash_spans


def test_hash_is_that_of_the_package_on_every_length() -> None:
    # up to 16, 128, 240 and 1,024 bytes are four algorithms, and beyond them the blocks begin
    lengths = [*range(1200), *range(2040, 2060), 3071, 3072, 3073, 70_000]
    data = np.random.default_rng(5).integers(0, 256, sum(lengths), dtype=np.uint8)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    hashes = hash_spans(data, offsets)
    expected = [xxhash.xxh3_64_intdigest(data[start:end].tobytes()) for start, end in itertools.pairwise(offsets)]
    assert hashes.tolist() == expected


@pytest.mark.parametrize("count", [0, 1, FEW_TEXTS - 1, FEW_TEXTS, FEW_TEXTS + 7])
def test_hash_is_the_same_when_few_or_many(count: int) -> None:
    texts = pl.Series(
        [("", "ö", "EWR\x00", "x" * 300)[index % 4] + str(index % 977) for index in range(count)], dtype=pl.String
    )
    expected = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts.to_list()]
    assert hash_each(texts).tolist() == expected
    assert hash_each(texts.slice(3)).tolist() == expected[3:]


def test_null_hashes_as_the_empty_text_when_few_or_many() -> None:
    empty = 0x2D06800538D394C2  # xxh3_64 of "" as the reference implementation gives it
    for texts in (pl.Series([None, ""], dtype=pl.String), pl.Series([None, ""] * FEW_TEXTS, dtype=pl.String)):
        assert set(hash_each(texts).tolist()) == {empty}


def test_text_of_a_value_is_one() -> None:
    assert canonical_text(pl.Series([2**53 + 1, -(2**63), None])).to_list() == [
        "9007199254740993", "-9223372036854775808", None,
    ]  # fmt: skip
    assert canonical_text(pl.Series([0.0, -0.0, 1e22, 0.1, 5e-324])).to_list() == [
        "0.0",
        "0.0",
        "1e+22",
        "0.1",
        "5e-324",
    ]
    assert canonical_text(pl.Series([True, None])).to_list() == ["true", None]
    days = pl.Series(["1969-12-31", "0001-01-01"]).str.to_date()
    assert canonical_text(days).to_list() == ["1969-12-31", "0001-01-01"]


PART = st.none() | st.text(alphabet="a\x00\x10\x1f", max_size=3)


@settings(max_examples=200, deadline=None)
@given(first=st.lists(PART, min_size=2, max_size=2), second=st.lists(PART, min_size=2, max_size=2))
def test_different_values_have_different_texts_whatever_they_hold(
    first: list[str | None], second: list[str | None]
) -> None:
    columns = [pl.Series(list(pair), dtype=pl.String) for pair in zip(first, second, strict=True)]
    texts = joined_text(columns, null=NULL_TEXT).to_list()
    assert (texts[0] == texts[1]) == (first == second)
    alone = joined_text(columns[:1], null=NULL_TEXT).to_list()
    assert (alone[0] == alone[1]) == (first[0] == second[0])
