"""Pictures: a file is a row of its path, class, bytes and size.

Their bytes stay as they were delivered; decoding them again and again is the loader's work.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from paddlewheel.data.readers import Chunk, ReadJob, UnreadableFile
from paddlewheel.errors import RecipeError
from paddlewheel.recipe_data import ColumnType, Source

# What a picture offers; `class` is the name of the folder that it lies in.
COLUMNS: Final[Mapping[str, ColumnType]] = {
    "path": "string", "class": "string", "image": "binary", "width": "int64", "height": "int64", "format": "string",
}  # fmt: skip
FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
JPEG_SCAN, JPEG_END, PNG_END = b"\xff\xda", b"\xff\xd9", b"IEND\xaeB`\x82"


def read(job: ReadJob) -> Iterator[Chunk]:
    """The picture as one row; the table of params.table as its rows. params.verify: decodes a picture whole.

    Raises UnreadableFile for a file that is no picture, is cut off, or cannot be decoded.
    """
    import polars as pl

    from paddlewheel.data.types import POLARS_TYPES

    if has_table(job.source):
        from paddlewheel.data.readers import images_table

        yield from images_table.read(job)
        return

    if job.path is None:
        raise RecipeError(f"the source {job.source.name!r} has no path: images are files")
    content = job.path.read_bytes()
    kind, width, height = look(job.name, content, whole=bool(job.source.params.get("verify", False)))
    row = {
        "path": job.name, "class": PurePosixPath(job.name).parent.name, "image": content,
        "width": width, "height": height, "format": kind,
    }  # fmt: skip
    names = [column.name for column in job.source.columns if column.name in row]
    frame = pl.DataFrame([pl.Series(name, [row[name]], dtype=POLARS_TYPES[COLUMNS[name]]) for name in names])
    yield Chunk(frame=frame, places=pl.Series([1], dtype=pl.Int64), raws=_raws(row), unit="row", nulls_set=True)


def is_beside(source: Source, name: str) -> bool:
    """Whether a file of the source is no row by itself: a picture that the source's table names."""
    return has_table(source) and PurePosixPath(name).name != source.params["table"]


def has_table(source: Source) -> bool:
    """Whether a table names the source's pictures."""
    return source.format == "images" and "table" in source.params


def look(name: str, content: bytes, *, whole: bool) -> tuple[str, int, int]:
    """(format, width, height) of a picture. `whole`: every pixel of it is decoded. Raises UnreadableFile."""
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise UnreadableFile(f"{name}: the file is empty (0 bytes); deliver it again")
    if reason := _cut_off(content):
        raise UnreadableFile(f"{name}: {reason}; deliver it again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                kind, (width, height) = str(image.format), image.size
                if whole:
                    image.load()
    except UnidentifiedImageError as error:
        raise UnreadableFile(f"{name}: not a picture ({', '.join(FORMATS)}); deliver it again") from error
    except Exception as error:  # Pillow's decoders raise whatever they meet
        raise UnreadableFile(f"{name}: cannot be decoded: {error}; deliver it again") from error
    return kind, width, height


def _cut_off(content: bytes) -> str | None:
    """Why a picture is not whole by its marks, which cost no decoding. A thumbnail's end is not the picture's."""
    size = len(content)
    if content.startswith(b"\xff\xd8\xff") and content.rfind(JPEG_END) <= content.rfind(JPEG_SCAN):
        return f"the JPEG is cut off after {size} bytes: it has no end mark"
    if content.startswith(b"\x89PNG") and PNG_END not in content:
        return f"the PNG is cut off after {size} bytes: it has no end chunk"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        wanted = int.from_bytes(content[4:8], "little") + 8
        if wanted > size:
            return f"the WebP is cut off after {size} of {wanted} bytes"
    return None


def _raws(row: Mapping[str, Any]) -> Any:
    def raws(rows: Sequence[int]) -> list[str]:
        told = {name: value for name, value in row.items() if name != "image"}
        return [json.dumps(told, ensure_ascii=False)] * len(rows)

    return raws


def faults_of_params(params: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """(name, value, what is allowed) of params that a source of images does not take."""
    for name, value in params.items():
        if name == "table":
            if not isinstance(value, str) or not value.endswith((".csv", ".jsonl")) or "/" in value:
                yield name, value, "must be the name of a .csv or .jsonl file that lies by the pictures"
        elif name != "verify":
            yield name, value, "images take table, verify"
        elif not isinstance(value, bool):
            yield name, value, "must be true or false"
