"""The part of a file's content that is being taken apart, in memory that is used again for the parts behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paddlewheel.data.readers.lent import Lender
from paddlewheel.data.tables.fields import PADDING


class Window:
    """Successive bytes of a file. data: uint8, `size` bytes of the content and at least PADDING behind them.

    final: the content ends with them. quoted: a quote was seen in the file so far.
    """

    def __init__(self, pieces: Iterator[bytes], num_bytes: int, piece_bytes: int) -> None:
        """About `num_bytes` at once, out of pieces of mostly up to `piece_bytes`; empty until it is moved."""
        self._pieces, self._num_bytes = pieces, num_bytes
        self._room_bytes = piece_bytes + PADDING
        self._lender = Lender(num_bytes + self._room_bytes)
        self.data: Any = np.zeros(PADDING, np.uint8)
        self.size = 0
        self.final = self.quoted = False

    def move(self, begin: int) -> None:
        """Let go of what lies before `begin`, and take as much behind the rest as there is room for.

        Where the rest fills half of it, there is more room this time. Arrays on the bytes so far stay as they are.
        """
        rest = self.data[begin : self.size]
        wanted_bytes, size = max(self._num_bytes, 2 * len(rest)), len(rest)
        data = self._lender.lend(wanted_bytes + self._room_bytes)
        data[:size] = rest
        self.final = True
        for piece in self._pieces:
            stop = size + len(piece)
            if stop + PADDING > len(data):
                data = np.concatenate([data[:size], np.empty(len(data) + len(piece), np.uint8)])
            data[size:stop] = np.frombuffer(piece, np.uint8)
            size = stop
            self.quoted = self.quoted or b'"' in piece
            if size >= wanted_bytes:
                self.final = False
                break
        data[size : size + PADDING] = 0
        self.data, self.size = data, size
