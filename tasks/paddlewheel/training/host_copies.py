"""Host copies of a training's tensors, for a commit that is written while the training goes on.

What only an update changes is copied by a thread during the next step's forward and backward pass, and the update waits
for that, if it must (as CheckFreq, Mohan and others 2021). The memory is kept and used again: fresh pages cost several
times what copying into them does. So a rank holds as much memory as it gives to a commit, all the time. Rejected: to
fork, and write from the child's pages; a fork of a process with Paddle's threads is not to be trusted.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np


class HostCopies:
    """Buffers by part and name. What was copied last holds until the next copy of the same part."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], np.ndarray] = {}
        self._later: list[tuple[np.ndarray, np.ndarray]] = []
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def copy(self, part: str, tensors: Mapping[str, Any], *, later: bool = False) -> dict[str, np.ndarray]:
        """Arrays, C-contiguous, for the tensors' content now, which later steps do not touch.

        later: they are filled once `wait` has returned after `start`, and the tensors stay as they are until then; of
        tensors that are not in this host's memory they are filled at once.
        """
        copies = {}
        for name, tensor in tensors.items():
            source, shared = _view(tensor)
            kept = self._kept.get((part, name))
            if kept is None or kept.shape != source.shape or kept.dtype != source.dtype:
                kept = self._kept[part, name] = np.empty(source.shape, source.dtype)
            if later and shared:
                self._later.append((kept, source))
            else:
                np.copyto(kept, source)
            copies[name] = kept
        return copies

    def start(self) -> None:
        """Begin to copy what was to be copied later."""
        self._thread = threading.Thread(target=self._copy, name="host-copies")
        self._thread.start()

    def wait(self) -> None:
        """Return when all is copied. Raises what went wrong."""
        thread = self._thread
        if thread is not None:
            thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def _copy(self) -> None:
        try:
            for kept, source in self._later:
                np.copyto(kept, source)
        except BaseException as error:
            self._error = error
        self._later = []


def _view(tensor: Any) -> tuple[np.ndarray, bool]:
    """The tensor's own memory, and True, where numpy can look at it; else a copy, and False."""
    if tensor.place.is_cpu_place():
        try:
            return np.from_dlpack(tensor.detach()), True
        except (TypeError, RuntimeError, BufferError, ValueError):
            pass  # a type that numpy does not have, such as bfloat16
    return np.asarray(tensor.numpy()), False
