"""Whole nights on real flights by the command line: trained, found done, gated against the first, told when wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, landing: Path) -> Path:
    """A root of this module's own whose landing folder is the shared one."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "landing").mkdir()
    (folder / "landing/flights").symlink_to(landing)
    return folder


def test_a_night_ends_with_a_champion_and_is_found_done_when_run_again(
    paddlewheel: Run, run_night: Run, root: Path
) -> None:
    first = run_night(root, "2013-11-01")
    for words in ("AUC", "log loss", "champion", "card.html"):
        assert words in first.out, first.out
    models = paddlewheel("models", "list", "--root", root, "--json").tree
    assert models == [{"name": "flights_delay", "champion": 1, "versions": 1}]
    commits = sorted(str(path) for path in root.glob("runs/*/checkpoints/*/COMMIT.json"))
    files = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}

    again = run_night(root, "2013-11-01")
    assert again.out == first.out
    for kind in ("plan", "ingest", "validated", "shards", "features", "packed", "result", "card"):
        assert f"{kind}: already done" in again.err, again.err
    assert sorted(str(path) for path in root.glob("runs/*/checkpoints/*/COMMIT.json")) == commits
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == files
    assert paddlewheel("models", "list", "--root", root, "--json").tree == models


def test_the_next_night_is_gated_against_the_first_on_the_same_rows(
    paddlewheel: Run, run_night: Run, root: Path
) -> None:
    run_night(root, "2013-11-01")
    second = run_night(root, "2013-11-02")
    runs = paddlewheel("runs", "list", "--root", root, "--json").tree
    assert [(run["partition"], run["state"]) for run in runs] == [("2013-11-01", "trained"), ("2013-11-02", "trained")]
    assert runs[1]["verdict"] in ("accepted", "refused")
    assert runs[1]["version"] == (2 if runs[1]["verdict"] == "accepted" else None)
    assert "champion, version 1" in second.out  # whom it was compared with
    verified = paddlewheel("runs", "verify", runs[1]["key"], "--root", root)
    assert "every file verified" in verified.out


def test_a_model_in_service_scores_a_file(paddlewheel: Run, run_night: Run, root: Path, tmp_path: Path) -> None:
    import polars as pl

    run_night(root, "2013-11-01")
    shard = sorted(root.glob("datasets/flights_delay.samples/*/*.parquet"))[0]
    rows = pl.read_parquet(shard).head(50)
    rows.write_parquet(tmp_path / "rows.parquet")
    paddlewheel(
        "predict", "flights_delay@1", tmp_path / "rows.parquet", "--output", tmp_path / "out.csv", "--root", root
    )
    scored = pl.read_csv(tmp_path / "out.csv")
    assert scored.height == 50
    assert scored["probability"].is_between(0, 1).all()
    wrong = paddlewheel(
        "predict", "flights_delay@9", tmp_path / "rows.parquet", "--output", tmp_path / "x", "--root", root, check=False
    )
    assert (wrong.code, (tmp_path / "x").exists()) == (2, False)
    assert "has no version 9" in wrong.err


def test_the_steps_one_by_one_make_the_same_run(
    paddlewheel: Run, run_night: Run, small_recipe: tuple[str, ...], root: Path
) -> None:
    whole = run_night(root, "2013-11-01", "--json").tree
    at = ("--root", root)
    uri = paddlewheel("plan", "--partition", "2013-11-01", *at, *small_recipe).out.strip()
    assert uri == whole["plan"]
    for step in ("ingest", "validate", "shard", "fit-features"):
        uri = paddlewheel(step, uri, *at).out.strip()
    packed = paddlewheel("preprocess", uri, *at).out.split()
    uri = paddlewheel("train", *packed, *at).out.strip()
    assert uri == whole["run"]
    for step in ("evaluate", "gate", "promote"):
        uri = paddlewheel(step, uri, *at).out.strip()
    assert uri == whole["promotion"]
    assert paddlewheel("report", uri, *at).out.strip() == whole["card"]


def test_a_damaged_shard_is_told_and_nothing_is_skipped_silently(run_night: Run, root: Path) -> None:
    run_night(root, "2013-11-01")
    whole = {path: path.read_bytes() for path in root.glob("datasets/flights_delay.rows/*/*.parquet")}
    assert whole
    try:
        for path, raw in whole.items():
            path.write_bytes(raw[:1000] + bytes([raw[1000] ^ 1]) + raw[1001:])
        told = run_night(root, "2013-11-01", check=False)
    finally:
        for path, raw in whole.items():
            path.write_bytes(raw)
    assert told.code == 5, told.err
    assert "flights_delay.rows/" in told.err
    assert "has the digest" in told.err
    assert "Traceback" not in told.err
    assert run_night(root, "2013-11-01").code == 0


def test_a_damaged_version_is_told_and_not_skipped(paddlewheel: Run, run_night: Run, root: Path) -> None:
    run_night(root, "2013-11-01")
    (served,) = root.glob("models/flights_delay/versions/1/network.pdiparams")
    raw = served.read_bytes()
    try:
        served.write_bytes(raw[:1000] + bytes([raw[1000] ^ 1]) + raw[1001:])
        told = run_night(root, "2013-11-01", check=False)
        runs = paddlewheel("runs", "list", "--root", root, "--json").tree
        key = next(run["key"] for run in runs if run["version"] == 1)
        verified = paddlewheel("runs", "verify", key, "--root", root, check=False)
    finally:
        served.write_bytes(raw)
    assert told.code == 5, told.err
    assert "models/flights_delay/versions/1/network.pdiparams has the digest" in told.err
    assert "Copy them back from" in told.err
    assert verified.code == 5
    assert "versions/1/network.pdiparams" in verified.out
    assert run_night(root, "2013-11-01").code == 0


@pytest.mark.parametrize(
    ("partition", "code", "words"),
    [
        ("2014-07-01", 3, "2013-12-31"),
        ("2013-02-30", 2, "2013-02-30"),
        ("tomorrow", 2, "tomorrow"),
    ],
)
def test_a_partition_outside_the_data_is_told(
    run_night: Run, root: Path, partition: str, code: int, words: str
) -> None:
    told = run_night(root, partition, check=False)
    assert told.code == code, told.err
    assert words in told.err
    assert "Traceback" not in told.err


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which only root can")
def test_a_full_disk_is_told_and_the_same_command_goes_on_when_there_is_space(
    run_night: Run, landing: Path, tmp_path: Path
) -> None:
    import subprocess

    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(small)], check=True)
    try:
        (small / "landing").mkdir()
        (small / "landing/flights").symlink_to(landing)
        told = run_night(small, "2013-11-01", check=False)
        assert told.code == 5, told.err
        assert "No space left on device" in told.err
        subprocess.run(["mount", "-o", "remount,size=200m", str(small)], check=True)
        assert "champion" in run_night(small, "2013-11-01").out
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_commands_of_later_versions_say_so(paddlewheel: Run) -> None:
    for command in (("cluster", "check", "x"), ("runs", "rebuild")):
        told = paddlewheel(*command, check=False)
        assert told.code == 2
        assert "not in this version" in told.err
