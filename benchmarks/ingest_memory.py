"""Peak memory of a process that ingests a file ten times the budget, as a share of the budget.

The file is one gzip TSV of many members; the peak is that of the whole process, its libraries included. Rows are
checked, refused, counted by the statistics and written as `paddlewheel ingest` does it.
Use: python benchmarks/ingest_memory.py [--budget-mib 512]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from isal import igzip

PROJECT = Path(__file__).parents[1]
MIB = 1 << 20
BLOCK_ROWS = 200_000
CHILD = """
import json, resource, sys
from pathlib import Path
from paddlewheel.data.tables.group import GroupFile, GroupJob, read_group
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source
columns = (
    Column(name="id", type="int64", minimum=0), Column(name="price", type="float64", nullable=True),
    Column(name="day", type="date"), Column(name="city", type="string"), Column(name="comment", type="string"),
)
source = Source(name="orders", path="x", format="tsv", header=False, columns=columns)
file = GroupFile(name="orders.tsv.gz", path=sys.argv[1])
result = read_group(GroupJob(source=dump(source), partition=None, files=(file,)), Path(sys.argv[2]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "rows": result.rows, "refused": result.refused, "unreadable": dict(result.unreadable)}))
"""


def write_file(path: Path, wanted_bytes: int) -> int:
    """A gzip file whose content has at least so many bytes: the same member again and again; returns how many."""
    draw = random.Random(1)
    words = [f"{draw.getrandbits(40):x}" for _ in range(2000)]
    rows = []
    for number in range(BLOCK_ROWS):
        price = "" if number % 7 == 0 else f"{draw.random() * 1000:.2f}"
        comment = " ".join(draw.choices(words, k=15))
        identity = "lost" if number % 50_000 == 0 else str(draw.getrandbits(60))
        rows.append(f"{identity}\t{price}\t2013-{number % 12 + 1:02}-11\tcity {number % 500}\t{comment}\n")
    block = "".join(rows).encode()
    member = igzip.compress(block, compresslevel=1)
    times = -(-wanted_bytes // len(block))
    with path.open("wb") as out:
        for _ in range(times):
            out.write(member)
    return times


def main() -> int:
    """Print the peak, then its ratio to the budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--budget-mib", type=int, default=512)
    options = parser.parse_args()
    budget = options.budget_mib * MIB
    with tempfile.TemporaryDirectory(prefix="ingest-memory-") as name:
        path, out = Path(name, "orders.tsv.gz"), Path(name, "out")
        out.mkdir()
        times = write_file(path, 10 * budget)
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(path), str(out)], capture_output=True, text=True, check=True,
            env={"PYTHONPATH": str(PROJECT / "tasks"), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    if (found["rows"], found["refused"]) != (times * (BLOCK_ROWS - 4), times * 4):
        print(f"wrong counts: {found}")
        return 1
    print(f"{10 * options.budget_mib} MiB of text, {found['rows']} rows: peak {found['peak'] / MIB:.0f} MiB")
    ratio = found["peak"] / budget
    print(f"ingest_memory ratio={ratio:.3f} goal=1.0 {'ok' if ratio <= 1 else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
