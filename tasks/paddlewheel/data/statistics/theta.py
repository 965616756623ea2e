"""Theta sketches of Apache DataSketches as bytes: written, read and merged without a Python call a value.

Trimmed to the THETA_SIZE smallest hashes, theta being the next one, so that equal sets have equal bytes, in whatever
order they came. Only what the library says of a sketch (estimate, bounds, set operations) is asked of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

THETA_SIZE: Final = 4096  # smallest hashes that a sketch keeps
WHOLE: Final = (1 << 63) - 1  # theta of a sketch that has seen no more than it keeps
THETA_PREAMBLE: Final = bytes.fromhex("0300001acc93")  # of a compact, ordered sketch with the library's own seed
THETA_EMPTY: Final = bytes.fromhex("01030300001ecc93")


def compact_theta(theta: int, hashes: Sequence[int] | Any) -> bytes:
    """A DataSketches compact sketch of sorted hashes below theta."""
    import numpy as np

    if not len(hashes) and theta == WHOLE:
        return THETA_EMPTY
    body = np.asarray(hashes, dtype="<u8").tobytes()
    if theta == WHOLE and len(hashes) == 1:
        return b"\x01\x03" + THETA_PREAMBLE + body
    head = struct.pack("<II", len(hashes), 0)
    if theta == WHOLE:
        return b"\x02\x03" + THETA_PREAMBLE + head + body
    return b"\x03\x03" + THETA_PREAMBLE + head + struct.pack("<Q", theta) + body


def read_theta(raw: bytes) -> tuple[int, Any]:
    """Theta (2**63 - 1: nothing is left out) and the sorted hashes below it, uint64, of `compact_theta`'s bytes."""
    import numpy as np

    preamble = raw[0] * 8 if raw != THETA_EMPTY else len(raw)
    theta = struct.unpack("<Q", raw[16:24])[0] if raw[0] == 3 else WHOLE
    return theta, np.frombuffer(raw, dtype="<u8", offset=preamble)


def sketch_of(raw: bytes) -> Any:
    """The sketch as Apache DataSketches has it: estimate, bounds, set operations."""
    import datasketches

    return datasketches.compact_theta_sketch.deserialize(raw)


def merge_thetas(parts: Sequence[bytes]) -> bytes:
    """The sketch of all values together."""
    import numpy as np

    read = [read_theta(part) for part in parts]
    theta = min(one for one, _ in read)
    hashes = np.unique(np.concatenate([found for _, found in read]))
    hashes = hashes[hashes < np.uint64(theta)]
    if len(hashes) > THETA_SIZE:
        theta, hashes = int(hashes[THETA_SIZE]), hashes[:THETA_SIZE]
    return compact_theta(theta, hashes)
