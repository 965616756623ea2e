"""What an attempt leaves in the store when its ranks have ended: events not yet published, the verdict, their logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from paddlewheel.errors import StorageError
from paddlewheel.manifest import Manifest
from paddlewheel.storage import Store
from paddlewheel.training.attempts import Attempt, Verdict, publish_verdict
from paddlewheel.training.ranks import Rank
from paddlewheel.training.watch import KIND_CODES, End

MAX_LOG_BYTES = 1 << 20
log = logging.getLogger(__name__)


def publish_rest(store: Store, run: Manifest, attempt: Attempt, ranks: Sequence[Rank]) -> None:
    """Publish the events that dead ranks had not yet published."""
    for rank in ranks:
        path = rank.folder / f"rank-{rank.number}.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]  # a rank may have died in the middle of a line
        if whole:
            last = json.loads(whole[-1])["step"]
            key = f"{run.key}/events/attempt-{attempt.number}/rank-{rank.number}/step-{last}-rest.jsonl"
            store.publish(key, b"".join(whole))


def publish_end(
    store: Store, run: Manifest, attempt: Attempt, *, end: End, step: int, ranks: Sequence[Rank], stacks: str
) -> None:
    """Publish the verdict, with the last words of the rank that is to blame."""
    speaker = ranks[end.rank or 0]
    verdict = Verdict(
        attempt=attempt.number,
        exit_code=KIND_CODES[end.kind],
        kind=end.kind,
        message=end.message,
        step=step,
        resumed_from_step=attempt.resumed_from_step,
        rank=end.rank,
        signal=end.signal,
        trace=end.trace,
        stacks=stacks,
        log_tail="" if end.kind == "done" else speaker.log_tail(),
        next_micro_batch=end.next_micro_batch,
        retry=end.retry,
    )
    publish_verdict(store, run.key.removeprefix("runs/"), verdict)


def publish_logs(store: Store, run: Manifest, attempt: Attempt, ranks: Sequence[Rank]) -> str | None:
    """Publish what each rank wrote, the last MiB of it; the URI of their folder.

    None, with a warning, where the store refuses: a log must not cost a training.
    """
    folder = f"{run.key}/logs/attempt-{attempt.number}"
    try:
        for rank in ranks:
            with rank.log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - MAX_LOG_BYTES))
                store.publish(f"{folder}/rank-{rank.number}.log", file.read())
    except (StorageError, OSError) as error:
        log.warning("the ranks' logs are not kept: %s", error)
        return None
    return store.uri(folder)
