"""Who goes where: numbers of shards for samples."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from paddlewheel.data.samples.sharding import FILE, DayCounts, balance, build_place, deal
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.recipe_data import Sharding

DAY = "2013-11-01"


def samples(ids: list[int], labels: list[float] | None = None, files: list[int] | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": ids,
            "label": labels or [0.0] * len(ids),
            "miles": [1.5] * len(ids),
            FILE: files or [0] * len(ids),
        },
        schema={"sample_id": pl.UInt64, "label": pl.Float32, "miles": pl.Float64, FILE: pl.UInt32},
    )


def place(by: str, num_shards: int, *frames: pl.DataFrame, files: tuple[str, ...] = ("a.csv", "b.csv")) -> list[int]:
    """Shard numbers of all frames, one after the other."""
    whole = pl.concat(frames)
    counted = Counter(whole[FILE].to_list())
    counts = DayCounts(
        day=DAY, labels=Counter(whole["label"].to_list()), files=files, by_file=[counted[n] for n in range(len(files))]
    )
    numbers = build_place(Sharding(by=by, shards_per_day=num_shards), counts)
    return np.concatenate([numbers(frame) for frame in frames]).tolist()


def test_a_shard_is_the_id_modulo_their_number_when_by_content() -> None:
    assert place("content", 3, samples([0, 1, 5, 2**63, 2**64 - 1])) == [0, 1, 2, 2, 0]  # 2**63 = 3 * x + 2


def test_each_label_is_dealt_in_turn_when_by_label_however_the_samples_are_cut() -> None:
    labels = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    whole = samples(list(range(7)), labels)
    # the four zeros go to 0, 1, 2, 0; the ones go on with 1, 2, 0
    assert place("label", 3, whole) == [1, 0, 1, 2, 2, 0, 0]
    assert place("label", 3, whole[:2], whole[2:3], whole[3:]) == [1, 0, 1, 2, 2, 0, 0]


@pytest.mark.parametrize("num_shards", [1, 2, 7, 64])
def test_every_shard_has_the_same_share_of_each_label_when_by_label(num_shards: int) -> None:
    draw = random.Random(num_shards)
    labels = [float(draw.random() < 0.17) for _ in range(1_003)]
    numbers = place("label", num_shards, samples(list(range(1_003)), labels))
    for held in (
        Counter(numbers),
        *(Counter(n for n, one in zip(numbers, labels, strict=True) if one == label) for label in (0, 1)),
    ):
        sizes = [held[number] for number in range(num_shards)]
        assert max(sizes) - min(sizes) <= 1


def test_files_that_hold_samples_are_dealt_in_turn_when_by_path() -> None:
    assert deal(np.array([3, 0, 2, 1, 0, 9]), 2).tolist() == [0, 0, 1, 0, 0, 1]
    files = tuple("abcdef")
    assert place("path", 2, samples([1, 2, 3, 4], files=[0, 2, 3, 2]), files=files) == [0, 1, 0, 1]


def test_the_largest_file_comes_first_when_by_size() -> None:
    # 7 to 0, 5 to 1, 4 to 1 (5 < 7), 3 to 0 (7 < 9), 1 to 1 (9 < 10)
    assert balance(np.array([3, 7, 1, 5, 4]), 2).tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("num_shards", [2, 8, 64])
def test_shards_are_within_a_twentieth_of_each_other_when_sizes_allow(num_shards: int) -> None:
    draw = np.random.default_rng(num_shards)
    sizes = draw.pareto(1.5, 40 * num_shards) * 1_000
    sizes = np.minimum(sizes, sizes.sum() / num_shards / 4).astype(np.int64) + 1
    loads = np.bincount(balance(sizes, num_shards), weights=sizes, minlength=num_shards)
    assert loads.sum() == sizes.sum()
    assert loads.max() / loads.min() <= 1.05


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module of the user's own with this function body; gives its name for the recipe."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(body: str) -> str:
        (tmp_path / "own_shards.py").write_text(f"import polars as pl\ndef pick(frame, num_shards):\n    {body}\n")
        return "own_shards:pick"

    yield write
    sys.modules.pop("own_shards", None)


def test_the_users_function_decides_when_it_is_named(own: Callable[[str], str]) -> None:
    name = own("return (frame['file'] == 'b.csv').cast(pl.Int64) + (frame['sample_id'] % 2).cast(pl.Int64)")
    assert place(name, 3, samples([1, 2, 3, 4], files=[0, 0, 1, 1])) == [1, 0, 2, 1]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return [0]", r"3 samples need as many numbers; it returned the shape \(1,\)"),
        ("return 0", r"3 samples need as many numbers; it returned the shape \(\)"),
        ("return [0, 3, -1]", r"it returned 3 for the sample 0xb of b.csv; shards are 0 to 1 .*; 2 of 3 numbers"),
        ("return [0.0, 1.0, 0.0]", r"it returned float64; return a whole number for each sample, none missing"),
        ("return pl.Series([0, None, 1])", r"it returned float64; return a whole number"),
        ("return frame['nothing']", r"it raised ColumnNotFoundError: .*nothing"),
        ("raise SystemExit(3)", r"it raised SystemExit: 3"),
        ("return [0, 0, 1]", r"asked again, in another order, it puts the sample 0xa of a.csv into another shard"),
    ],
)
def test_data_error_names_the_function_the_day_and_the_fault_when_it_is_wrong(
    own: Callable[[str], str], body: str, told: str
) -> None:
    name = own(body)
    with pytest.raises(DataError, match=rf"data.sharding.by: own_shards:pick on samples of 2013-11-01: {told}"):
        place(name, 2, samples([10, 11, 12], files=[0, 1, 1]))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such_module:pick", "cannot be imported: No module named"),
        ("math:no_such_name", "cannot be imported: .*no attribute"),
        ("math:pi", "is a float, not a function"),
    ],
)
def test_recipe_error_when_the_function_cannot_be_called(name: str, told: str) -> None:
    with pytest.raises(RecipeError, match=rf"data.sharding.by: '{name}' {told}"):
        place(name, 2, samples([1]))


def test_recipe_error_when_the_rows_have_a_column_of_the_name_that_the_function_is_given(
    own: Callable[[str], str],
) -> None:
    name = own("return [0]")
    frame: Any = samples([1]).with_columns(file=pl.lit("x"))
    with pytest.raises(RecipeError, match="the rows have a column `file`"):
        place(name, 2, frame)
