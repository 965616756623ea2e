"""Readers as users write them, good and bad; the tests name them as formats."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

BIG = 2**53 + 1


def lines(path: Path, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`id=amount` a line, with the separator of params."""
    pairs = [line.split(params["separator"]) for line in path.read_text().splitlines()]
    return [{"id": int(left), "amount": right or None} for left, right in pairs]


def frames(_path: Path, _params: Mapping[str, Any]) -> Iterator[Any]:
    """A piece of each kind."""
    yield pl.DataFrame({"id": [1, BIG], "amount": [0.5, None]})
    yield pd.DataFrame({"id": pd.array([2, None], dtype="Int64"), "amount": [1.5, float("nan")]})
    yield pa.table({"id": pa.array([3, None], pa.int64()), "amount": pa.array([2.5, None])})
    yield pa.record_batch({"id": pa.array([4], pa.int32()), "amount": pa.array([3.5])})
    yield [{"id": BIG, "amount": None, "more": "x"}]
    yield []


def mixed(_path: Path, _params: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"id": 1, "amount": 0.5}, {"id": "two", "amount": 0.5}, {"id": 3}]


def wrong(_path: Path, _params: Mapping[str, Any]) -> Any:
    return {"id": 1}


def failing(path: Path, _params: Mapping[str, Any]) -> Any:
    return int(path.read_text())


def leaving(_path: Path, _params: Mapping[str, Any]) -> Any:
    raise SystemExit("enough")


def panicking(_path: Path, _params: Mapping[str, Any]) -> Any:
    pl.Series([2**62]).cast(pl.Datetime("ms")).to_list()  # which panics in polars, of a type beside Exception


def narrowing(_path: Path, _params: Mapping[str, Any]) -> Iterator[Any]:
    yield [{"id": 1, "amount": 1.0}]
    yield [{"amount": 2.0}]


def narrow(_path: Path, _params: Mapping[str, Any]) -> Any:
    return pl.DataFrame({"idd": [1]})


def aborting(path: Path, _params: Mapping[str, Any]) -> Any:
    if b"bad" in path.read_bytes():
        os.abort()
    return [{"id": 1, "amount": 1.0}]


def crashing(path: Path, _params: Mapping[str, Any]) -> Any:
    if b"bad" in path.read_bytes():
        ctypes.string_at(0)
    return [{"id": 1, "amount": 1.0}]
