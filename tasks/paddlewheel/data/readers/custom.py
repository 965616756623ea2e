"""Files by a reader of the user's own: `package.module:name`, a function of a path and the source's params.

    def read(path: Path, params: Mapping[str, Any]) -> Iterable[pl.DataFrame]

It returns, or yields one after the other, polars or pandas frames, pyarrow tables or record batches, or lists of dicts.
"""

from __future__ import annotations

import importlib
import itertools
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile
from paddlewheel.data.readers.columns import column_faults
from paddlewheel.errors import RecipeError
from paddlewheel.recipe_data import Source

if TYPE_CHECKING:
    import polars as pl

TOLD_FRAMES: Final = 3
ACCEPTED: Final = "polars or pandas frames, pyarrow tables or record batches, or lists of dicts"


def read(job: ReadJob) -> Iterator[Chunk]:
    """What the user's reader makes of the file, piece by piece.

    Raises UnreadableFile where it fails, gives something else than rows, or lacks a required column; RecipeError where
    there is no such reader.
    """
    if job.path is None:
        raise RecipeError(f"the source {job.source.name!r} has no path: a reader of your own reads files")
    function = load_function(job.source.format)
    row, first = 1, True
    for piece in _pieces(function, job, job.path):
        if isinstance(piece, list) and not piece:
            continue
        frame, names = _frame(piece, job)
        if first:
            _check_columns(job, names)
            first = False
        yield _chunk(frame, row, tuple(name for name in names if name not in frame.columns))
        row += len(frame)


def load_function(name: str) -> Any:
    """The function at `package.module:name`. Raises RecipeError where it cannot be imported."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise RecipeError(f"the reader {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise RecipeError(f"the reader {name!r} is not a function")
    return function


def _pieces(function: Any, job: ReadJob, path: Path) -> Iterator[Any]:
    """What the function returns or yields, its own errors told as the file's."""
    try:
        found = function(path, dict(job.source.params))
        if hasattr(found, "__next__") or (isinstance(found, list) and not all(isinstance(one, dict) for one in found)):
            yield from found
        else:
            yield found
    except GeneratorExit:
        raise
    except BaseException as error:  # a panic of polars' and an exit are none of Exception, and cost the file too
        text = str(error).replace(str(path), job.name)
        raise UnreadableFile(
            f"{job.name}: the reader {job.source.format} failed: {type(error).__name__}: {text}"
            f"{_places(error.__traceback__)}"
        ) from error


def _places(trace: TracebackType | None) -> str:
    """The last frames of a trace: file, line, function and code. Without folders, which differ from host to host."""
    frames = [frame for frame in traceback.extract_tb(trace) if frame.filename != __file__]
    lines = [f"{Path(one.filename).name}:{one.lineno} in {one.name}: {one.line}" for one in frames[-TOLD_FRAMES:]]
    return "".join(f"\n  {line}" for line in lines)


def _frame(piece: Any, job: ReadJob) -> tuple[pl.DataFrame, list[str]]:
    """A piece's declared columns, and the names of all that it has."""
    import polars as pl

    kind = f"{type(piece).__module__.partition('.')[0]}.{type(piece).__name__}"
    try:
        if isinstance(piece, list) and all(isinstance(row, dict) for row in piece):
            return _frame_of_rows(piece, job.source)
        if kind == "polars.LazyFrame":
            piece = piece.collect()
        elif kind == "pandas.DataFrame":
            piece = pl.from_pandas(piece)
        elif kind in ("pyarrow.Table", "pyarrow.RecordBatch"):
            piece = pl.from_arrow(piece)
    except Exception as error:
        raise UnreadableFile(
            f"{job.name}: the reader {job.source.format} gave a {kind} that cannot be taken as columns: {error}"
        ) from error
    if not isinstance(piece, pl.DataFrame):
        raise UnreadableFile(f"{job.name}: the reader {job.source.format} gave a {kind}; it may give {ACCEPTED}")
    declared = [column.name for column in job.source.columns if column.name in piece.columns]
    return piece.select(declared), piece.columns


def _frame_of_rows(rows: Sequence[Mapping[str, Any]], source: Source) -> tuple[pl.DataFrame, list[str]]:
    """Rows as columns of the declared types; a column with a value of another type as texts, which are parsed."""
    import polars as pl

    from paddlewheel.data.types import POLARS_TYPES

    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    columns = []
    for column in source.columns:
        if column.name not in names:
            continue
        values = [row.get(column.name) for row in rows]
        try:
            series = pl.Series(column.name, values, dtype=POLARS_TYPES[column.type], strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            texts = [None if value is None else str(value) for value in values]
            series = pl.Series(column.name, texts, dtype=pl.String)
        columns.append(series)
    return pl.DataFrame(columns), names


def _check_columns(job: ReadJob, names: Sequence[str]) -> None:
    if faults := column_faults(job.source, names):
        raise UnreadableFile(
            f"{job.name}: {'; '.join(faults)}. The reader {job.source.format} gives: {', '.join(names) or 'no column'}"
        )


def _chunk(frame: pl.DataFrame, row: int, extra: tuple[str, ...]) -> Chunk:
    import polars as pl

    from paddlewheel.data.calendar import drop_beyond

    frame, broken = drop_beyond(frame)

    def raws(rows: Sequence[int]) -> list[str]:
        return [json.dumps(one, default=str, ensure_ascii=False) for one in frame[list(rows)].iter_rows(named=True)]

    places = pl.int_range(row, row + len(frame), dtype=pl.Int64, eager=True)
    return Chunk(frame=frame, places=places, raws=raws, broken=broken, extra_columns=extra, unit="row", nulls_set=True)
