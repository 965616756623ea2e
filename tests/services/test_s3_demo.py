"""Demos into a landing folder on a real S3 server: filled once, whole after a death, left alone when equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddlewheel.cli import main
from paddlewheel.data.demos.ctr import write_clicks
from paddlewheel.data.demos.landing import FILLING, fill_empty_landing
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage import open_store

RECIPE = Path(__file__).resolve().parents[2] / "recipes/ctr.yaml"
SIZES = {"days": 2, "rows_per_day": 40}
pytestmark = pytest.mark.services


def write_small(folder: Path) -> Any:
    return write_clicks(folder, **SIZES)


def test_a_bucket_gets_the_files_that_a_folder_gets(s3_bucket: str, tmp_path: Path) -> None:
    root = f"s3://mine@{s3_bucket}/landing/ctr"
    arguments = ["demo", "ctr", root, "--days", "2", "--rows-per-day", "40", "--json"]
    assert main(arguments) == 0
    write_small(tmp_path / "here")
    store, local = open_store(root), open_store(str(tmp_path / "here"))
    keys = [stat.key for stat in local.list("")]
    assert len(keys) == 9
    assert [stat.key for stat in store.list("")] == keys
    assert [store.digest(key) for key in keys] == [local.digest(key) for key in keys]
    before = {stat.key: stat.modified_seconds for stat in store.list("")}
    assert main(arguments) == 0
    assert {stat.key: stat.modified_seconds for stat in store.list("")} == before


def test_an_empty_landing_in_a_bucket_is_filled_to_its_end(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddlewheel.data.demos.landing.DEMOS", {"ctr": write_small})
    recipe = load_recipe(RECIPE, {"data.landing": f"s3://mine@{s3_bucket}/clicks"})
    store, landing = open_store(f"s3://mine@{s3_bucket}/root"), open_store(recipe.data.landing)
    landing.publish(FILLING, b"")  # as a death in the middle leaves it
    assert fill_empty_landing(recipe, store=store, say=print)
    assert not fill_empty_landing(recipe, store=store, say=print)
    assert len(list(landing.list(""))) == 9
    assert landing.stat(FILLING) is None


def test_a_connection_that_is_not_there_is_told(s3_bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "ctr", f"s3://nowhere@{s3_bucket}/a"]) == 2
    assert "AIRFLOW_CONN_NOWHERE" in capsys.readouterr().err
