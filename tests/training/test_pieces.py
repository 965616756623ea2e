"""Tensors put together from pieces in real files, and every way in which the pieces may lie about themselves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from paddlewheel.errors import CheckpointError
from paddlewheel.training.pieces import Arrays, Piece, missing_elements

WHOLE = np.arange(12, dtype=np.float32).reshape(3, 4)


def box(start: tuple[int, ...], size: tuple[int, ...], shape: tuple[int, ...] = (3, 4)) -> Piece:
    return Piece(shape=shape, start=start, size=size)


def saved(folder: Path, *files: Mapping[str, tuple[np.ndarray, Piece]]) -> list[tuple[Path, Mapping[str, Piece]]]:
    found = []
    for number, tensors in enumerate(files):
        path = folder / f"{number}.safetensors"
        save_file({name: np.ascontiguousarray(array) for name, (array, _) in tensors.items()}, path)
        found.append((path, {name: piece for name, (_, piece) in tensors.items()}))
    return found


def test_whole_comes_back_when_ranks_hold_columns_or_runs_of_elements(tmp_path: Path) -> None:
    columns = [box((0, 0), (3, 1)), box((0, 1), (3, 3))]
    runs = [box((0,), (5,)), box((5,), (7,))]
    for number, pieces in enumerate((columns, runs)):
        (tmp_path / str(number)).mkdir()
        files = saved(tmp_path / str(number), *({"w": (piece.cut(WHOLE), piece)} for piece in pieces))
        assert Arrays(files)["w"].tolist() == WHOLE.tolist()


@given(cuts=st.lists(st.integers(0, 12), max_size=4))
def test_runs_make_up_the_whole_when_it_is_cut_anywhere(cuts: list[int]) -> None:
    bounds = sorted({0, 12, *cuts})
    pieces = [box((begin,), (end - begin,)) for begin, end in itertools.pairwise(bounds)]
    assert missing_elements(pieces) == ""
    whole = np.full((3, 4), -1, np.float32)
    for piece in pieces:
        piece.put(piece.cut(WHOLE), whole)
    assert whole.tolist() == WHOLE.tolist()


@pytest.mark.parametrize(
    ("pieces", "fault"),
    [
        ([box((0, 0), (3, 3))], "9 of its 12 elements are there"),
        ([box((0, 0), (3, 2)), box((0, 1), (3, 2))], "3 of its 12 elements are missing, 3 twice"),
        ([box((0, 0), (3, 2)), box((0, 2), (3, 2), (3, 5))], "tensors of different shapes"),
        ([box((2,), (12,))], r"a piece of \[12\] from \[2\] cannot be of a tensor of \[3, 4\]"),
        ([box((-4,), (12,))], r"from \[-4\]"),
        ([box((0, 0), (4, 3))], r"a piece of \[4, 3\]"),
        ([box((0, 0, 0), (3, 4, 1))], r"a piece of \[3, 4, 1\]"),
        # A shape that would fill the memory many times over is refused by counting alone.
        ([box((0,), (6,), (10**15,)), box((6,), (6,), (10**15,))], "12 of its 1000000000000000 elements are there"),
    ],
)
def test_pieces_are_refused_when_they_do_not_make_up_the_whole(tmp_path: Path, pieces: list[Piece], fault: str) -> None:
    files = saved(
        tmp_path, *({"w": (np.zeros([max(0, one) for one in piece.size], np.float32), piece)} for piece in pieces)
    )
    with pytest.raises(CheckpointError, match=fault):
        Arrays(files)


def test_file_is_refused_when_it_holds_something_else_than_it_is_told_to(tmp_path: Path) -> None:
    [(path, _)] = saved(tmp_path, {"w": (WHOLE, box((0, 0), (3, 4)))})
    with pytest.raises(
        CheckpointError, match=r"w in .*0\.safetensors has the shape \[3, 4\], and is told to be a piece"
    ):
        Arrays([(path, {"w": box((0, 0), (3, 2))})])
    with pytest.raises(CheckpointError, match=r"0\.safetensors lacks other, of which it is told to hold pieces"):
        Arrays([(path, {"other": box((0, 0), (3, 4))})])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f{}",
        b"\x0f\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n(S'touch",
        (40).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[1],"data_of',
        (62).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}        ' + b"\0" * 8,
        (112).to_bytes(8, "little")
        + b'{"v":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},'
        + b'"w":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}   '
        + b"\0" * 24,
    ],
    ids=["empty", "huge_header", "pickle", "cut_header", "offsets_beyond", "overlapping"],
)
def test_crafted_file_is_named_and_nothing_of_it_read_when_it_is_no_safetensors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a readable safetensors file"):
        Arrays([(path, {})])
