"""Planning a window of 100,000 landing files, and telling what is new in it, against listing those files.

The landing folder holds 101 days of 1,000 small files. Timed together: `plan` of the newest day (list the folder, match
every key, cut groups, derive their receipts, publish the manifest durably) and `diff_plans` against the plan of the day
before, from which a day has left the window, a day has come and 100 files were delivered again. The peer is the listing
alone, as the store gives it: key, size and version of each file, sorted. Interleaved, CPU seconds, since the machine is
shared. Beside the ratio: a bare walk by os.scandir that takes path, size and modification time and sorts them, a diff
where every day has changed files, and the peak memory of a process that plans and diffs.

Use: python benchmarks/manifest_scale.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paddlewheel.data.landing.listing import open_landing
from paddlewheel.data.landing.plan_diff import diff_plans
from paddlewheel.data.plan import plan
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore

GOAL = 2.0
DAYS, FILES_PER_DAY = 101, 1_000
FIRST = datetime.date(2013, 7, 1)
REDELIVERED = 100
# Not ru_maxrss, which a process inherits from the one that started it.
PEAK = """
import sys
sys.path.insert(0, sys.argv[1])
import manifest_scale
from pathlib import Path
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
before = peak()
manifest_scale.plan_and_diff(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
print(before, peak())
"""


def day(number: int) -> str:
    """The day of this number, from 0."""
    return (FIRST + datetime.timedelta(days=number)).isoformat()


def make_recipe(landing: Path) -> Recipe:
    """A recipe whose window is 100 days of many files."""
    columns = [
        {"name": "id", "type": "int64"},
        {"name": "click", "type": "int64", "known": "after"},
    ]
    return load_recipe(
        {
            "name": "scale",
            "title": "Many files",
            "data": {
                "landing": str(landing),
                "window": {"train_days": DAYS - 2, "holdout_days": 1},
                "label": {"column": "click", "above": 0},
                "rows": {"name": "clicks", "path": "clicks/{partition}/*.csv", "columns": columns},
            },
            "features": [{"name": "id", "kind": "hash", "columns": ["id"], "buckets": 1000}],
            "model": {"name": "deepfm"},
            "training": {"epochs": 1, "global_batch": 64},
        }
    )


def write_landing(landing: Path) -> None:
    """A byte a file: nothing here reads them."""
    for number in range(DAYS):
        (folder := landing / "clicks" / day(number)).mkdir(parents=True)
        for index in range(FILES_PER_DAY):
            (folder / f"part-{index:05d}.csv").write_bytes(b"x")


def deliver_again(landing: Path, numbers: range) -> None:
    """The first REDELIVERED files over these days get a byte more."""
    for index in range(REDELIVERED):
        path = landing / "clicks" / day(numbers[index % len(numbers)]) / f"part-{index:05d}.csv"
        with path.open("ab") as file:
            file.write(b"y")


def walk(folder: str, prefix: str, found: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """(path, bytes, modified) of every file, sorted: the least that a listing can be."""
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            walk(entry.path, f"{prefix}{entry.name}/", found)
        else:
            status = entry.stat()
            found.append((prefix + entry.name, status.st_size, status.st_mtime_ns))
    return found


def plan_and_diff(landing: Path, root: Path, older: str) -> tuple[int, int]:
    """Files that are new and changed in the plan of the newest day against an older plan."""
    store = LocalStore(root)
    diff = diff_plans(plan(make_recipe(landing), day(DAYS - 1), store=store), older, store=store)
    return len(diff.sources[0].new), len(diff.sources[0].changed)


@contextlib.contextmanager
def cpu_seconds(into: list[float]):
    """Append the CPU seconds of the block, its garbage collected before and within."""
    gc.collect()
    begin = time.process_time()
    yield
    into.append(time.process_time() - begin)


def main() -> int:
    """Print a line a round, then medians and the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    walked, listed, planned, scattered = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="paddlewheel-scale-") as name:
        landing, root = Path(name) / "landing", Path(name) / "root"
        write_landing(landing)
        recipe = make_recipe(landing)
        for number in range(rounds):
            shutil.rmtree(root, ignore_errors=True)
            store = LocalStore(root)
            older = plan(recipe, day(DAYS - 2), store=store)
            deliver_again(landing, range(50, 51))
            with cpu_seconds(walked):
                count = len(walk(str(landing), "", []))
            with cpu_seconds(planned):
                told = plan_and_diff(landing, root, older)
            with cpu_seconds(listed):
                held = sum(1 for _ in open_landing(store, str(landing)).list(""))
            before = plan(recipe, day(DAYS - 1), store=store)
            deliver_again(landing, range(1, DAYS))
            after = plan(recipe, day(DAYS - 1), store=store)
            with cpu_seconds(scattered):
                spread = diff_plans(after, before, store=store).sources[0]
            if (told, count, held, len(spread.changed)) != ((FILES_PER_DAY, REDELIVERED), 101_000, 101_000, 100):
                raise SystemExit(f"wrong: {told}, {count} and {held} files, {len(spread.changed)} changed")
            print(
                f"round {number}: listing {listed[-1]:.2f} s, plan and diff {planned[-1]:.2f} s; "
                f"bare walk {walked[-1]:.2f} s, a diff with changes on every day {scattered[-1]:.2f} s",
                flush=True,
            )
        older = plan(recipe, day(DAYS - 2), store=LocalStore(root))
        deliver_again(landing, range(50, 51))
        command = [sys.executable, "-c", PEAK, str(Path(__file__).parent), str(landing), str(root), older]
        imports, peak = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    print(f"peak memory {peak // 1024} MiB, of which {imports // 1024} MiB were there after the imports")
    bare, peer, mine = (statistics.median(times) for times in (walked, listed, planned))
    print(
        f"medians: listing {peer:.2f} s, plan and diff {mine:.2f} s; bare walk {bare:.2f} s ({mine / bare:.2f} of it)"
    )
    ratio = mine / peer
    print(f"manifest_scale ratio={ratio:.2f} goal={GOAL} {'ok' if ratio <= GOAL else 'short'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
