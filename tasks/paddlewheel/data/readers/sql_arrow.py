"""PostgreSQL's types in Arrow as columns that the schema can check: nothing rounded, nothing wrapped round.

A value that has no place in its declared type becomes a text that the schema refuses, or refuses its row here.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from paddlewheel.recipe_data import ColumnType, Source

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

EXACT_DIGITS: Final = 15  # decimal digits that every float64 keeps


def typed_rows(table: pa.Table, source: Source) -> tuple[pl.DataFrame, dict[int, str]]:
    """The source's columns of a table with N rows, and rows that are refused, by index, with the reason."""
    import polars as pl

    columns = []
    broken: dict[int, str] = {}
    for column in source.columns:
        if column.name not in table.column_names:
            continue
        values = table.column(column.name)
        kind = (table.schema.field(column.name).metadata or {}).get(b"POSTGRESQL:type")
        series = pl.Series(column.name, _stored(values))
        if kind == b"numeric":
            series = _decimals(series, column.type, broken)
        elif kind == b"uuid":
            series = _uuids(series)
        elif series.dtype in (pl.Date, pl.Datetime):
            series = _within_calendar(series)
        columns.append(series)
    return pl.DataFrame(columns), broken


def _stored(values: Any) -> Any:
    """What an extension type stores: texts of numeric and json, 16 bytes of a uuid."""
    import pyarrow as pa

    if not isinstance(values.type, pa.BaseExtensionType):
        return values
    made: Any = pa.chunked_array([chunk.storage for chunk in values.chunks], type=values.type.storage_type)  # type: ignore[call-overload]
    return made


def _decimals(texts: pl.Series, kind: ColumnType, broken: dict[int, str]) -> pl.Series:
    """Decimals as texts: without a fraction of zeros where whole numbers are declared.

    One that no float64 is, nor gives back in its shortest text, is refused where floats are declared.
    """

    if kind in ("int64", "bool"):
        return texts.str.replace(r"\.0+$", "")
    if kind == "float64":
        digits = texts.str.replace_all(r"[^0-9]", "").str.strip_chars_start("0").str.len_bytes()
        for row in (digits > EXACT_DIGITS).arg_true():
            text = texts[row]
            if Decimal(text) not in (Decimal(float(text)), Decimal(repr(float(text)))):
                broken[row] = (
                    f"{texts.name}: a decimal of more digits than a float64 holds; declare it string, or round it"
                )
    return texts


def _uuids(values: pl.Series) -> pl.Series:
    digits = values.bin.encode("hex")
    return digits.str.replace(r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", "${1}-${2}-${3}-${4}-${5}")


def _within_calendar(values: pl.Series) -> pl.Series:
    """Days or moments as they are; as texts where one of them is infinity or beyond the year 9999."""
    import polars as pl

    from paddlewheel.data.calendar import beyond_calendar

    outside = beyond_calendar(values)
    if not outside.any():
        return values
    pattern = "%Y-%m-%d" if values.dtype == pl.Date else "%Y-%m-%dT%H:%M:%S%.6f"
    texts = values.set(outside, None).dt.strftime(pattern)
    told = pl.Series(["infinity" if one else None for one in outside], dtype=pl.String)
    return texts.fill_null(told).alias(values.name)
