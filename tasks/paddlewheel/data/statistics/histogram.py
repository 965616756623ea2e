"""Buckets of a histogram of numbers of any magnitude: fixed, so that counts of any two parts can be added.

A float's bucket is its sign, exponent and first bits of mantissa; a whole number is its own bucket while small, and
goes by its first bits beyond; days and times go by day. As in HdrHistogram and DDSketch, but of the bits alone: no
logarithm, whose last digit differs between machines.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from paddlewheel.recipe_data import ColumnType

MANTISSA_BITS: Final = 9
MOST_DAYS: Final = 4_000_000  # before or after 1970: times beyond, some eleven thousand years away, count there


def bucket_edges(kind: ColumnType, bucket: int) -> tuple[float, float]:
    """The smallest value of a bucket and the value after its largest; of days and times, days since 1970."""
    if kind in ("date", "timestamp"):
        return float(bucket), float(bucket + 1)
    low, high = _edge(kind, abs(bucket)), _edge(kind, abs(bucket) + 1)
    if kind == "float64" and bucket == 0:
        return -high, high  # zero, and numbers so small that they have lost precision
    return (low, high) if bucket >= 0 else (1 - high, 1 - low) if kind != "float64" else (-high, -low)


def bucket_of(kind: ColumnType, value: float) -> int:
    """The bucket that holds a value: the counterpart of `bucket_edges`."""
    if kind in ("date", "timestamp"):
        return max(-MOST_DAYS, min(math.floor(value), MOST_DAYS))
    if kind == "float64":
        bucket = struct.unpack("<q", struct.pack("<d", abs(value)))[0] >> (52 - MANTISSA_BITS)
    else:
        size = abs(int(value))
        shift = max(0, size.bit_length() - MANTISSA_BITS - 1)
        bucket = (shift << MANTISSA_BITS) + (size >> shift)
    return int(bucket if value >= 0 else -bucket)


def _edge(kind: ColumnType, bucket: int) -> float:
    if kind == "float64":
        return float(struct.unpack("<d", struct.pack("<q", bucket << (52 - MANTISSA_BITS)))[0])
    shift = max(0, (bucket >> MANTISSA_BITS) - 1)
    return float((bucket - (shift << MANTISSA_BITS)) << shift)
