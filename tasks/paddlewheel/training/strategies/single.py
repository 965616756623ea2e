"""One rank that trains alone."""

from __future__ import annotations

from paddlewheel.errors import RecipeError
from paddlewheel.recipe import Parallel
from paddlewheel.training.strategies.data_parallel import DataParallel


def build_single(rank: int, world_size: int, parallel: Parallel) -> DataParallel:
    """Data parallel over one rank, which exchanges nothing. Raises RecipeError for more than one rank."""
    if (rank, world_size) != (0, 1):
        raise RecipeError(f"training.strategy single is for one rank, not {world_size}; use data_parallel")
    return DataParallel(rank, world_size, parallel)
