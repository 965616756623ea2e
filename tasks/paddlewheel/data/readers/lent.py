"""Memory that is lent to arrays again and again, since a fresh page costs as much as what is written on it.

It comes back when the last array on it is gone, in whatever library that was. Rejected: to leave it to the allocator,
which gives large blocks back to the system and takes zeroed ones from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Lender:
    """Blocks of one size; as many are kept as were out at once."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._free: list[Any] = []

    def lend(self, num_bytes: int) -> Any:
        """An array of `num_bytes` uint8 with arbitrary content; one that is larger than a block is not kept."""
        if num_bytes > self._num_bytes:
            return np.empty(num_bytes, np.uint8)
        memory = self._free.pop() if self._free else np.empty(self._num_bytes, np.uint8)
        return np.asarray(_Loan(memory, self._free))[:num_bytes]


class _Loan:
    """What every array on the memory refers to in the end."""

    def __init__(self, memory: Any, free: list[Any]) -> None:
        self._memory, self._free = memory, free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)
