"""Every rank holds the whole model and trains on its slice of each global batch; gradients are summed.

Rejected: paddle.DataParallel. When a peer dies it aborts in C++, where nothing can be caught or said; it needs to be
told of parameters that a step leaves unused; and it averages over ranks, which is wrong for slices of unequal length.
"""

from __future__ import annotations

from typing import Any

from paddlewheel.training.peers import PeerError


class DataParallel:
    """Ranks joined by Paddle's default process group (gloo on a CPU, NCCL on GPUs). One rank needs no group."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.data_rank, self.data_world_size = rank, world_size

    def setup(self) -> None:
        if self.data_world_size == 1:
            return
        import paddle.distributed as dist

        try:
            dist.init_parallel_env()
            found = (dist.get_rank(), dist.get_world_size())
        except (RuntimeError, ValueError, OSError) as error:
            raise PeerError(
                f"rank {self.data_rank} of {self.data_world_size} could not join the others: {error}"
            ) from error
        if found != (self.data_rank, self.data_world_size):
            raise PeerError(f"joined as rank {found[0]} of {found[1]}, not {self.data_rank} of {self.data_world_size}")

    def wrap(self, model: Any) -> Any:
        """Sends rank 0's parameters and buffers to all: a model of the user's own may start at random."""
        if self.data_world_size > 1:
            import paddle
            import paddle.distributed as dist

            with paddle.no_grad(), _peers_named():
                for tensor in model.state_dict().values():
                    dist.broadcast(tensor, src=0)
        return model

    def sum_over_ranks(self, tensor: Any) -> None:
        if self.data_world_size > 1:
            import paddle.distributed as dist

            with _peers_named():
                dist.all_reduce(tensor)

    def close(self) -> None:
        if self.data_world_size > 1:
            import paddle.distributed as dist

            dist.destroy_process_group()


class _peers_named:
    """What a collective raises, as a PeerError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError | OSError | ValueError):
            raise PeerError(
                f"an exchange between the ranks failed, most likely since one of them ended: {error}"
            ) from error
