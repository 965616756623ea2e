"""How an attempt stands, from its ranks' exits and heartbeats: goes on, done, stopped, dead, or too late."""

from __future__ import annotations

import signal
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paddlewheel.recipe import Resources
from paddlewheel.training.oom import count_oom_kills
from paddlewheel.training.ranks import Rank

EXIT_KINDS = {
    0: "done", 10: "user", 11: "data", 12: "memory", 13: "node", 14: "stopped", 15: "hang", 16: "died", 17: "fenced",
    18: "storage",
}  # fmt: skip
KIND_CODES = {kind: code for code, kind in EXIT_KINDS.items()}
GATHER_SECONDS = 1.5
STEPS_FOR_MEDIAN = 50


@dataclass(frozen=True, kw_only=True)
class End:
    """Why the ranks of an attempt do not go on. `kind` as in EXIT_KINDS.

    next_micro_batch: with how many rows at once the next attempt starts, where this one had not the memory for more.
    retry: whether a kind that a retry may mend can be mended in this case.
    """

    kind: str
    message: str
    rank: int | None = None
    signal: int | None = None
    trace: str = ""
    next_micro_batch: int | None = None
    retry: bool = True


@dataclass(kw_only=True)
class Watch:
    """Deadlines of one attempt; `look` is called a few times a second."""

    ranks: Sequence[Rank]
    resources: Resources
    begun: float = field(default_factory=time.monotonic)
    step: int = 0  # global steps done; at first those of the commit that the attempt goes on from
    moves: int = 0  # what all ranks did that is no step: chunks measured, states taken back
    training: bool = False
    moved_at: float = field(default_factory=time.monotonic)
    phase: str = "start"
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_FOR_MEDIAN))
    first_death_at: float | None = None
    oom_kills: int | None = field(default_factory=count_oom_kills)

    def look(self) -> End | None:
        """None while the attempt goes on. A death is judged a moment later, so that the first cause can be told."""
        codes = [rank.process.poll() for rank in self.ranks]
        if all(code == 0 for code in codes):
            return End(kind="done", message="all ranks ended well")
        ended = [code for code in codes if code is not None and code != 0]
        if ended:
            self.first_death_at = self.first_death_at or time.monotonic()
            if None not in codes or time.monotonic() - self.first_death_at > GATHER_SECONDS:
                return self._judge(codes)
            return None
        return self._check_deadlines([rank.heartbeat() for rank in self.ranks])

    def _judge(self, codes: Sequence[int | None]) -> End:
        """The cause of a death, by the ranks' last words and by who still lives."""
        end = judge_death(self.ranks, codes)
        silent = [rank.number for rank, code in zip(self.ranks, codes, strict=True) if code is None]
        if end.kind == "node" and silent:
            # gloo gives up on a peer after 30 s, which may be before the deadline of a step.
            told = f"rank {silent[0]} has not answered the others since step {self.step} ({end.message})"
            return End(kind="hang", message=told, rank=silent[0])
        if end.kind == "died" and end.signal == signal.SIGKILL and self.oom_kills is not None:
            kills = (count_oom_kills() or 0) - self.oom_kills
            if kills > 0:
                told = f"{end.message}, and the kernel counts {kills} more out-of-memory kills than at the start"
                return replace(end, kind="memory", message=told)
        return end

    def _check_deadlines(self, beats: Sequence[dict[str, Any] | None]) -> End | None:
        now, resources = time.monotonic(), self.resources
        known = [beat for beat in beats if beat is not None]
        step = min((int(beat.get("step") or 0) for beat in known), default=0) if len(known) == len(beats) else 0
        phases = sorted({beat["phase"] for beat in known}) if known else ["start"]
        phase = phases[0] if len(phases) == 1 else "/".join(phases)
        if not self.training and "train" in phases:
            self.training, self.moved_at = True, now
        if self.training and step > self.step:
            self.step_seconds.append((now - self.moved_at) / (step - self.step))
            self.step, self.moved_at = step, now
        if phase != self.phase:
            self.phase, self.moved_at = phase, now
        moves = min((int(beat.get("moves") or 0) for beat in known), default=0)
        if moves > self.moves:
            # A state that was taken back has fewer steps done than it had.
            self.moves, self.moved_at, self.step = moves, now, min(self.step, step)
        waited = now - self.moved_at
        if len(known) < len(beats) or phases[0] in ("start", "rendezvous") or "rendezvous" in phases:
            if now - self.begun > resources.rendezvous_seconds:
                silent = [number for number, beat in enumerate(beats) if beat is None]
                who = f"rank {silent[0]} has not spoken" if silent else f"the ranks are at {phase}"
                return self._hang(f"{who} {resources.rendezvous_seconds} s after the start", "rendezvous_seconds")
            return None
        if not self.step_seconds:
            if waited > resources.first_step_seconds:
                return self._hang(f"no step in {waited:.0f} s (phase {phase})", "first_step_seconds")
            return None
        allowed = max(resources.step_stall_seconds, resources.step_stall_factor * statistics.median(self.step_seconds))
        if waited > allowed:
            behind = [number for number, beat in enumerate(known) if int(beat.get("step") or 0) == step]
            rank = behind[0] if len(behind) < len(known) else None
            where = "" if rank is None else f" on rank {rank}"
            return self._hang(f"step {step + 1} has not ended{where} in {waited:.0f} s", "step_stall_seconds", rank)
        return None

    def _hang(self, what: str, setting: str, rank: int | None = None) -> End:
        return End(kind="hang", message=f"{what}; the deadline is resources.{setting}", rank=rank)


def judge_death(ranks: Sequence[Rank], codes: Sequence[int | None]) -> End:
    """The first cause among the ranks that ended badly: one that says why, before one killed, before a victim."""
    ends = []
    for rank, code in zip(ranks, codes, strict=True):
        if code is None or code == 0:
            continue
        error = rank.error()
        kind = EXIT_KINDS.get(code, "died")
        if error is not None and kind != "stopped":
            told = f"rank {rank.number}: {error['type']}: {error['message']}"
            ends.append(End(kind=error["kind"], message=told, rank=rank.number, trace=error["trace"]))
        elif code < 0:
            name = signal.Signals(-code).name
            told = f"rank {rank.number} was killed by {name}"
            ends.append(End(kind="died", message=told, rank=rank.number, signal=-code))
        else:
            ends.append(End(kind=kind, message=f"rank {rank.number} ended with code {code}", rank=rank.number))
    return min(ends, key=_guilt)


def _guilt(end: End) -> int:
    """Low for a cause, high for what a cause does to others (gloo aborts the peers of a rank that is gone)."""
    if end.kind == "died":
        return 2 if end.signal == signal.SIGABRT else 1
    return 3 if end.kind == "node" else 1 if end.kind == "stopped" else 0
