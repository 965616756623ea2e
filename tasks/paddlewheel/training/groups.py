"""Ranks that talk to each other: joined by Paddle's process groups (gloo on a CPU, NCCL on GPUs).

Every error of a collective is a PeerError, since whoever sees one can tell no more than that another rank is gone. A
group of one does nothing. Rejected: fleet's topology, whose groups exist only together with its own wrappers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paddlewheel.training.peers import PeerError


@dataclass(frozen=True, kw_only=True)
class Group:
    """Some of the ranks, in order, and this one's place among them. `handle`: Paddle's group, None for all ranks."""

    ranks: tuple[int, ...] = (0,)
    rank: int = 0
    handle: Any = None

    @property
    def size(self) -> int:
        return len(self.ranks)

    def sum_(self, tensor: Any) -> None:
        """Replace the tensor by its sum over the group, in place."""
        if self.size > 1:
            import paddle.distributed as dist

            with peers_named():
                dist.all_reduce(tensor, group=self.handle)

    def broadcast_(self, tensor: Any, *, src: int = 0) -> None:
        """Replace the tensor by that of the group's rank `src`, in place."""
        if self.size > 1:
            import paddle.distributed as dist

            with peers_named():
                dist.broadcast(tensor, src=self.ranks[src], group=self.handle)

    def gather(self, tensor: Any) -> list[Any]:
        """The tensors of all of the group, by rank; they must have one shape and type."""
        if self.size == 1:
            return [tensor]
        import paddle.distributed as dist

        found: list[Any] = []
        with peers_named():
            dist.all_gather(found, tensor, group=self.handle)
        return found

    def send(self, tensor: Any, *, to: int) -> None:
        """Give the tensor to the group's rank `to`, which must be receiving, or come to it."""
        import paddle.distributed as dist

        with peers_named():
            dist.send(tensor, dst=self.ranks[to], group=self.handle)

    def recv_(self, tensor: Any, *, source: int) -> None:
        """Fill the tensor with what the group's rank `source` sends."""
        import paddle.distributed as dist

        with peers_named():
            dist.recv(tensor, src=self.ranks[source], group=self.handle)


ALONE = Group()


def join_world(rank: int, world_size: int) -> Group:
    """The group of all ranks, by the PADDLE_* environment. Raises PeerError where the others cannot be reached."""
    if world_size == 1:
        return ALONE
    import paddle.distributed as dist

    try:
        dist.init_parallel_env()
        found = (dist.get_rank(), dist.get_world_size())
    except (RuntimeError, ValueError, OSError) as error:
        raise PeerError(f"rank {rank} of {world_size} could not join the others: {error}") from error
    if found != (rank, world_size):
        raise PeerError(f"joined as rank {found[0]} of {found[1]}, not {rank} of {world_size}")
    return Group(ranks=tuple(range(world_size)), rank=rank)


def leave_world(world: Group) -> None:
    """Leave the other ranks."""
    if world.size > 1:
        import paddle.distributed as dist

        dist.destroy_process_group()


def split_world(world: Group, parts: Sequence[Sequence[int]]) -> Group:
    """This rank's one of several disjoint groups that together are the world; all ranks must call with the same.

    One group after the other: those that are joined at once find each other's addresses in Paddle's store.
    """
    mine = ALONE
    for ranks in parts:
        whole = len(ranks) == world.size
        handle = None
        if len(ranks) > 1 and not whole:
            import paddle.distributed as dist

            with peers_named():
                handle = dist.new_group(list(ranks))
            world.sum_(_one())
        if world.rank in ranks:
            mine = Group(ranks=tuple(ranks), rank=list(ranks).index(world.rank), handle=handle)
    return mine


def _one() -> Any:
    import paddle

    return paddle.ones([1])


class peers_named:
    """What a collective raises, as a PeerError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError | OSError | ValueError):
            raise PeerError(
                f"an exchange between the ranks failed, most likely since one of them ended: {error}"
            ) from error
