"""The kinds of error that a user can meet, each with the exit code that `paddlewheel` ends with."""

from __future__ import annotations


class PaddlewheelError(Exception):
    """Base of every error that is told to the user without a stack trace."""

    exit_code = 1


class RecipeError(PaddlewheelError):
    """The recipe or the command line asks for what cannot be; every fault is told at once."""

    exit_code = 2


class DataError(PaddlewheelError):
    """Source data is missing, broken, or worse than the recipe bears."""

    exit_code = 3


class TrainingError(PaddlewheelError):
    """The training job ended without a result."""

    exit_code = 4


class StorageError(PaddlewheelError):
    """The store refused, is damaged, or holds something else than it should."""

    exit_code = 5


class CheckpointError(StorageError):
    """A checkpoint is incomplete or damaged, or its writer has been fenced off."""
