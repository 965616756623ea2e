"""Synthetic clicks in the shape of Criteo's logs: invented by this file, no row of it comes from Criteo or from people.

A row is label, I1..I13 (counts with heavy tails), C1..C26 (8 hexadecimal digits, as frequent as Zipf's law has it), TSV
without header, missing values empty. Row r of day d depends on (seed, d, r) alone, by a 64-bit mix instead of numpy's
generators: the same bytes on every version of numpy, for a day made alone, and for a day of more rows up to the last
that both have.

The planted truth is a logistic model: some counts (log1p), some categories and three crosses of two, whose weights turn
slowly into others (`TURN_DAYS`), and a click rate that swings over four weeks. Columns of many values get new ones each
day. The Bayes AUC, which no model can exceed but by luck, is 0.807 for the default days and seed (others: within 0.02;
each landing folder's README.md says its own); about 27 of 100 rows are clicks.

Rejected: a sample of the real logs, which nobody may pass on, and of which the best possible model is not known.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from paddlewheel.data.demos.flights import sync_write, write_table
from paddlewheel.data.order import GOLDEN, MASK, mix
from paddlewheel.errors import DataError, RecipeError, StorageError

FIRST_DAY: Final = datetime.date(2024, 1, 1)
DAYS: Final = 8
ROWS_PER_DAY: Final = 50_000
FILES_PER_DAY: Final = 4
MOST_ROWS_PER_FILE: Final = 100_000
WORKERS: Final = 2  # files in memory at once, about 100 MB each at the most
TURN_DAYS: Final = 360
MARK: Final = "# Synthetic clicks"

# Ratio of one power of two to the one before (the nearer to 1, the longer the tail); share of missing values.
COUNTS: Final[Mapping[str, tuple[float, float]]] = {
    "I1": (0.60, 0.45), "I2": (0.72, 0.0), "I3": (0.66, 0.21), "I4": (0.62, 0.22), "I5": (0.93, 0.03),
    "I6": (0.80, 0.22), "I7": (0.70, 0.04), "I8": (0.68, 0.0), "I9": (0.78, 0.04), "I10": (0.30, 0.45),
    "I11": (0.60, 0.04), "I12": (0.45, 0.77), "I13": (0.64, 0.22),
}  # fmt: skip
OCTAVES: Final = 20  # counts stay below 2**19
I2_LEAST: Final = -2

# Number of values, that of Criteo's public sample; share of missing ones.
CATEGORIES: Final[Mapping[str, tuple[int, float]]] = {
    "C1": (1_460, 0.0), "C2": (583, 0.0), "C3": (10_131_227, 0.03), "C4": (2_202_608, 0.03), "C5": (305, 0.0),
    "C6": (24, 0.12), "C7": (12_517, 0.0), "C8": (633, 0.0), "C9": (3, 0.0), "C10": (93_145, 0.0),
    "C11": (5_683, 0.0), "C12": (8_351_593, 0.03), "C13": (3_194, 0.0), "C14": (27, 0.0), "C15": (14_992, 0.0),
    "C16": (5_461_306, 0.03), "C17": (10, 0.0), "C18": (5_652, 0.0), "C19": (2_173, 0.44), "C20": (4, 0.44),
    "C21": (7_046_547, 0.03), "C22": (18, 0.76), "C23": (15, 0.0), "C24": (286_181, 0.03), "C25": (105, 0.44),
    "C26": (142_572, 0.44),
}  # fmt: skip
ZIPF: Final = 1.1
OLD_RANKS: Final = 64  # the most frequent values stay
TURNOVER: Final = {"C3": 400, "C12": 400, "C16": 200, "C21": 200}  # new values a day

# The truth: weight of log1p(count), of a missing count, and the standard deviation of the effects of a column's values.
COUNT_WEIGHTS: Final = {"I1": 0.25, "I5": -0.08, "I7": 0.15, "I11": 0.30}
MISSING_WEIGHTS: Final = {"I12": -0.35}
EFFECTS: Final[Mapping[tuple[str, ...], float]] = {
    ("C2",): 0.5, ("C6",): 0.4, ("C8",): 0.3, ("C9",): 0.3, ("C14",): 0.5, ("C17",): 0.4, ("C23",): 0.3,
    ("C6", "C17"): 0.4, ("C14", "C23"): 0.4, ("C9", "C20"): 0.3,
}  # fmt: skip
BIAS: Final = -1.7
SWING: Final = 0.1  # of the logit, over 28 days

COLUMNS: Final = ("label", *COUNTS, *CATEGORIES)
HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
BINS: Final = 4000  # of the probability, for the Bayes AUC


@dataclass(frozen=True, kw_only=True)
class Clicks:
    """B rows of one day. values: int64[B] of each column, a count or a category's number by frequency.

    missing: bool[B] of each column. labels: int64[B]; probabilities: float64[B], the truth that they were drawn by.
    """

    labels: np.ndarray
    values: Mapping[str, np.ndarray]
    missing: Mapping[str, np.ndarray]
    probabilities: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ClicksSummary:
    """What `write_clicks` left in the landing folder."""

    first_day: str
    last_day: str
    files: int
    rows: int
    written: int
    unchanged: int
    click_rate: float
    bayes_auc: float


def write_clicks(landing: Path, *, days: int = DAYS, rows_per_day: int = ROWS_PER_DAY, seed: int = 0) -> ClicksSummary:
    """Write `clicks/DAY/part-NNNNN.tsv.gz`, at least four files a day, and README.md, which says what they are.

    The same bytes each time: a file that is there and equal is left alone, another is replaced atomically.
    Raises DataError where the folder holds clicks of somebody else's, StorageError where it cannot be written.
    """
    if days < 1 or rows_per_day < 1 or not 0 <= seed < 2**63:
        raise RecipeError("demo ctr: --days and --rows-per-day are at least 1, --seed is at least 0")
    readme = landing / "README.md"
    try:
        ours = readme.is_file() and readme.read_text().startswith(MARK)
        if not ours and any((landing / "clicks").glob("*/*")):
            raise DataError(f"{landing}/clicks holds files that this demo did not write; name another folder")
        # The mark first: after a kill, the rest of the folder is known as the demo's.
        if not ours:
            sync_write(_ready(readme), f"{MARK}\n".encode())
        masses, written, files = np.zeros((2, BINS)), 0, 0
        with ThreadPoolExecutor(WORKERS) as pool:
            for made, mass in pool.map(lambda part: _write_part(landing, *part, seed=seed), _parts(days, rows_per_day)):
                written, files, masses = written + made, files + 1, masses + mass
        for day in range(days):
            _remove_rest(landing / "clicks" / day_name(day), rows_per_day)
        summary = ClicksSummary(
            first_day=day_name(0), last_day=day_name(days - 1), files=files, rows=days * rows_per_day,
            written=written, unchanged=files - written, click_rate=float(masses[1].sum() / masses.sum()),
            bayes_auc=auc_of_masses(masses),
        )  # fmt: skip
        sync_write(readme, _readme(summary, rows_per_day, seed).encode())
    except OSError as error:
        raise StorageError(f"cannot write the landing folder {landing}: {error.strerror}") from error
    return summary


def day_name(day: int) -> str:
    """The partition of the day of this number, which counts from 0."""
    return (FIRST_DAY + datetime.timedelta(days=day)).isoformat()


def make_clicks(day: int, first: int, count: int, *, seed: int = 0) -> Clicks:
    """Rows first..first+count-1 of a day."""
    rows = np.arange(first, first + count, dtype=np.uint64)
    values, missing = {}, {}
    for name, (_, share) in {**COUNTS, **CATEGORIES}.items():
        bits = _bits(seed, day, name, rows)
        values[name] = _draw_count(name, bits) if name in COUNTS else _draw_rank(name, day, bits)
        missing[name] = mix(bits ^ np.uint64(GOLDEN)) >> np.uint64(32) < np.uint64(round(share * 2**32))
    logits = np.full(count, BIAS + SWING * math.sin(2 * math.pi * day / 28))
    for name, weight in COUNT_WEIGHTS.items():
        logits += weight * np.log1p(np.where(missing[name], 0, values[name]))
    for name, weight in MISSING_WEIGHTS.items():
        logits += weight * missing[name]
    turn = 2 * math.pi * day / TURN_DAYS
    for names, scale in EFFECTS.items():
        keys = np.zeros(count, np.uint64)
        for name in names:
            keys = keys * np.uint64(1 << 24) + np.where(missing[name], 0, values[name] + 1).astype(np.uint64)
        now, later = (_effects(_bits(seed, 0, "".join(names) + phase, keys)) for phase in "ab")
        logits += scale * (math.cos(turn) * now + math.sin(turn) * later)
    probabilities = 1 / (1 + np.exp(-logits))
    labels = (_fraction(_bits(seed, day, "label", rows)) < probabilities).astype(np.int64)
    return Clicks(labels=labels, values=values, missing=missing, probabilities=probabilities)


def frame_of(clicks: Clicks) -> pl.DataFrame:
    """The rows as they stand in a file."""
    columns = [pl.Series("label", clicks.labels)]
    for name, values in clicks.values.items():
        column = pl.Series(name, values) if name in COUNTS else _hexadecimal(name, values)
        columns.append(column.set(pl.Series(clicks.missing[name]), None))
    return pl.DataFrame(columns)


def auc_of_masses(masses: np.ndarray) -> float:
    """AUC of the true probability itself: masses[0] non-clicks and masses[1] clicks expected by bin of probability."""
    below = np.cumsum(masses[0]) - masses[0]
    return float((masses[1] * (below + masses[0] / 2)).sum() / (masses[0].sum() * masses[1].sum()))


def _parts(days: int, rows_per_day: int) -> Iterator[tuple[int, int, int, int]]:
    """(day, part, first row, number of rows) of every file."""
    files = _files_of(rows_per_day)
    for day, part in itertools.product(range(days), range(files)):
        first, end = rows_per_day * part // files, rows_per_day * (part + 1) // files
        yield day, part, first, end - first


def _files_of(rows_per_day: int) -> int:
    return min(rows_per_day, max(FILES_PER_DAY, -(-rows_per_day // MOST_ROWS_PER_FILE)))


def _write_part(landing: Path, day: int, part: int, first: int, count: int, *, seed: int) -> tuple[bool, np.ndarray]:
    clicks = make_clicks(day, first, count, seed=seed)
    path = _ready(landing / "clicks" / day_name(day) / f"part-{part:05}.tsv.gz")
    written = write_table(path, frame_of(clicks).write_csv(separator="\t", include_header=False).encode(), level=1)
    bins = np.minimum((clicks.probabilities * BINS).astype(np.int64), BINS - 1)
    chance = clicks.probabilities
    return written, np.stack([np.bincount(bins, weights, BINS) for weights in (1 - chance, chance)])


def _remove_rest(folder: Path, rows_per_day: int) -> None:
    """Remove the files of this day that an earlier, larger demo left."""
    names = {f"part-{part:05}.tsv.gz" for part in range(_files_of(rows_per_day))}
    for path in folder.glob("part-*.tsv.gz"):
        if path.name not in names:
            path.unlink()


def _ready(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _bits(seed: int, day: int, name: str, rows: np.ndarray) -> np.ndarray:
    """Random bits of one column and day by row: uint64[B] -> uint64[B]. Other seeds, days and names: other bits."""
    start = int.from_bytes(f"{name:>8}".encode()[-8:], "little")
    for part in (seed, day):
        start = _mix_one(start ^ _mix_one(part))
    return mix(rows * np.uint64(GOLDEN) + np.uint64(start))


def _mix_one(value: int) -> int:
    return int(mix(np.array([(value + GOLDEN) & MASK], np.uint64))[0])


def _fraction(bits: np.ndarray) -> np.ndarray:
    """Uniform in [0, 1), 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _within(bits: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """A number below each width, which is below 2**32."""
    high = mix(bits + np.uint64(GOLDEN)) >> np.uint64(32)
    return (high * widths.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def _octaves(bits: np.ndarray, weights: list[float]) -> np.ndarray:
    """An index for each row, as probable as its weight: integers, so that no float's last bit matters."""
    total = sum(weights)
    marks = [round(sum(weights[: index + 1]) / total * 2**32) for index in range(len(weights) - 1)]
    return np.searchsorted(np.array(marks, np.uint64), bits >> np.uint64(32), side="right").astype(np.int64)


def _draw_count(name: str, bits: np.ndarray) -> np.ndarray:
    """0, or 2**(octave-1) and a number below it."""
    octaves = _octaves(bits, [COUNTS[name][0] ** octave for octave in range(OCTAVES)])
    least = np.where(octaves > 0, 1 << np.maximum(octaves - 1, 0), 0)
    return least + _within(bits, np.maximum(least, 1)) + (I2_LEAST if name == "I2" else 0)


def _draw_rank(name: str, day: int, bits: np.ndarray) -> np.ndarray:
    """The value's number by frequency, from 0; octave o holds the numbers 2**o-1 .. 2**(o+1)-2."""
    size, _ = CATEGORIES[name]
    starts = [2**octave - 1 for octave in range(size.bit_length())]
    widths = [min(start + 1, size - start) for start in starts]
    octaves = _octaves(bits, [width / (start + 1) ** ZIPF for start, width in zip(starts, widths, strict=True)])
    ranks = np.array(starts)[octaves] + _within(bits, np.array(widths)[octaves])
    return np.where(ranks < OLD_RANKS, ranks, ranks + day * TURNOVER.get(name, 0))


def _effects(bits: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1, uniform."""
    return (_fraction(bits) * 2 - 1) * math.sqrt(3)


def _hexadecimal(name: str, ranks: np.ndarray) -> pl.Series:
    """Eight digits for each number, no two the same within a column (each step is a bijection of 32 bits)."""
    values = ranks.astype(np.uint32) * np.uint32(0x9E3779B1) ^ np.uint32(_mix_one(int(name[1:])) & 0xFFFFFFFF)
    values = (values ^ values >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    values = (values ^ values >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    values ^= values >> np.uint32(16)
    text = HEX[values.astype(">u4").view(np.uint8)]
    offsets = np.arange(0, 8 * len(ranks) + 1, 8, dtype=np.int64)
    array = pa.LargeStringArray.from_buffers(len(ranks), pa.py_buffer(offsets.data), pa.py_buffer(text.data))
    return pl.Series(name, array)


def _readme(summary: ClicksSummary, rows_per_day: int, seed: int) -> str:
    return f"""{MARK}

Written by `paddlewheel demo ctr` (seed {seed}): {rows_per_day:,} rows a day, {summary.first_day}..{summary.last_day}.
They have the shape of Criteo's logs (label, I1..I13, C1..C26, tabs, no header) and are invented from first to last:
no row comes from Criteo, and what a model reaches here says nothing of what it reaches there.

The labels were drawn from a known model, so the best possible AUC on these rows is known: {summary.bayes_auc:.3f}.
{summary.click_rate:.1%} of the rows are clicks. How they are made stands in `paddlewheel/data/demo_ctr.py`.
"""
