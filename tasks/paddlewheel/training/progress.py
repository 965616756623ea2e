"""Where a training stands, for people: one line, and the numbers of a progress bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paddlewheel.manifest import Manifest
from paddlewheel.training.attempts import Attempt
from paddlewheel.training.goodput import goodput_line, parse_goodput
from paddlewheel.training.ranks import Rank


@dataclass(frozen=True, kw_only=True)
class Progress:
    """`line` says it all; the rest is there once the ranks train."""

    line: str
    phase: str = ""
    attempt: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    rows_per_second: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def progress_of(ranks: Sequence[Rank], run: Manifest, attempt: Attempt, *, seconds: float) -> Progress | None:
    """What rank 0's last heartbeat says; None before its first."""
    beat = ranks[0].heartbeat()
    if beat is None:
        return None
    phase, step = str(beat["phase"]), int(beat.get("step") or 0)
    total, epochs = int(run.facts["total_steps"]), int(run.facts["epochs"])
    if phase not in ("train", "save", "done") or beat.get("loss") is None:
        return Progress(line=f"{phase} ({seconds:.0f} s)", phase=phase, attempt=attempt.number, total_steps=total)
    rows = float(beat.get("rows_per_second") or 0.0)
    line = f"epoch {beat['epoch']}/{epochs}  step {step}/{total}  loss {beat['loss']:.4f}"
    line += f"  lr {beat.get('learning_rate', 0.0):.2g}  {rows:,.0f} rows/s"
    return Progress(
        line=line,
        phase=phase,
        attempt=attempt.number,
        epoch=int(beat["epoch"]),
        epochs=epochs,
        step=step,
        total_steps=total,
        loss=float(beat["loss"]),
        rows_per_second=rows,
    )


def lines_of_result(result: Manifest) -> list[str]:
    """What a finished training came to, its goodput, and what held it up, where anything did."""
    facts = result.facts
    return [
        _line_of_result(facts),
        goodput_line(parse_goodput(facts["goodput"])),
        *(f"{one['text']}; {one['setting']}" for one in facts["diagnosis"]),
    ]


def _line_of_result(facts: Mapping[str, Any]) -> str:
    """Numbers that a killed agent took with it are left out."""
    parts = [f"trained: {facts['steps']} steps, each sample once in each of {facts['epochs']} epochs"]
    measured = facts.get("validation", {})
    if measured.get("best_value") is not None:
        best = f"{measured['metric']} {measured['best_value']:.4f}"
        if measured["result_step"] == measured["best_step"]:
            parts.append(f"the result is step {measured['result_step']}, with the best {best}")
        else:
            parts.append(f"the best {best} was at step {measured['best_step']}")
    left_out = facts.get("left_out")
    if left_out:
        parts.append(f"{left_out['skipped']} steps left out, {len(left_out['passed'])} batches passed over")
    if facts["final_loss"] is not None:
        parts.append(f"final loss {facts['final_loss']:.4f}")
    if facts["rows_per_second"] is not None:
        parts.append(f"{facts['rows_per_second']:,.0f} rows/s")
    if len(facts["attempts"]) > 1:
        resumed = ", ".join(str(one["resumed_from_step"]) for one in facts["attempts"][1:])
        parts.append(f"{len(facts['attempts'])} attempts (went on from step {resumed})")
    return ", ".join(parts)
