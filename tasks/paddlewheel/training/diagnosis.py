"""What held a training up, in plain words, with the setting to change; nothing where all is well.

A pure function of figures. A straggler is told by its own work (data, forward, backward, optimizer) and never by its
exchange: there the others wait for it, so that theirs is long and its own is short. What the exchange itself costs is
hence the shortest that any rank had.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paddlewheel.recipe import Training
from paddlewheel.training.events import StepRecord
from paddlewheel.training.goodput import Goodput

PARTS = ("data", "forward", "backward", "exchange", "optimizer")
OWN_PARTS = ("data", "forward", "backward", "optimizer")
WARM_UP_STEPS, FEWEST_STEPS = 5, 20  # of an attempt, left out; after them, for a judgement
DATA_SHARE, EXCHANGE_SHARE = 0.25, 0.35
STRAGGLER_EXCESS, STRAGGLER_SHARE = 0.25, 0.1  # beyond the median of the others; of the step
MEMORY_SHARE, GPU_MEMORY_SHARE = 0.9, 0.95
CHECKPOINT_SHARE, ROLLED_BACK_SHARE, EVALUATION_SHARE = 0.05, 0.1, 0.25
LEAST_LOST_SECONDS = 5.0  # of what is lost between steps; a training of a few seconds has nothing to save
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: what, in a sentence with its figures; what to change; the figures by name."""

    kind: str
    text: str
    setting: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For result.json."""
        return asdict(self)


def diagnose(
    steps: Mapping[int, Sequence[StepRecord]],
    machines: Sequence[Mapping[str, Any]],
    goodput: Goodput | None,
    training: Training,
) -> list[Finding]:
    """What to change, the costliest first. steps: by rank, those that count; machines: MachineEvents as dicts."""
    found: list[Finding] = []
    means = {rank: mean_parts(records) for rank, records in steps.items()}
    if means and all(means.values()):
        found += _straggler(means, training)
        found += _data(means, training)
        found += _exchange(means, steps, training)
    found += _memory(machines, training)
    if goodput is not None:
        found += _between_steps(goodput, training)
    return found


def mean_parts(records: Sequence[StepRecord]) -> dict[str, float]:
    """Mean seconds of each part of a rank's step, without the first steps of each attempt; empty where too few."""
    seen: dict[int, int] = {}
    settled = []
    for record in records:
        seen[record.attempt] = seen.get(record.attempt, 0) + 1
        if seen[record.attempt] > WARM_UP_STEPS:
            settled.append(record)
    if len(settled) < FEWEST_STEPS:
        return {}
    return {part: statistics.fmean(record.parts.get(part, 0.0) for record in settled) for part in PARTS}


def _straggler(means: Mapping[int, Mapping[str, float]], training: Training) -> Iterator[Finding]:
    # A pipeline's stage waits for the one before within its forward pass: its parts say nothing of its own work.
    if len(means) < 2 or training.parallel.pipeline > 1:
        return
    own = {rank: sum(parts[part] for part in OWN_PARTS) for rank, parts in means.items()}
    slowest = max(own, key=lambda rank: own[rank])
    usual = statistics.median(seconds for rank, seconds in own.items() if rank != slowest)
    excess, step = own[slowest] - usual, _step(means)
    if excess < STRAGGLER_EXCESS * usual or excess < STRAGGLER_SHARE * step:
        return
    others = {part: statistics.median(means[rank][part] for rank in means if rank != slowest) for part in OWN_PARTS}
    part = max(OWN_PARTS, key=lambda one: means[slowest][one] - others[one])
    setting = (
        "look at what else runs on its processors; where the node is slower for good, training.parallel.shares: "
        "measured gives it fewer rows"
        if training.parallel.shares == "equal" and training.parallel.tensor == 1
        else "look at what else runs on its processors, or leave the node out"
    )
    yield Finding(
        kind="straggler",
        text=f"rank {slowest} works {own[slowest] / usual:.1f} times as long as the others ({_ms(own[slowest])} a "
        f"step, they {_ms(usual)}), most of it in {part}: {excess / step:.0%} of each step is the others' wait for it",
        setting=setting,
        figures={"rank": slowest, "seconds": own[slowest], "others_seconds": usual, "share": excess / step},
    )


def _data(means: Mapping[int, Mapping[str, float]], training: Training) -> Iterator[Finding]:
    data, step = statistics.median(parts["data"] for parts in means.values()), _step(means)
    if data < DATA_SHARE * step:
        return
    setting = "more ranks (resources.ranks_per_node, nodes), since each reads its own slice of a batch"
    if training.micro_batch is not None:
        setting = f"a larger training.micro_batch (now {training.micro_batch}), or {setting}"
    yield Finding(
        kind="data",
        text=f"data-bound: a step waits {_ms(data)} of its {_ms(step)} for its rows ({data / step:.0%})",
        setting=setting,
        figures={"seconds": data, "step_seconds": step, "share": data / step},
    )


