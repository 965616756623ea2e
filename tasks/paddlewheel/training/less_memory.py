"""What a training does after it ran out of memory: half the rows at once, and twice as many micro-batches a step.

The gradients of a slice are added up over its micro-batches, so that the mathematics stays that of the whole slice.
An attempt's record holds the micro-batch that it starts with, so that whoever starts the next one, on whatever host,
goes on with less. Rejected: trying sizes in the rank that ran out, whose allocator is no longer to be trusted.
"""

from __future__ import annotations

from dataclasses import replace

from paddlewheel.recipe import Training
from paddlewheel.training.attempts import Attempt
from paddlewheel.training.watch import End

COMPUTING = ("train", "validate")


def rows_at_once(training: Training, attempt: Attempt) -> int:
    """The rows of the largest micro-batch of an attempt, where all data ranks have equal shares."""
    data_ranks = max(1, attempt.world_size // (training.parallel.tensor * training.parallel.pipeline))
    rows = -(-training.global_batch // data_ranks)
    return min(rows, attempt.micro_batch or training.micro_batch or rows)


def with_less(end: End, training: Training, attempt: Attempt, phase: str) -> End:
    """An end for want of memory with what the next attempt takes instead, in words and as a number.

    phase: what the rank that ended was at; before it computed, smaller micro-batches would not help.
    """
    if phase not in COMPUTING:
        advice = "before the first step, where smaller micro-batches do not help: give each node more memory"
        return replace(end, message=f"{end.message}; {advice}")
    rows = rows_at_once(training, attempt)
    if rows == 1:
        advice = (
            "with micro-batches of 1 row already: give each node more memory or fewer ranks_per_node, name layers in "
            "training.recompute, or make the model smaller"
        )
        return replace(end, message=f"{end.message}; {advice}", retry=False)
    half = -(-rows // 2)
    told = f"the next attempt takes micro-batches of {half} rows instead of {rows}, and adds up twice as many"
    return replace(end, message=f"{end.message}; {told}", next_micro_batch=half)
