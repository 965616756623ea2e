"""One landing folder of real flights for all tests of whole nights, and a way to run the command line as users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.data.demos.flights import write_flights

PROJECT = Path(__file__).parents[2]
RECIPE = PROJECT / "recipes/flights_delay.yaml"
# A night of a few seconds: the rows of ten days, one pass.
SMALL = (
    "data.window.train_days=8",
    "data.window.holdout_days=2",
    "training.epochs=2",
    "training.checkpoint_every_steps=5",
    "evaluation.resamples=200",
    "gate.min_auc=0",
    "gate.max_loss=0.2",
    "gate.max_slice_loss=null",
)
# `import airflow` fails in a process that has this on its path before anything else.
NO_AIRFLOW = "raise ImportError('the command line must not need Airflow')\n"


@dataclass(frozen=True, kw_only=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def tree(self) -> Any:
        """What --json printed."""
        return json.loads(self.out)


@pytest.fixture(scope="session")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's landing folder, written once."""
    folder = tmp_path_factory.mktemp("landing")
    write_flights(folder)
    return folder


@pytest.fixture(scope="session")
def no_airflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `airflow` cannot be imported."""
    folder = tmp_path_factory.mktemp("no_airflow")
    (folder / "airflow").mkdir()
    (folder / "airflow/__init__.py").write_text(NO_AIRFLOW)
    return folder


@pytest.fixture
def paddlewheel(no_airflow: Path) -> Callable[..., Done]:
    """Run `paddlewheel ARGUMENTS` in a process in which importing airflow fails."""

    def run(*arguments: str | Path, check: bool = True) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "paddlewheel.cli", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(no_airflow)},
            capture_output=True,
            check=False,
            text=True,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return Done(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


@pytest.fixture
def small_recipe() -> tuple[str, ...]:
    """Arguments that name the flights recipe, made small enough for a test; more `path=value` may follow."""
    return (str(RECIPE), "--set", *SMALL)


@pytest.fixture
def run_night(paddlewheel: Callable[..., Done], small_recipe: tuple[str, ...]) -> Callable[..., Done]:
    """A whole night of the small recipe: run_night(root, partition, *more arguments)."""

    def run(root: Path, partition: str, *more: str, check: bool = True) -> Done:
        return paddlewheel(
            "run", "--partition", partition, "--root", root, *more, *small_recipe, check=check
        )  # fmt: skip

    return run
