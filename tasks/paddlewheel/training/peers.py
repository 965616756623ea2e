"""The error of a rank that lost the others, apart from the strategies that raise it."""

from __future__ import annotations

from paddlewheel.errors import TrainingError


class PeerError(TrainingError):
    """Another rank, or the agent that started this one, cannot be reached: a fault of a node, not of the work."""
