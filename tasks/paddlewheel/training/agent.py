"""The agent of one node: starts the ranks of a run, watches them, restarts them from the last commit, says why it ends.

`python -m paddlewheel.training.agent RUN_URI --root ROOT …` is what a job runs; `run_agent` is the same in-process.
The exit codes are the contract with launchers (docs/architecture.md). Nothing here imports Paddle, so that an agent
starts in a fraction of a second and survives whatever its ranks die of.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from paddlewheel.errors import CheckpointError, PaddlewheelError
from paddlewheel.manifest import MANIFEST_NAME, Manifest, read_manifest
from paddlewheel.recipe import Resources, Training
from paddlewheel.storage import Store, open_store
from paddlewheel.training.aftermath import publish_end, publish_logs, publish_rest
from paddlewheel.training.attempts import Attempt, list_attempts, open_attempt
from paddlewheel.training.less_memory import with_less
from paddlewheel.training.live import LiveDiagnosis
from paddlewheel.training.machine import Machine
from paddlewheel.training.progress import Progress, lines_of_result, progress_of
from paddlewheel.training.ranks import dump_stacks, kill_ranks, start_ranks
from paddlewheel.training.result import publish_result
from paddlewheel.training.run import PASSED_RESOURCES, read_recipe, result_of
from paddlewheel.training.watch import KIND_CODES, End, Watch
from paddlewheel.training.workfolder import work_folder
from paddlewheel.training.writers import writer_connections

LOOK_SECONDS = 0.1
FENCE_SECONDS = 2.0
LINE_SECONDS = 5.0
TOLD_LINES = 20
BAR_SECONDS = 0.25
# Ends after which the same work may end better from the last commit, on this very node.
MENDED_BY_RESTART = ("died", "hang", "node")
log = logging.getLogger(__name__)
Tell = Callable[[dict[str, Any]], None]


def run_agent(run_uri: str, *, store: Store, resources: Resources, on_progress: Tell | None = None) -> int:
    """Train the run to its end; the exit code. A run that has its result is verified and left alone.

    on_progress gets {line, phase, attempt, epoch, epochs, step, total_steps, loss, rows_per_second}. SIGTERM and SIGINT
    ask for a commit and end with 14; a second SIGINT raises KeyboardInterrupt at once. Raises StorageError where the
    run or its result cannot be read.
    """
    run = read_manifest(store, run_uri)
    if result_of(store, run_uri) is not None:
        return 0
    key = run.key.removeprefix("runs/")
    training = read_recipe(store, run).training
    world_size = resources.nodes * resources.ranks_per_node
    with _listening() as stop:
        for restarts in range(resources.max_restarts + 1):
            attempt = open_attempt(store, key, world_size=world_size)
            _say_start(attempt, on_progress)
            end, step = _run_attempt(run, attempt, stop, training, store=store, resources=resources, tell=on_progress)
            if end.kind == "done":
                try:
                    result_uri = publish_result(store, run, list_attempts(store, key), training)
                except CheckpointError as error:
                    if not _is_fenced(store, run, attempt):
                        raise
                    _say(on_progress, f"attempt {attempt.number + 1} has begun elsewhere and goes on: {error}")
                    return KIND_CODES["fenced"]
                for line in lines_of_result(read_manifest(store, result_uri)):
                    _say(on_progress, line)
                return 0
            _say(on_progress, f"attempt {attempt.number} ended at step {step}: {end.message}")
            if end.kind not in MENDED_BY_RESTART and end.next_micro_batch is None:
                return KIND_CODES[end.kind]
            if restarts < resources.max_restarts:
                _say(on_progress, "restarting in place from the last commit")
    _say(on_progress, f"giving up after {restarts + 1} attempts; resources.max_restarts is {resources.max_restarts}")
    return KIND_CODES[end.kind] if end.kind in ("hang", "memory") else KIND_CODES["died"]


def _run_attempt(
    run: Manifest,
    attempt: Attempt,
    stop: threading.Event,
    training: Training,
    *,
    store: Store,
    resources: Resources,
    tell: Tell | None,
) -> tuple[End, int]:
    """One start of the ranks to its end: (why, the last step). The verdict is published, nothing is left running."""
    with work_folder() as folder:
        ranks = start_ranks(
            run_uri=store.uri(f"{run.key}/{MANIFEST_NAME}"),
            root=store.root,
            attempt=attempt.number,
            folder=folder,
            resources=resources,
            environment=os.environ,
            connections=writer_connections(training.writers),
        )
        stacks = ""
        try:
            watch = Watch(ranks=ranks, resources=resources, step=attempt.resumed_from_step)
            machine = Machine(store, run, attempt, ranks, device=resources.device)
            diagnosis = LiveDiagnosis(ranks, training)
            end = _watch(watch, run, attempt, stop, machine=machine, diagnosis=diagnosis, store=store, tell=tell)
            if end.kind == "hang":
                stacks = dump_stacks(ranks)
            if end.kind == "memory":
                beat = ranks[end.rank or 0].heartbeat() or {}
                end = with_less(end, training, attempt, str(beat.get("phase")))
        finally:
            kill_ranks(ranks)
        machine.publish()
        step = max([watch.step, *(int((rank.heartbeat() or {}).get("step") or 0) for rank in ranks)])
        if end.kind != "done":
            publish_rest(store, run, attempt, ranks)
        publish_end(store, run, attempt, end=end, step=step, ranks=ranks, stacks=stacks)
        if end.kind not in ("done", "stopped", "fenced"):
            number = end.rank or 0
            for line in (end.trace or ranks[number].log_tail(TOLD_LINES)).splitlines():
                _say(tell, f"rank {number}| {line}")
        logs = publish_logs(store, run, attempt, ranks)
        if end.kind not in ("done", "stopped", "fenced") and logs is not None:
            _say(tell, f"logs of all ranks: {logs}")
    return end, step


def _watch(
    watch: Watch,
    run: Manifest,
    attempt: Attempt,
    stop: threading.Event,
    *,
    machine: Machine,
    diagnosis: LiveDiagnosis,
    store: Store,
    tell: Tell | None,
) -> End:
    """Look at the ranks until they end. A stop is asked of them once, and awaited for shutdown_seconds."""
    stop_at: float | None = None
    told_at = fenced_at = time.monotonic()
    interval = BAR_SECONDS if sys.stderr.isatty() else LINE_SECONDS
    begun, first = time.monotonic(), True
    while True:
        end = watch.look()
        if end is not None:
            if stop.is_set() and end.kind in MENDED_BY_RESTART:
                return dataclasses.replace(end, kind="stopped", message=f"asked to stop; {end.message}")
            return end
        machine.poll(watch.step)
        for line in diagnosis.poll(machine.last):
            _say(tell, line)
        now = time.monotonic()
        if stop.is_set() and stop_at is None:
            stop_at = now
            (watch.ranks[0].folder / "stop").touch()
            _say(tell, "asked to stop: committing at the end of this step")
        if stop_at is not None and now - stop_at > watch.resources.shutdown_seconds:
            return End(kind="stopped", message="asked to stop; the ranks did not commit in resources.shutdown_seconds")
        if now - fenced_at > FENCE_SECONDS:
            fenced_at = now
            if _is_fenced(store, run, attempt):
                return End(kind="fenced", message=f"attempt {attempt.number + 1} of this run has begun elsewhere")
        if tell is not None and (now - told_at > interval or (first and watch.step_seconds)):
            told_at, first = now, first and not watch.step_seconds
            progress = progress_of(watch.ranks, run, attempt, seconds=now - begun)
            if progress is not None:
                tell(progress.to_json())
        time.sleep(LOOK_SECONDS)


def _is_fenced(store: Store, run: Manifest, attempt: Attempt) -> bool:
    """Whether a newer attempt has begun."""
    return store.stat(f"{run.key}/attempts/{attempt.number + 1}.json") is not None


def _say_start(attempt: Attempt, tell: Tell | None) -> None:
    origin = f"from the commit at step {attempt.resumed_from_step}" if attempt.resumed_from_step else "from the start"
    ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
    less = f", micro-batches of {attempt.micro_batch} rows" if attempt.micro_batch is not None else ""
    _say(tell, f"attempt {attempt.number}: {ranks}, {origin}{less}")


def _say(tell: Tell | None, line: str) -> None:
    log.info("%s", line) if tell is None else tell(Progress(line=line).to_json())


@contextlib.contextmanager
def _listening() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets; the handlers before are restored. Outside the main thread never set."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def heed(number: int, _: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt  # somebody at a terminal who will not wait for the commit
        stop.set()

    before = {number: signal.signal(number, heed) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """The agent as a process: progress as lines on standard output."""
    parser = argparse.ArgumentParser(prog="paddlewheel.training.agent", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run_uri", metavar="RUN_URI")
    parser.add_argument("--root", required=True)
    for name in PASSED_RESOURCES:
        kind = {"device": str, "step_stall_factor": float}.get(name, int)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=None)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        store = open_store(options.root)
        run = read_manifest(store, options.run_uri)
        recipe = read_recipe(store, run)
        told = {name: getattr(options, name) for name in PASSED_RESOURCES if getattr(options, name) is not None}
        resources = dataclasses.replace(recipe.resources, **told)
        return run_agent(
            options.run_uri, store=store, resources=resources, on_progress=lambda told: print(told["line"], flush=True)
        )
    except PaddlewheelError as error:
        print(f"error: {error}", flush=True)
        return {2: 11, 3: 11, 5: 18}.get(error.exit_code, 10)


if __name__ == "__main__":
    sys.exit(main())
