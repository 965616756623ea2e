"""Records of a CSV file: line number, raw text and fields of each, so that a refused row can be shown as it stands.

Rejected: a CSV reader that infers, skips or repairs; it cannot say which line of the file was wrong.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import xxhash

from paddlewheel.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Records:
    """N records below a header. lines: 1-based number of a record's first line, int64[N]; raws: its text, str[N];

    fields: its fields unquoted, list[str][N], null where quotes are out of order.
    """

    header: tuple[str, ...]
    lines: pl.Series
    raws: pl.Series
    fields: pl.Series


def read_content(path: Path, *, digest: str | None = None) -> bytes:
    """The decompressed bytes of a CSV or CSV.gz file. With `digest`, the file's own bytes must have it.

    Raises DataError, naming the file and what to do, where it is missing, changed, empty, cut off or not gzip.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; deliver the file, then run again") from error
    if digest is not None and (found := xxhash.xxh3_128_hexdigest(raw)) != digest:
        raise DataError(
            f"{path}: changed since the run was planned (digest {found}, not {digest}); run the plan step again, "
            "or put the planned file back"
        )
    if not raw:
        raise DataError(f"{path}: the file is empty (0 bytes); deliver it again")
    if path.suffix == ".gz":
        raw = _unzip(path, raw)
    content = raw.removeprefix(BYTE_ORDER_MARK)
    if not content.strip():
        raise DataError(f"{path}: the file is empty, not even a header stands in it; deliver it again")
    return content


def read_records(path: Path, content: bytes) -> Records:
    """The records of CSV bytes; quoted fields may hold line breaks, lines may end in CRLF.

    Raises DataError where the bytes are not UTF-8 or the header is broken. `path` is for messages only.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}: line {line} is not UTF-8 text (byte {error.start}); export it as UTF-8") from error
    if '"' in text:
        numbers, records, found = _split_quoted(text.split("\n"))
        raws = pl.Series(records, dtype=pl.String)
        # Splitting in polars is ten times as fast as handing it lists; such a character hardly ever stands in text.
        mark = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in text)
        fields = pl.Series([None if one is None else mark.join(one) for one in found], dtype=pl.String).str.split(mark)
        lines = pl.Series(numbers, dtype=pl.Int64)
    else:
        raws = pl.Series([text]).str.split("\n").explode().str.strip_suffix("\r")
        fields = raws.str.split(",")
        lines = pl.int_range(1, len(raws) + 1, dtype=pl.Int64, eager=True)
    written = len(raws)
    while written and not raws[written - 1]:
        written -= 1
    header = fields[0]
    if header is None:
        raise DataError(f"{path}: line {lines[0]}: the header's quotes are out of order: {raws[0]!r}")
    rows = slice(1, written)
    return Records(header=tuple(header), lines=lines[rows], raws=raws[rows], fields=fields[rows])


def _unzip(path: Path, raw: bytes) -> bytes:
    try:
        return gzip.decompress(raw)
    except EOFError as error:
        raise DataError(
            f"{path}: the gzip file is cut off after {len(raw)} bytes; it was not delivered whole: deliver it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a sound gzip file ({error}); deliver it again, compressed by gzip") from error


def _split_quoted(lines: list[str]) -> tuple[list[int], list[str], list[list[str] | None]]:
    """First lines (1-based), texts and fields of the records. A quote that is never closed spoils its own line only."""
    numbers: list[int] = []
    records: list[str] = []
    fields: list[list[str] | None] = []
    index = 0
    while index < len(lines):
        end = index
        quotes = lines[index].count('"')
        while quotes % 2 and end + 1 < len(lines):
            end += 1
            quotes += lines[end].count('"')
        record = "\n".join(lines[index : end + 1]).removesuffix("\r")
        found = _fields(record)
        if found is None and end > index:
            record, end = lines[index].removesuffix("\r"), index
        numbers.append(index + 1)
        records.append(record)
        fields.append(found)
        index = end + 1
    return numbers, records, fields


def _fields(record: str) -> list[str] | None:
    """Fields of a record, unquoted; None where a quote neither opens nor closes a field, nor is doubled in one."""
    parts = record.split('"')  # those with an odd index lie between quotes
    fields = parts[0].split(",")
    for index in range(1, len(parts), 2):
        if index + 1 == len(parts):
            return None
        inside, outside = parts[index], parts[index + 1]
        doubled = index > 1 and not parts[index - 1]
        if not doubled and fields[-1]:
            return None
        fields[-1] = f'{fields[-1]}"{inside}' if doubled else inside
        if outside and outside[0] != ",":
            return None
        fields += outside.split(",")[1:]
    return fields
