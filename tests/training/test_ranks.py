"""Rank processes and their folder on this host: nothing is left behind by what failed or was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Resources
from paddlewheel.training.ranks import rank_environment, start_ranks
from paddlewheel.training.workfolder import remove_leftovers

HOLD = """
import time
from paddlewheel.training.workfolder import work_folder
with work_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def hold(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a work folder in `parent`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], env={**os.environ, "TMPDIR": str(parent)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_folder_of_a_killed_agent_is_removed_and_a_living_ones_stays(tmp_path: Path) -> None:
    killed, leftover = hold(tmp_path)
    living, held = hold(tmp_path)
    try:
        (tmp_path / "paddlewheel-notes").mkdir()  # no lock in it: not an agent's
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert remove_leftovers(tmp_path) == []  # too young to judge
        for folder in (leftover, held):
            long_ago = time.time() - 3600
            os.utime(folder / "agent.lock", (long_ago, long_ago))
        assert remove_leftovers(tmp_path) == [leftover]
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([held.name, "paddlewheel-notes"])
    finally:
        living.kill()
        living.wait()


def test_ranks_already_started_are_ended_when_another_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").mkdir()
    run_uri = f"file://{tmp_path}/runs/none/manifest.json"
    with pytest.raises(IsADirectoryError):
        start_ranks(
            run_uri=run_uri,
            root=f"file://{tmp_path}",
            attempt=1,
            folder=tmp_path,
            resources=Resources(ranks_per_node=2),
            environment=os.environ,
        )
    assert (tmp_path / "rank-0.log").exists()
    assert not [one for one in psutil.process_iter(["cmdline"]) if run_uri in (one.info["cmdline"] or [])]


def test_a_rank_sees_what_is_allowed() -> None:
    agents = {"PATH": "/bin", "XDG_CACHE_HOME": "/cache", "HTTPS_PROXY": "http://proxy:3128"}
    others = {"AIRFLOW_CONN_OTHER": "aws://key:secret@/", "PASSWORD": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    seen = rank_environment(0, ["127.0.0.1:1"], Resources(), agents | others)
    assert agents.items() <= seen.items()
    assert not set(others) & set(seen)


def test_a_root_whose_connection_nobody_knows_starts_no_rank(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="set AIRFLOW_CONN_NOWHERE"):
        start_ranks(
            run_uri="s3://nowhere@bucket/runs/none/manifest.json",
            root="s3://nowhere@bucket",
            attempt=1,
            folder=tmp_path,
            resources=Resources(),
            environment={},
        )
    assert list(tmp_path.iterdir()) == []


def test_ranks_see_how_aws_is_reached_when_the_root_is_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def refuse(*_: Any, env: dict[str, str], **__: Any) -> None:
        seen.append(env)
        raise OSError("enough seen")

    monkeypatch.setattr("paddlewheel.training.ranks.subprocess.Popen", refuse)
    for root in ("s3://bucket/root", f"file://{tmp_path}"):
        with pytest.raises(OSError, match="enough seen"):
            start_ranks(
                run_uri=f"{root}/runs/none/manifest.json",
                root=root,
                attempt=1,
                folder=tmp_path,
                resources=Resources(),
                environment={"AWS_PROFILE": "night", "AWS_SECRET_ACCESS_KEY": "y"},
            )
    assert [{name for name in env if name.startswith("AWS_")} for env in seen] == [
        {"AWS_PROFILE", "AWS_SECRET_ACCESS_KEY"},
        set(),
    ]
