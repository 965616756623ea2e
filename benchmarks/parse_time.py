"""Seconds that parsing `dags/` adds to importing Airflow itself: the median of interleaved runs in fresh processes.

Use: python benchmarks/parse_time.py [--runs 9]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]
GOAL_SECONDS = 0.05
# CPU seconds of this process: a shared machine's clock on the wall would measure its neighbours.
PROBE = """
import gc, sys, time
sys.path[:0] = [{plugins!r}, {dags!r}]
import airflow.sdk, airflow.configuration, yaml
import airflow.dag_processing.dagbag, airflow.sdk.definitions.decorators
gc.collect()
gc.freeze()  # what a collection costs beyond is walking Airflow's own objects
begin = time.process_time()
if {parse}:
    import runpy
    for path in {files!r}:
        runpy.run_path(path)
print(time.process_time() - begin)
heavy = sorted(set(sys.modules) & {{"paddle", "pandas", "polars", "pyarrow"}})
assert not heavy, heavy
"""


def seconds(*, parse: bool, home: str) -> float:
    """CPU seconds of one fresh process, after Airflow itself is imported."""
    files = sorted(str(path) for path in (PROJECT / "dags").glob("*.py") if not path.name.startswith("chain"))
    code = PROBE.format(plugins=str(PROJECT / "plugins"), dags=str(PROJECT / "dags"), files=files, parse=parse)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.strip().splitlines()[-1])


def main() -> int:
    """Print both medians, then the ratio of what is added to what is allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        seconds(parse=True, home=home)
        pairs = [(seconds(parse=False, home=home), seconds(parse=True, home=home)) for _ in range(options.runs)]
    added = statistics.median(parsed - bare for bare, parsed in pairs)
    print(f"parsing dags/ adds {added:.4f} s of CPU to importing Airflow (median of {options.runs} pairs)")
    print(f"parse_time ratio={added / GOAL_SECONDS:.3f} goal=1.0 {'ok' if added < GOAL_SECONDS else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
