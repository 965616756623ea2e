"""One rank that trains alone."""

from __future__ import annotations

from typing import Any

from paddlewheel.errors import RecipeError


class Single:
    """No exchange. Raises RecipeError for more than one rank."""

    data_rank = 0
    data_world_size = 1

    def __init__(self, rank: int, world_size: int) -> None:
        if (rank, world_size) != (0, 1):
            raise RecipeError(f"training.strategy single is for one rank, not {world_size}; use data_parallel")

    def setup(self) -> None:
        pass

    def wrap(self, model: Any) -> Any:
        return model

    def sum_over_ranks(self, tensor: Any) -> None:
        pass

    def close(self) -> None:
        pass
