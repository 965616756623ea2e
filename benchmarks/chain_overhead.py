"""What the chain costs beyond its steps: `dags test` of nightly_retrain minus its steps' own time, against empty tasks.

A first night fills a temporary root; then nights that find everything done are timed, interleaved with a DAG of as
many empty tasks. The steps' own time is that of the same finished night by `paddlewheel run` in a fresh process, less
an interpreter with the libraries that Airflow has loaded anyway. CPU seconds of the whole process tree, since the
machine is shared.

Use: python benchmarks/chain_overhead.py [--runs 3]
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from paddlewheel.data.demos.flights import write_flights

PROJECT = Path(__file__).parents[1]
PARTITION = "2013-11-01"
NUM_MAPPED = 4
EMPTY_DAG = """
    import pendulum
    from airflow.sdk import dag, task

    @dag(schedule=None, start_date=pendulum.datetime(2013, 1, 1, tz="UTC"), catchup=False)
    def empty_chain():
        previous = None
        for index in range({num_tasks}):
            @task(task_id=f"step_{{index}}")
            def step(before=None):
                return "file:///nowhere/manifest.json"
            previous = step(previous)

    empty_chain()
"""


@contextlib.contextmanager
def cpu_seconds(into: list[float]):
    """Append the CPU seconds that this process and its ended children used inside the block."""

    def used() -> float:
        return sum(
            usage.ru_utime + usage.ru_stime
            for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        )

    begin = used()
    yield
    into.append(used() - begin)


def test_dag(dag: str, environment: dict[str, str], log: Path) -> None:
    """One `airflow dags test`; its output goes to `log`."""
    with log.open("w") as file:
        done = subprocess.run(
            [str(PROJECT / "bin/airflow"), "dags", "test", dag, PARTITION],
            env=environment, stdout=file, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{dag} failed:\n{log.read_text()[-3000:]}")


def run_alone(root: Path) -> None:
    """The same finished night without Airflow."""
    command = [sys.executable, "-m", "paddlewheel.cli", "run", str(PROJECT / "recipes/flights_delay.yaml")]
    subprocess.run([*command, "--partition", PARTITION, "--root", str(root), "--json"], capture_output=True, check=True)


def main() -> int:
    """Print the three medians, then the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_flights(base / "root/landing/flights")
        num_tasks = 11 + NUM_MAPPED  # plan … report and prepare_run, and preprocess mapped over its batches
        (base / "dags").mkdir()
        (base / "dags/empty.py").write_text(textwrap.dedent(EMPTY_DAG.format(num_tasks=num_tasks)))
        ours = {**os.environ, "AIRFLOW_HOME": str(base / "airflow"), "PADDLEWHEEL_ROOT": str(base / "root")}
        empty = {**ours, "AIRFLOW__CORE__DAGS_FOLDER": str(base / "dags")}
        subprocess.run([str(PROJECT / "bin/airflow"), "db", "migrate"], env=ours, capture_output=True, check=True)
        test_dag("nightly_retrain", ours, base / "first.log")
        test_dag("empty_chain", empty, base / "empty.log")
        own: list[float] = []
        bare: list[float] = []
        chain: list[float] = []
        peer: list[float] = []
        wall = time.monotonic()
        for _ in range(options.runs):
            with cpu_seconds(chain):
                test_dag("nightly_retrain", ours, base / "again.log")
            with cpu_seconds(peer):
                test_dag("empty_chain", empty, base / "empty.log")
            with cpu_seconds(own):
                run_alone(base / "root")
            with cpu_seconds(bare):
                subprocess.run([sys.executable, "-c", "import jinja2, pydantic, yaml"], check=True)
        wall = time.monotonic() - wall
    medians = {name: statistics.median(values) for name, values in (("chain", chain), ("peer", peer))}
    medians["own"] = statistics.median(own) - statistics.median(bare)
    print(
        f"a finished night by dags test {medians['chain']:.1f} s CPU, its steps alone {medians['own']:.1f} s, "
        f"{num_tasks} empty tasks {medians['peer']:.1f} s (medians of {options.runs}; {wall:.0f} s on the clock)"
    )
    ratio = (medians["chain"] - medians["own"]) / medians["peer"]
    print(f"chain_overhead ratio={ratio:.3f} goal=1.1 {'ok' if ratio <= 1.1 else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