def _exchange(
    means: Mapping[int, Mapping[str, float]], steps: Mapping[int, Sequence[StepRecord]], training: Training
) -> Iterator[Finding]:
    if len(means) < 2:
        return
    exchange, step = min(parts["exchange"] for parts in means.values()), _step(means)
    if exchange < EXCHANGE_SHARE * step:
        return
    sent = statistics.fmean(record.sent_bytes for record in next(iter(steps.values())))
    rounds = training.strategy != "zero"  # whose ranks each update a part, and so at every step
    setting = {
        "dense": "training.sync: bf16 sends half, topk a hundredth"
        + (", local_sgd at every eighth step alone" if rounds else ""),
        "bf16": f"training.sync: topk{' or local_sgd' if rounds else ''} sends less",
        "topk": f"a smaller training.exchange.ratio{', or training.sync: local_sgd' if rounds else ''}",
        "local_sgd": f"more training.exchange.steps (now {training.exchange.steps})",
    }.get(training.sync, "another training.sync")
    yield Finding(
        kind="exchange",
        text=f"exchange-bound: {_ms(exchange)} of a step's {_ms(step)} ({exchange / step:.0%}) go into the exchange of "
        f"{sent / MIB:,.1f} MiB a rank",
        setting=f"{setting}; a larger training.global_batch has more work for each exchange (docs/exchanges.md)",
        figures={"seconds": exchange, "step_seconds": step, "share": exchange / step, "sent_bytes": sent},
    )


def _memory(machines: Sequence[Mapping[str, Any]], training: Training) -> Iterator[Finding]:
    """Of each node, and of each GPU, that came near its limit."""
    most: dict[str, tuple[float, int, int, float]] = {}
    for look in machines:
        places = [(f"node {look['node']}", look["memory_bytes"], look["memory_limit_bytes"], MEMORY_SHARE)]
        places += [
            (f"GPU {gpu['index']} of node {look['node']}", gpu["memory_bytes"], gpu["memory_limit_bytes"],
             GPU_MEMORY_SHARE)
            for gpu in look["gpus"]
        ]  # fmt: skip
        for name, taken, limit, share in places:
            if taken and limit and taken / limit >= max(share, most.get(name, (0.0,))[0]):
                most[name] = (taken / limit, taken, limit, share)
    rows = f" (now {training.micro_batch})" if training.micro_batch is not None else ""
    for name, (share, taken, limit, _) in most.items():
        yield Finding(
            kind="memory",
            text=f"memory near the limit: {name} had {taken / MIB:,.0f} of {limit / MIB:,.0f} MiB taken ({share:.0%})",
            setting=f"a smaller training.micro_batch{rows} takes less for the same step, training.recompute less for "
            "activations; or fewer ranks a node (resources.ranks_per_node)",
            figures={"bytes": taken, "limit_bytes": limit, "share": share},
        )


def _between_steps(goodput: Goodput, training: Training) -> Iterator[Finding]:
    """Time that is lost between steps, or with them."""
    every = (
        f"training.checkpoint_every_seconds (now {training.checkpoint_every_seconds})"
        if training.checkpoint_every_seconds is not None
        else f"training.checkpoint_every_steps (now {training.checkpoint_every_steps})"
    )
    rules = (
        ("checkpoint", CHECKPOINT_SHARE, "checkpoint-bound: steps waited {told} for commits", f"a larger {every}"),
        ("rolled_back", ROLLED_BACK_SHARE, "work lost: {told} went into steps that were taken back",
         f"a smaller {every} loses less at each death; the attempts' verdicts say what they died of"),
        ("evaluation", EVALUATION_SHARE, "evaluation-bound: {told} went into measuring on the rows kept aside",
         f"a larger training.validation.every_epochs (now {training.validation.every_epochs}), or a smaller fraction"),
    )  # fmt: skip
    for name, least, text, setting in rules:
        lost = goodput.losses[name]
        share = lost / (goodput.steps + lost) if lost else 0.0
        if share >= least and lost >= LEAST_LOST_SECONDS:
            yield Finding(
                kind=name,
                text=text.format(told=f"{lost:,.1f} s ({share:.0%} of {goodput.steps + lost:,.1f} s)"),
                setting=setting,
                figures={"seconds": lost, "share": share},
            )


def _step(means: Mapping[int, Mapping[str, float]]) -> float:
    """Mean seconds of a step, which the exchange makes equal for all ranks but for the last part's jitter."""
    return statistics.fmean(sum(parts.values()) for parts in means.values()) or 1e-9


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
