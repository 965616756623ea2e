"""Mean and deviation of numbers by sums without any rounding, so that neither order nor split can show in them.

A float64 is a whole number of 53 bits times a power of two. Those whole numbers, and their squares, are added up a
power of two at a time; the few totals become one Python integer. Rejected: math.fsum, which is exact too, but takes one
object a number and cannot be merged.
"""

from __future__ import annotations

import math

import numpy as np

CHUNK = 1 << 20  # sums of so many numbers below 2**32 are exact in float64, and so in np.bincount
MANTISSA_BITS = 53
LEAST_EXPONENT = -1073  # of np.frexp: that of the smallest number
SUM_SCALE = MANTISSA_BITS - LEAST_EXPONENT  # a sum is a whole number of units of 2**-1126, one of squares of 2**-2252
HALF = 27
GUARD_BITS = 128


class ExactMoments:
    """Count, sum and sum of squares of finite float64 numbers."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0
        self._squares = 0

    def add(self, values: np.ndarray) -> None:
        """Add finite float64 numbers."""
        self.count += len(values)
        for start in range(0, len(values), CHUNK):
            fractions, exponents = np.frexp(values[start : start + CHUNK])
            whole = (fractions * float(1 << MANTISSA_BITS)).astype(np.int64)
            places = (exponents - LEAST_EXPONENT).astype(np.int64)
            sizes = np.abs(whole)
            upper, lower, sign = sizes >> HALF, sizes & ((1 << HALF) - 1), np.sign(whole)
            self._sum += _total(places, upper * sign, shift=HALF) + _total(places, lower * sign)
            squares = [(upper * upper, 2 * HALF), (upper * lower, HALF + 1), (lower * lower, 0)]
            for product, shift in squares:
                self._squares += _total(places, product >> 32, shift=shift + 32, step=2)
                self._squares += _total(places, product & 0xFFFFFFFF, shift=shift, step=2)

    def mean(self) -> float:
        """The mean, correctly rounded; 0 of no numbers."""
        return self._sum / (self.count << SUM_SCALE) if self.count else 0.0

    def deviation(self) -> float:
        """The population standard deviation, exact to the last bit but one; 0 of equal numbers and of none."""
        variance = self.count * self._squares - self._sum * self._sum  # times count**2, in units of squares
        root = math.isqrt(variance << 2 * GUARD_BITS)
        return root / (self.count << SUM_SCALE + GUARD_BITS) if self.count else 0.0


def _total(places: np.ndarray, numbers: np.ndarray, *, shift: int = 0, step: int = 1) -> int:
    """The sum of numbers * 2**(shift + step * place), exactly: |numbers| < 2**32."""
    sums = np.bincount(places, weights=numbers.astype(np.float64))
    return sum(int(sums[place]) << (shift + step * int(place)) for place in np.flatnonzero(sums))
