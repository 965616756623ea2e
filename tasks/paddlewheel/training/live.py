"""The diagnosis of a training under way: from what this node's ranks have told and not yet published, once a minute."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from paddlewheel.recipe import Training
from paddlewheel.training.curve import step_record
from paddlewheel.training.diagnosis import diagnose
from paddlewheel.training.events import MachineEvent, StepRecord
from paddlewheel.training.ranks import Rank

LIVE_SECONDS = 60.0
MOST_BYTES = 1 << 18  # of a rank's file: some six hundred steps


class LiveDiagnosis:
    """Lines about what holds an attempt up, each kind of trouble once."""

    def __init__(self, ranks: Sequence[Rank], training: Training) -> None:
        self.ranks, self.training = ranks, training
        self.told: set[str] = set()
        self.looked = time.monotonic()

    def poll(self, machine: MachineEvent | None) -> list[str]:
        """What is new, where it is time to look. machine: the last look at this node."""
        if time.monotonic() - self.looked < LIVE_SECONDS:
            return []
        self.looked = time.monotonic()
        steps = {rank.number: recent_steps(rank) for rank in self.ranks}
        found = diagnose(steps, [asdict(machine)] if machine else [], None, self.training)
        new = [one for one in found if one.kind not in self.told]
        self.told |= {one.kind for one in new}
        return [f"so far: {one.text}; {one.setting}" for one in new]


def recent_steps(rank: Rank) -> list[StepRecord]:
    """Steps in a rank's file, which it empties at each commit; a line that it is writing is passed over."""
    try:
        with (rank.folder / f"rank-{rank.number}.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST_BYTES))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return []
    whole = [line for line in lines[1 if size > MOST_BYTES else 0 :] if line.endswith(b"\n")]
    events = [json.loads(line) for line in whole]
    return [step_record(event) for event in events if event["event"] == "EndStepEvent"]
