"""Rows per CPU-second of ingesting a TSV.gz, against raw polars: parsed and written to Parquet, and nothing else.

A row is a click of Criteo's shape: a label, 13 whole numbers with nulls, 26 hexadecimal categories. Ours checks every
row, refuses the broken ones with their reasons, counts statistics of every column and writes Parquet whose bytes do not
depend on how it was read; polars (the better of scan_csv to sink_parquet and read_csv to write_parquet, types given,
same compression) gets the same rows without the broken ones, which it could not pass over. CPU seconds of fresh
processes after their imports and a first small file, so that neither pays for loading its code.
Use: python benchmarks/ingest.py [--rows 600000] [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from isal import igzip

PROJECT = Path(__file__).parents[1]
GOAL = 0.95
BROKEN_EVERY = 10_000
BLOCK_ROWS = 50_000
CARDINALITIES = (
    1460, 583, 1_000_000, 500_000, 305, 24, 12517, 633, 3, 93145, 5683, 1_000_000, 3194,
    27, 14992, 1_000_000, 10, 5652, 2173, 4, 1_000_000, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
MISSING = (0.45, 0, 0.21, 0.21, 0.03, 0.22, 0.04, 0, 0.04, 0.45, 0.04, 0.76, 0.21)
OURS = """
from paddlewheel.data.tables.group import GroupFile, GroupJob, read_group
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source
columns = (
    Column(name="label", type="int64", minimum=0, maximum=1),
    *(Column(name=f"i{n}", type="int64", nullable=True, minimum=0) for n in range(13)),
    *(Column(name=f"c{n}", type="string", nullable=True) for n in range(26)),
)
source = dump(Source(name="clicks", path="x", format="tsv", header=False, columns=columns))
def work(path, folder):
    job = GroupJob(source=source, partition=None, files=(GroupFile(name=path, path=path),))
    result = read_group(job, Path(folder))
    return result.rows, result.refused
"""
POLARS = """
import polars as pl
schema = {"label": pl.Int64} | {f"i{n}": pl.Int64 for n in range(13)} | {f"c{n}": pl.String for n in range(26)}
options = {"has_header": False, "separator": "\\t", "schema": schema, "quote_char": None}
"""
SCAN = """
def work(path, folder):
    out = Path(folder, "rows.parquet")
    pl.scan_csv(path, **options).sink_parquet(out, compression="zstd", compression_level=1, statistics=False)
    return pl.scan_parquet(out).select(pl.len()).collect().item(), 0
"""
READ = """
def work(path, folder):
    frame = pl.read_csv(path, **options)
    frame.write_parquet(Path(folder, "rows.parquet"), compression="zstd", compression_level=1, statistics=False)
    return len(frame), 0
"""
MAIN = """
import json, sys, tempfile, time
from pathlib import Path
{work}
for path in sys.argv[1:]:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        rows, refused = work(path, folder)
        seconds = time.process_time() - begin
print(json.dumps(dict(rows=rows, refused=refused, seconds=seconds)))
"""
KINDS = {"ours": OURS, "polars scan_csv": POLARS + SCAN, "polars read_csv": POLARS + READ}


def write_clicks(path: Path, num_rows: int, *, broken: bool) -> int:
    """A TSV.gz of synthetic clicks, the same for the same size; with broken rows among them or without; how many."""
    draw = np.random.default_rng(7)
    num_broken = 0
    with igzip.open(path, "wb", compresslevel=2) as out:
        for begin in range(0, num_rows, BLOCK_ROWS):
            size = min(BLOCK_ROWS, num_rows - begin)
            columns = [(draw.random(size) < 0.25).astype(np.int64).astype(str).tolist()]
            for number, missing in enumerate(MISSING):
                values = np.exp(draw.normal(1 + number % 5, 1.5, size)).astype(np.int64).astype(str)
                values[draw.random(size) < missing] = ""
                columns.append(values.tolist())
            for number, cardinality in enumerate(CARDINALITIES):
                codes = np.minimum(draw.zipf(1.2, size), 10**9) % cardinality
                hashes = ((codes.astype(np.uint64) + 1) * np.uint64(2_654_435_761 + 977 * number)) % np.uint64(2**32)
                texts = np.array([f"{value:08x}" for value in hashes.tolist()])
                if number % 5 == 2:
                    texts[draw.random(size) < 0.05] = ""
                columns.append(texts.tolist())
            rows = ["\t".join(row) for row in zip(*columns, strict=True)]
            bad = range(BROKEN_EVERY // 2 - begin % BROKEN_EVERY, size, BROKEN_EVERY)
            for place in bad:
                rows[place] = ("x" + rows[place]) if place // BROKEN_EVERY % 2 else rows[place] + "\t1"
            num_broken += len(bad)
            kept = rows if broken else [row for place, row in enumerate(rows) if place not in set(bad)]
            out.write(("\n".join(kept) + "\n").encode())
    return num_broken


def run(kind: str, *paths: Path) -> dict[str, float]:
    """What the last of these files took in a fresh process."""
    command = [sys.executable, "-c", MAIN.replace("{work}", KINDS[kind]), *map(str, paths)]
    environment = {"PYTHONPATH": str(PROJECT / "tasks"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print each way's median, then the ratio of ours to the better of the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="ingest-") as name:
        broken, sound, small = (Path(name, f"{kind}.tsv.gz") for kind in ("broken", "sound", "small"))
        num_broken = write_clicks(broken, options.rows, broken=True)
        write_clicks(sound, options.rows, broken=False)
        write_clicks(small, 1000, broken=False)
        for _ in range(options.runs):
            for kind in KINDS:
                found = run(kind, small, broken if kind == "ours" else sound)
                wanted = (options.rows - num_broken, num_broken if kind == "ours" else 0)
                if (found["rows"], found["refused"]) != wanted:
                    print(f"{kind}: {found} and not {wanted}")
                    return 1
                seconds[kind].append(found["seconds"])
    rates = {kind: (options.rows - num_broken) / statistics.median(found) for kind, found in seconds.items()}
    for kind, rate in rates.items():
        print(f"{kind}: {rate:,.0f} rows per CPU-second")
    ratio = rates["ours"] / max(rate for kind, rate in rates.items() if kind != "ours")
    print(f"ingest ratio={ratio:.3f} goal={GOAL} {'ok' if ratio >= GOAL else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
