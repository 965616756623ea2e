"""Exact quantiles of any number of values in bounded memory.

Few values are sorted. Of more, the order statistics are found by their bits: each pass over the values counts, among
those that share the leading bits found so far, the next eleven. Both ways give the same bits. Rejected: sketches, whose
edges would hang on the order and the split of the rows.
"""

from __future__ import annotations

import numpy as np

WIDTHS = (11, 11, 11, 11, 11, 9)  # bits a pass; 64 together
SIGN = np.uint64(1 << 63)
KEEP = 1 << 22


class Quantiles:
    """The `bins` - 1 inner quantiles of finite float64 values, by one pass over them, or six where there are many."""

    def __init__(self, bins: int, *, keep: int | None = None) -> None:
        self._bins = bins
        self._keep = KEEP if keep is None else keep
        self._count = 0
        self._kept: list[np.ndarray] | None = []
        self._passes = 0
        self._prefixes = np.zeros(1, np.uint64)
        self._below = np.zeros(1, np.int64)
        self._counts = np.zeros((1, 1 << WIDTHS[0]), np.int64)

    def add(self, values: np.ndarray) -> None:
        """Add values; in a further pass again all of them, in any order."""
        if not self._passes:
            self._count += len(values)
            if self._kept is not None:
                self._kept.append(values + 0.0)  # one zero
                if self._count > self._keep:
                    self._kept = None
        keys = _to_keys(values)
        known, width = sum(WIDTHS[: self._passes]), WIDTHS[self._passes]
        prefixes = keys >> np.uint64(64 - known) if known else np.zeros(len(keys), np.uint64)
        places = np.searchsorted(self._prefixes, prefixes).clip(max=len(self._prefixes) - 1)
        mine = self._prefixes[places] == prefixes
        digits = (keys[mine] >> np.uint64(64 - known - width)) & np.uint64((1 << width) - 1)
        cells = places[mine] * (1 << width) + digits.astype(np.int64)
        self._counts += np.bincount(cells, minlength=self._counts.size).reshape(self._counts.shape)

    def end_pass(self) -> bool:
        """Whether all values must be added once more."""
        self._passes += 1
        if self._kept is not None or not self._count:
            return False
        ranks = self._ranks()
        places = np.searchsorted(self._below, ranks, side="right") - 1
        upto = np.cumsum(self._counts, axis=1) + self._below[:, None]
        digits = np.array(
            [np.searchsorted(upto[place], rank, side="right") for place, rank in zip(places, ranks, strict=True)]
        )
        cells = np.unique(places * self._counts.shape[1] + digits)
        places, digits = np.divmod(cells, self._counts.shape[1])
        self._below = upto[places, digits] - self._counts[places, digits]
        width = WIDTHS[self._passes - 1]
        self._prefixes = (self._prefixes[places] << np.uint64(width)) | digits.astype(np.uint64)
        done = self._passes == len(WIDTHS)
        self._counts = np.zeros((len(cells), 0 if done else 1 << WIDTHS[self._passes]), np.int64)
        return not done

    def edges(self) -> tuple[float, ...]:
        """The distinct quantiles at 1/bins, 2/bins, …, linear between order statistics; none of no values."""
        if not self._count:
            return ()
        ranks = self._ranks()
        if self._kept is not None:
            values = np.sort(np.concatenate(self._kept))[ranks]
        else:
            values = _to_values(self._prefixes[np.searchsorted(self._below, ranks, side="right") - 1])
        at = dict(zip(ranks.tolist(), values.tolist(), strict=True))
        edges = set()
        for index in range(1, self._bins):
            rank, rest = divmod((self._count - 1) * index, self._bins)
            low, share = at[rank], rest / self._bins
            high = at[rank + 1] if rest else low
            edges.add(min(max(low * (1 - share) + high * share, low), high) + 0.0)
        return tuple(sorted(edges))

    def _ranks(self) -> np.ndarray:
        """Places (from 0) of the values that the quantiles lie at or between, ascending."""
        found = set()
        for index in range(1, self._bins):
            rank, rest = divmod((self._count - 1) * index, self._bins)
            found |= {rank, rank + 1} if rest else {rank}
        return np.array(sorted(found), np.int64)


def _to_keys(values: np.ndarray) -> np.ndarray:
    """uint64 in the order of the values."""
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def _to_values(keys: np.ndarray) -> np.ndarray:
    return np.where(keys & SIGN, keys ^ SIGN, ~keys).view(np.float64)
