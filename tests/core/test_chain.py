"""The chain without Airflow: what is told of a training that ended without a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlewheel.chain import _why
from paddlewheel.manifest import Manifest, publish_manifest
from paddlewheel.storage.local import LocalStore


@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        (10, "mend that, then run the same command again"),
        (16, "run the same command again: it goes on from the last commit"),
        (17, "wait until that one is done, then run the same command again"),
    ],
)
def test_the_way_out_fits_the_agents_code(tmp_path: Path, code: int, way_out: str) -> None:
    store = LocalStore(tmp_path)
    told = _why(store, publish_manifest(store, Manifest(kind="run", name="m", key="runs/K")), code)
    assert f"ended with the agent's code {code}: no verdict was left" in told
    assert f"logs/; {way_out}" in told
