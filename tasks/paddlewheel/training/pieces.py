"""Tensors in pieces: where a rank's part of a tensor lies in the whole, and the whole put together again from files.

A commit's files are safetensors; what they hold of a tensor is told beside them (docs/architecture.md). So a state that
some ranks saved, however they had split it, is read by any others. Nothing here imports Paddle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlewheel.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A box of a tensor of `shape`: `size` elements along each axis from `start`.

    With a single `start` for a tensor of several axes it is a run of the elements in C order, and 1-D in its file.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]

    def cut(self, whole: np.ndarray) -> np.ndarray:
        """The piece out of the whole."""
        flat = whole.reshape(-1) if len(self.start) == 1 else whole
        return flat[tuple(slice(start, start + size) for start, size in zip(self.start, self.size, strict=True))]

    def put(self, array: np.ndarray, whole: np.ndarray) -> None:
        """Write the piece into the whole, which must be contiguous."""
        self.cut(whole)[...] = array.reshape(self.size)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"shape": list(self.shape), "start": list(self.start), "size": list(self.size)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Piece:
        """The piece that `to_json` told."""
        return cls(**{name: tuple(int(one) for one in tree[name]) for name in ("shape", "start", "size")})


def whole_piece(shape: Sequence[int]) -> Piece:
    """The piece that is the whole."""
    return Piece(shape=tuple(shape), start=(0,) * len(shape), size=tuple(shape))


def fault_of(piece: Piece) -> str:
    """Why a piece cannot be one, as text; empty where it lies within its whole."""
    whole = (math.prod(piece.shape),) if len(piece.start) == 1 else piece.shape
    told = f"a piece of {list(piece.size)} from {list(piece.start)} cannot be of a tensor of {list(piece.shape)}"
    if not len(piece.start) == len(piece.size) == len(whole):
        return told
    inside = all(
        start >= 0 and size >= 0 and start + size <= length
        for start, size, length in zip(piece.start, piece.size, whole, strict=True)
    )
    return "" if inside else told


def missing_elements(pieces: Sequence[Piece]) -> str:
    """What is wrong with the pieces of one tensor, as text; empty where they cover it, each element once."""
    shapes = {piece.shape for piece in pieces}
    if len(shapes) > 1:
        return f"its pieces are of tensors of different shapes: {sorted(shapes)}"
    faults = [fault for piece in pieces if (fault := fault_of(piece))]
    if faults:
        return faults[0]
    found, demanded = sum(math.prod(piece.size) for piece in pieces), math.prod(pieces[0].shape)
    if found != demanded:
        return f"{found} of its {demanded} elements are there"
    if len(pieces) == 1:
        return ""
    covered = np.zeros(pieces[0].shape, np.uint8)
    for piece in pieces:
        piece.cut(covered)[...] += 1
    if (covered == 1).all():
        return ""
    return f"{int((covered == 0).sum())} of its {covered.size} elements are missing, {int((covered > 1).sum())} twice"


class Arrays(Mapping[str, np.ndarray]):
    """Whole tensors by name out of safetensors files, read and put together when they are asked for.

    files: paths, each with the pieces of those of its tensors that are not whole. Raises CheckpointError where a file
    cannot be read, or the pieces of a tensor are not all there.
    """

    def __init__(self, files: Sequence[tuple[Path, Mapping[str, Piece]]]) -> None:
        from safetensors import SafetensorError, safe_open

        self._found: dict[str, list[tuple[Any, Piece]]] = {}
        for path, pieces in files:
            try:
                file: Any = safe_open(path, framework="numpy")
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    shape = file.get_slice(name).get_shape()
                    piece = pieces.get(name) or whole_piece(shape)
                    if math.prod(shape) != math.prod(piece.size):
                        raise CheckpointError(
                            f"{name} in {path} has the shape {list(shape)}, and is told to be a piece of "
                            f"{list(piece.size)}"
                        )
                    self._found.setdefault(name, []).append((file, piece))
                absent = sorted(name for name in pieces if name not in self._found)
                if absent:
                    raise CheckpointError(f"{path} lacks {', '.join(absent)}, of which it is told to hold pieces")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error
        for name, found in self._found.items():
            fault = missing_elements([piece for _, piece in found])
            if fault:
                raise CheckpointError(f"{name} is not whole in {', '.join(str(path) for path, _ in files)}: {fault}")

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._found[name]
        if len(found) == 1 and found[0][1].size == found[0][1].shape:
            array: np.ndarray = found[0][0].get_tensor(name)
            return array
        whole: np.ndarray | None = None
        for file, piece in found:
            part = file.get_tensor(name)
            whole = np.empty(piece.shape, part.dtype) if whole is None else whole
            piece.put(part, whole)
        if whole is None:
            raise KeyError(name)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)
