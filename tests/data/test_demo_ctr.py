"""Synthetic clicks: the same bytes however they are asked for, Criteo's shape, labels that follow the stated truth."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from paddlewheel.cli import main
from paddlewheel.data.demos.ctr import make_clicks, write_clicks
from paddlewheel.data.demos.landing import FILLING, fill_empty_landing
from paddlewheel.errors import DataError
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage import Store, open_store

RECIPES = Path(__file__).parents[2] / "recipes"


def text_of(folder: Path) -> bytes:
    """A day's files one after the other."""
    return b"".join(gzip.decompress(path.read_bytes()) for path in sorted(folder.glob("part-*.tsv.gz")))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.gz")}


def rank_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Mann and Whitney: the share of pairs in which the click has the higher score, ties half."""
    order = pl.Series(scores).rank("average").to_numpy()
    clicks = int(labels.sum())
    return float((order[labels == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(labels) - clicks)))


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ctr")
    summary = write_clicks(folder, days=3, rows_per_day=2_000, seed=5)
    assert (summary.files, summary.rows, summary.written, summary.unchanged) == (12, 6_000, 12, 0)
    assert (summary.first_day, summary.last_day) == ("2024-01-01", "2024-01-03")
    return folder


def test_rows_have_criteos_shape_when_written(landing: Path) -> None:
    day = landing / "clicks/2024-01-02"
    assert sorted(path.name for path in day.iterdir()) == [f"part-0000{part}.tsv.gz" for part in range(4)]
    rows = [line.split("\t") for line in text_of(day).decode().splitlines()]
    assert len(rows) == 2_000
    assert {len(row) for row in rows} == {1 + 13 + 26}
    assert {row[0] for row in rows} == {"0", "1"}
    assert all(re.fullmatch("|-?[0-9]+", value) for row in rows for value in row[1:14])
    assert all(re.fullmatch("|[0-9a-f]{8}", value) for row in rows for value in row[14:])
    assert sorted({row[2] for row in rows}, key=int)[:2] == ["-2", "-1"]
    # Criteo's 10 values of C17, 3 of C9 and 4 of C20
    assert [len({row[13 + number] for row in rows} - {""}) for number in (17, 9, 20)] == [10, 3, 4]
    missing = {number: sum(row[number] == "" for row in rows) / 2_000 for number in (12, 8, 13 + 22, 13 + 1)}
    assert missing == {12: pytest.approx(0.77, abs=0.04), 8: 0, 13 + 22: pytest.approx(0.76, abs=0.04), 13 + 1: 0}


def test_bytes_are_the_same_when_made_again_alone_or_in_a_longer_run(landing: Path, tmp_path: Path) -> None:
    again = write_clicks(landing, days=3, rows_per_day=2_000, seed=5)
    assert (again.written, again.unchanged) == (0, 12)
    write_clicks(tmp_path / "shorter", days=2, rows_per_day=2_000, seed=5)
    whole = files_of(landing)
    assert files_of(tmp_path / "shorter") == {name: raw for name, raw in whole.items() if "2024-01-03" not in name}
    other = write_clicks(tmp_path / "other", days=3, rows_per_day=2_000, seed=6)
    assert not set(files_of(tmp_path / "other").values()) & set(whole.values())
    assert other.rows == 6_000


def test_a_day_begins_with_the_same_rows_when_it_has_more(landing: Path, tmp_path: Path) -> None:
    write_clicks(tmp_path, days=1, rows_per_day=3_001, seed=5)
    assert text_of(tmp_path / "clicks/2024-01-01").startswith(text_of(landing / "clicks/2024-01-01"))
    write_clicks(tmp_path, days=1, rows_per_day=3, seed=5)
    assert len(list((tmp_path / "clicks/2024-01-01").iterdir())) == 3  # a row a file, and none of the larger day's


def test_labels_follow_the_stated_truth() -> None:
    clicks = make_clicks(3, 0, 60_000, seed=0)
    assert clicks.labels.mean() == pytest.approx(clicks.probabilities.mean(), abs=0.006)
    assert rank_auc(clicks.probabilities, clicks.labels) == pytest.approx(0.807, abs=0.006)
    for low in (0.1, 0.3, 0.6):  # calibrated wherever one looks
        near = (clicks.probabilities >= low) & (clicks.probabilities < low + 0.1)
        assert clicks.labels[near].mean() == pytest.approx(clicks.probabilities[near].mean(), abs=0.02)


def test_frequencies_have_a_heavy_tail_and_new_values_each_day() -> None:
    first, second = (make_clicks(day, 0, 60_000).values["C3"] for day in (0, 1))
    counted = np.sort(np.unique(first, return_counts=True)[1])[::-1]
    assert counted[0] > 4_000
    assert counted[100] < 100
    assert (counted == 1).sum() > 15_000
    assert len(set(second.tolist()) - set(first.tolist())) > 15_000
    assert set(range(64)) <= set(first.tolist()) & set(second.tolist())


def test_the_truth_turns_slowly() -> None:
    def agreement(day: int) -> float:
        """Correlation of the chance of a click by value of C14, between the first day and another."""
        means = []
        for number in (0, day):
            clicks = make_clicks(number, 0, 60_000)
            means.append([clicks.probabilities[clicks.values["C14"] == rank].mean() for rank in range(20)])
        return float(np.corrcoef(means)[0, 1])

    assert agreement(7) > 0.97
    assert agreement(90) < 0.7


def test_readme_says_that_the_rows_are_synthetic(landing: Path) -> None:
    told = (landing / "README.md").read_text()
    assert told.startswith("# Synthetic clicks\n")
    assert "no row comes from Criteo" in told
    assert re.search(r"best possible AUC on these rows is known: 0\.(7|8)\d\d\.", told)


def test_folder_with_somebody_elses_clicks_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "clicks/2024-01-01/part-00000.tsv.gz"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    with pytest.raises(DataError, match="did not write; name another folder"):
        write_clicks(tmp_path, days=1, rows_per_day=10)
    assert theirs.read_bytes() == b"theirs"


def test_command_tells_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "ctr", str(tmp_path), "--days", "2", "--rows-per-day", "50", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["files"], told["last_day"]) == (100, 8, "2024-01-02")
    assert main(["demo", "flights", str(tmp_path / "flights"), "--days", "2"]) == 2
    assert "--days" in capsys.readouterr().err
    assert main(["demo", "ctr", str(tmp_path / "none"), "--days", "0"]) == 2


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "root"))


def test_empty_landing_is_filled_once_when_the_recipe_names_a_demo(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def write(folder: Path) -> None:
        write_clicks(folder, days=1, rows_per_day=8)
        made.append(folder)
        if len(made) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("paddlewheel.data.demos.landing.DEMOS", {"ctr": write})
    recipe, said = load_recipe(RECIPES / "ctr.yaml"), list[str]()
    with pytest.raises(KeyboardInterrupt):
        fill_empty_landing(recipe, store=store, say=said.append)
    assert fill_empty_landing(recipe, store=store, say=said.append)
    assert not fill_empty_landing(recipe, store=store, say=said.append)
    landing = tmp_path / "root/landing/ctr"
    assert made == [landing, landing]
    assert not (landing / FILLING).exists()
    assert len(said) == 2


def test_landing_is_left_alone_when_it_holds_anything_or_no_demo_is_named(store: Store, tmp_path: Path) -> None:
    theirs = tmp_path / "root/landing/ctr/notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    assert not fill_empty_landing(load_recipe(RECIPES / "ctr.yaml"), store=store, say=print)
    assert not fill_empty_landing(load_recipe(RECIPES / "ctr.yaml", ["data.demo=null"]), store=store, say=print)
    assert [path.name for path in theirs.parent.iterdir()] == ["notes.txt"]
