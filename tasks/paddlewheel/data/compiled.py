"""The one way in which loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compile_loop(function: Callable[..., Any]) -> Any:
    """The function compiled by numba at its first call, without the GIL; kept on disk where a folder can be written."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder that numba may keep it in: an image with a read-only root
        return numba.njit(nogil=True)(function)
