"""Features that give several id columns: multi-valued categories, n-grams of words and characters, bytes."""

from __future__ import annotations

import polars as pl
import pytest
import xxhash

from paddlewheel.data.encoding.fitted import FittedFeatures
from paddlewheel.data.features import fit
from paddlewheel.recipe_data import Feature

BUCKETS = 1000


def fitted(texts: list[str | None], kind: str, **parameters: object) -> FittedFeatures:
    feature = Feature(name="f", kind=kind, columns=("t",), **parameters)  # type: ignore[arg-type]
    return fit(pl.DataFrame({"t": texts}, schema={"t": pl.String}), [feature])


def rows(features: FittedFeatures, texts: list[str | None]) -> list[list[int]]:
    return features.apply(pl.DataFrame({"t": texts}, schema={"t": pl.String})).ids_BF.tolist()


def hashed(*texts: str, length: int) -> list[int]:
    ids = [xxhash.xxh3_64_intdigest(text.encode()) % BUCKETS + 1 for text in texts]
    return ids + [0] * (length - len(ids))


def test_values_share_one_vocabulary_when_multi() -> None:
    features = fitted(["b|a", "a", "a|b|c", None, "rare|b"], "multi", length=3, separator="|", min_count=2)
    assert (features.id_names, features.id_sizes) == (("f_1", "f_2", "f_3"), (3, 3, 3))  # a 3 times, b 3, c and rare 1
    assert rows(features, ["b|a", "new|a", "a|a||b|b", "", None, "|"]) == [
        [2, 1, 0], [0, 1, 0], [1, 1, 2], [0, 0, 0], [0, 0, 0], [0, 0, 0],
    ]  # fmt: skip


def test_values_beyond_the_length_are_not_counted_when_multi() -> None:
    features = fitted(["a b c c c c", "b"], "multi", length=2, separator=" ")
    assert features.features[0].vocabulary == ("b", "a")


def test_separator_is_taken_literally_when_multi() -> None:
    features = fitted(["a.*b", "ab"], "multi", length=2, separator=".*")
    assert features.features[0].vocabulary == ("a", "ab", "b")


def test_ngrams_of_words_begin_at_each_word_in_turn() -> None:
    features = fitted(["x"], "words", length=6, buckets=BUCKETS, ngram=2)
    assert features.id_sizes == (BUCKETS + 1,) * 6
    told = rows(features, ["the quick  brown\tfox", " one ", "", None, "Straße ÖL\x00x", "a b c d e f g h"])
    assert told == [
        hashed("the", "the quick", "quick", "quick brown", "brown", "brown fox", length=6),
        hashed("one", length=6),
        [0] * 6,
        [0] * 6,
        hashed("Straße", "Straße ÖL\x00x", "ÖL\x00x", length=6),
        hashed("a", "a b", "b", "b c", "c", "c d", length=6),
    ]


def test_word_longer_than_any_block_of_the_hash_is_hashed_whole() -> None:
    word = "ä" * 2000
    features = fitted(["x"], "words", length=2, buckets=BUCKETS)
    assert rows(features, [f"{word} b"]) == [hashed(word, "b", length=2)]


def test_ngrams_of_characters_are_of_three_and_more() -> None:
    features = fitted(["x"], "characters", length=5, buckets=BUCKETS, ngram=4)
    assert rows(features, ["köln", "日本語です", "ab", "é", "", None]) == [
        hashed("köl", "köln", "öln", length=5),
        hashed("日本語", "日本語で", "本語で", "本語です", "語です", length=5),
        hashed("ab", length=5),
        hashed("é", length=5),
        [0] * 5,
        [0] * 5,
    ]
    three = fitted(["x"], "characters", length=5, buckets=BUCKETS)
    assert rows(three, ["köln"]) == [hashed("köl", "öln", length=5)]


def test_text_is_taken_as_it_is_and_not_normalised() -> None:
    composed, decomposed = "é", "e\u0301"
    features = fitted(["x"], "words", length=1, buckets=2**31 - 1)
    first, second = rows(features, [composed, decomposed])
    assert first != second


def test_bytes_are_ids_and_nothing_follows_the_end() -> None:
    features = fitted(["x"], "bytes", length=4)
    assert (features.id_names[3], features.id_sizes) == ("f_4", (257,) * 4)
    assert rows(features, ["A\x00", "öß!", "", None, "\x7f"]) == [
        [66, 1, 0, 0], [0xC3 + 1, 0xB6 + 1, 0xC3 + 1, 0x9F + 1], [0] * 4, [0] * 4, [128, 0, 0, 0],
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["words", "characters", "bytes", "multi"])
def test_row_is_the_same_alone_and_in_a_slice_of_a_batch(kind: str) -> None:
    parameters: dict[str, object] = {"length": 7}
    parameters |= {"buckets": BUCKETS, "ngram": 4} if kind in ("words", "characters") else {}
    parameters |= {"separator": " "} if kind == "multi" else {}
    texts: list[str | None] = ["a bc ö", None, "", "x" * 40, "日本 語", "a a a a a a a a a a"] * 5
    features = fitted(texts, kind, **parameters)
    whole = features.apply(pl.DataFrame({"t": texts})).ids_BF
    sliced = features.apply(pl.DataFrame({"t": texts}).slice(7, 11)).ids_BF
    assert sliced.tobytes() == whole[7:18].tobytes()
    for index in range(6):
        assert rows(features, [texts[index]]) == [whole[index].tolist()]
