"""One step of a training on one rank.

Order, learning rate and random numbers are pure functions of (seed, step, rank), so that a commit holds no state of
theirs: each step reseeds Paddle, numpy and random (about 10 µs), and a resumed training draws what the uninterrupted
one drew. On the same number of ranks it is bit for bit the same; on another the global batches and the mathematics are
the same, and only dropout draws otherwise. Rejected: saving the state of every generator of every rank.
"""

from __future__ import annotations

import time
from dataclasses import replace

from paddlewheel.data.loader import Batch, to_tensors
from paddlewheel.data.order import MASK, sample_hash
from paddlewheel.training.events import AnomalyEvent, EndStepEvent
from paddlewheel.training.fit import Fit
from paddlewheel.training.monitor import resident_bytes
from paddlewheel.training.optimizer import learning_rate, peak_rate
from paddlewheel.training.precision import caster
from paddlewheel.training.seeds import seed_all
from paddlewheel.training.strategies import Compute
from paddlewheel.training.sync import Exchanged

FIRST_IDS = 3  # of a bad batch, in its event


def run_step(
    fit: Fit, epoch: int, step_in_epoch: int, who: dict[str, int], *, stop: bool, commit: bool, clock: Clock
) -> tuple[EndStepEvent | AnomalyEvent, Exchanged]:
    """One global step on this rank's slice, which may be empty: what is told of it, what all ranks agreed on.

    A batch that is passed over, or whose update is left out, is visited all the same: it counts as a step.
    clock: begun by the caller, with what the step waited for before it began as its first part.
    """
    strategy, training, place = fit.strategy, fit.recipe.training, (epoch, step_in_epoch)
    group = strategy.data_group
    seed_all(fit.loader.seed, fit.step + 1, strategy.stream)
    batch = fit.loader.batch(epoch, step_in_epoch, group.rank, group.size, shares=fit.shares.weights)
    fit.mine[epoch] = (fit.mine.get(epoch, 0) + sample_hash(batch.sample_ids_B)) & MASK
    if fit.guard.passes_over(place):
        fit.copies.wait()
        end_step(fit, clock, updated=False)
        told = anomaly(fit, who, place, batch, ("passed", ""), clock=clock)
        return told, Exchanged(loss=0.0, norm=0.0, stop=False, commit=False)
    buffers = [(one, one.clone()) for one in fit.buffers]
    batches = [to_tensors(one) for one in micro_batches(batch, training.micro_batch)]
    clock.lap("data")
    scale = 1.0 if fit.scale is None else fit.scale.value
    weights = [scale * len(one) / batch.global_rows for one in batches]
    loss = strategy.backward(fit.model, batches, weights, Compute(cast=caster(training.precision), lap=clock.lap))
    clock.lap("backward")
    weight = len(batch) / batch.global_rows
    exchanged = fit.sync.exchange(loss, weight=weight, scale=scale, stop=stop, commit=commit)
    clock.lap("exchange")
    fault = judge(fit, place, exchanged)
    rate = learning_rate(fit.step, total_steps=fit.total_steps, peak=peak_rate(training), schedule=training.schedule)
    fit.copies.wait()
    clock.stand("checkpoint")
    if fault is None:
        strategy.before_update(fit.model)
        fit.optimizer.set_lr(rate)
        fit.optimizer.step()
    else:
        fit.sync.leave_out()
        for buffer, before in buffers:
            buffer.set_value(before)
    fit.sync.clear()
    clock.lap("optimizer")
    sent_bytes = exchanged.sent_bytes + end_step(fit, clock, updated=fault is None)
    fit.shares.add(clock.parts, len(batch), strategy)
    if fault is not None:
        return anomaly(fit, who, place, batch, (fault[0], f"{fault[1]:g}"), clock=clock), exchanged
    event = EndStepEvent(
        **who,
        epoch=epoch,
        step=fit.step,
        loss=exchanged.loss,
        learning_rate=rate,
        rows=batch.global_rows,
        seconds=clock.total,
        parts=clock.parts,
        rss_bytes=resident_bytes(),
        norm=exchanged.norm,
        sent_bytes=sent_bytes,
    )
    return event, exchanged


def judge(fit: Fit, place: tuple[int, int], exchanged: Exchanged) -> tuple[str, float] | None:
    """Why this rank leaves the step out: (kind, value); None where it counts."""
    if fit.scale is not None:
        overflow = fit.scale.overflows(exchanged.loss, exchanged.norm)
        value = fit.scale.value
        fit.scale.after(overflow=overflow)
        if overflow:
            return "overflow", value
    fault = fit.guard.fault(exchanged.loss, exchanged.norm)
    if exchanged.alike:
        fit.guard.note(place, bad=fault is not None, norm=exchanged.norm)
    else:
        settled = fit.sync.settled(fit.step + 1)
        fit.guard.note_own(place, bad=fault is not None, group=fit.strategy.data_group, settled=settled)
    return fault


def end_step(fit: Fit, clock: Clock, *, updated: bool) -> int:
    """Count the step, make what was updated known, and take it into the average; bytes sent."""
    fit.step += 1
    sent_bytes = fit.strategy.after_update(fit.model) if updated else 0
    sent_bytes += fit.sync.after_update(fit.step)
    clock.lap("exchange")
    if fit.average is not None and fit.sync.settled(fit.step):
        fit.average.update(fit.step, steps=fit.step - fit.averaged)
        fit.averaged = fit.step
    clock.lap("optimizer")
    return sent_bytes


def anomaly(
    fit: Fit, who: dict[str, int], place: tuple[int, int], batch: Batch, fault: tuple[str, str], *, clock: Clock
) -> AnomalyEvent:
    """What is told of a step that left the parameters as they were. fault: kind, value."""
    epoch, step_in_epoch = place
    kind, value = fault
    first_ids = tuple(int(one) for one in batch.sample_ids_B[:FIRST_IDS])
    return AnomalyEvent(
        **who,
        epoch=epoch,
        step=fit.step,
        kind=kind,
        value=value,
        batch=step_in_epoch,
        first_ids=first_ids,
        seconds=clock.total,
    )


def micro_batches(batch: Batch, rows: int | None) -> list[Batch]:
    """A rank's slice in order, in batches of at most `rows` rows; none where the slice is empty."""
    rows = rows or max(1, len(batch))
    return [
        replace(
            batch,
            sample_ids_B=batch.sample_ids_B[start : start + rows],
            labels_B=batch.labels_B[start : start + rows],
            ids_BF=batch.ids_BF[start : start + rows],
            dense_BD=batch.dense_BD[start : start + rows],
        )
        for start in range(0, len(batch), rows)
    ]


class Clock:
    """Seconds since its making, in parts. `checkpoint`: what was waited for a commit, no part of the total."""

    def __init__(self, *, checkpoint: float = 0.0) -> None:
        self.parts: dict[str, float] = {"checkpoint": round(checkpoint, 6)} if checkpoint else {}
        self.last = self.begin = time.perf_counter()

    def lap(self, name: str) -> None:
        """Ends a part of this name, which may come several times."""
        now = time.perf_counter()
        self.parts[name] = round(self.parts.get(name, 0.0) + now - self.last, 6)
        self.last = now

    def stand(self, name: str) -> None:
        """Ends a part of this name that is none of the total, where it took a microsecond."""
        now = time.perf_counter()
        waited = now - self.last
        if waited >= 1e-5:
            self.parts[name] = round(self.parts.get(name, 0.0) + waited, 6)
            self.last, self.begin = now, self.begin + waited

    @property
    def total(self) -> float:
        return self.last - self.begin
