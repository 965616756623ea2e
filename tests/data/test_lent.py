"""Memory that is lent again: only when nothing looks at it, whichever library held it last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from paddlewheel.data.readers import ReadJob, delimited
from paddlewheel.data.readers.lent import Lender
from paddlewheel.recipe_data import Column, Source


def test_memory_is_lent_again_when_the_last_array_on_it_is_gone() -> None:
    lender = Lender(1 << 16)
    first = lender.lend(1 << 16)
    where, part = first.ctypes.data, first[8:16].view(np.int64)
    second = lender.lend(1 << 16)
    assert second.ctypes.data != where
    del first
    assert lender.lend(1 << 16).ctypes.data != where  # a part of it is looked at still
    del part
    assert lender.lend(100).ctypes.data == where


def test_memory_is_not_lent_again_when_a_frame_stands_on_it() -> None:
    lender = Lender(1 << 16)
    numbers = lender.lend(1 << 16).view(np.int64)
    numbers[:] = 7
    where = numbers.ctypes.data
    frame = pl.DataFrame({"n": pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])})[5:]
    del numbers
    other = lender.lend(1 << 16)
    other[:] = 0
    assert frame["n"].sum() == 7 * 8187  # of 8,192 rows
    del frame
    assert lender.lend(1 << 16).ctypes.data == where


def test_array_has_its_own_memory_when_more_is_wanted_than_a_block() -> None:
    lender = Lender(16)
    large = lender.lend(17)
    assert (large.shape, lender.lend(16).shape, lender.lend(3).shape) == ((17,), (16,), (3,))


def test_rows_stay_as_they_were_when_the_rest_of_the_file_is_read(tmp_path: Path) -> None:
    numbers = range(2000)
    path = tmp_path / "f.csv"
    path.write_text("".join(f'{n},text {n} beyond twelve,"say ""{n}"""\n' for n in numbers))
    columns = Column(name="n", type="int64"), Column(name="t", type="string"), Column(name="q", type="string")
    source = Source(name="s", path="x", format="csv", header=False, columns=columns)
    read = delimited.read(ReadJob(name="f.csv", path=path, source=source), buffer_bytes=1000, max_rows=50)
    held = pl.concat([chunk.frame for chunk in read])
    assert held.rows() == [(n, f"text {n} beyond twelve", f'say "{n}"') for n in numbers]
