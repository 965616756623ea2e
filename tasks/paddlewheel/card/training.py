"""What the card says of the training: curves, throughput, attempts and resumes, and the proof of the order."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from paddlewheel.card.bars import whole_bar
from paddlewheel.card.machine import machine_facts, told_bytes
from paddlewheel.card.training_charts import progress_charts, progress_marks, rank_charts
from paddlewheel.errors import StorageError
from paddlewheel.manifest import Manifest, read_manifest
from paddlewheel.recipe import Recipe
from paddlewheel.storage import Store
from paddlewheel.training.checkpoint import newest_commit
from paddlewheel.training.curve import curve_of, read_attempts, read_counted, read_machines, read_ranks
from paddlewheel.training.damaged import Damaged, read_damaged
from paddlewheel.training.events import AttemptRecord, StepRecord
from paddlewheel.training.goodput import LOSSES, parse_goodput


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What a finished run tells. `commits`: steps; `seen`: sums of the hashes of the samples trained on, by epoch;
    `progress`: what the last commit says of the guard and of measurements; `left_out`: steps without an update;
    `gone_back`: steps to whose commit the state went back; `ranks`: each rank's steps; `machines`: looks at the nodes;
    `damaged`: commits that were set aside; `monitor`: goodput and diagnosis as in result.json."""

    curve: Sequence[StepRecord]
    attempts: Sequence[AttemptRecord]
    commits: Sequence[int]
    seen: Mapping[int, int]
    progress: Mapping[str, Any] = field(default_factory=dict)
    left_out: Sequence[int] = ()
    gone_back: Sequence[int] = ()
    damaged: Sequence[Damaged] = ()
    ranks: Mapping[int, Sequence[StepRecord]] = field(default_factory=dict)
    machines: Sequence[Mapping[str, Any]] = ()
    monitor: Mapping[str, Any] = field(default_factory=dict)


def read_training(store: Store, run: Manifest) -> TrainingRecord:
    """The record of a run that is trained to its end. Raises StorageError where its last commit is gone."""
    commit = newest_commit(store, run.key.removeprefix("runs/"))
    if commit is None:
        raise StorageError(f"{store.uri(run.key)} has no commit that counts; its checkpoints were removed")
    events = read_counted(store, run.key)
    steps = {event["step"] for event in events if event["event"] == "CheckpointEvent"} | {commit.step}
    anomalies = [event for event in events if event["event"] == "AnomalyEvent"]
    result_key = f"{run.key}/result.json"
    facts = read_manifest(store, result_key).facts if store.stat(result_key) is not None else {}
    curve = curve_of(events)
    return TrainingRecord(
        curve=curve,
        attempts=read_attempts(store, run.key),
        commits=sorted(steps),
        seen=commit.order,
        progress=commit.progress,
        left_out=sorted({event["step"] for event in anomalies if event["back_to"] is None}),
        gone_back=[event["back_to"] for event in anomalies if event["back_to"] is not None],
        damaged=read_damaged(store, run.key.removeprefix("runs/")),
        ranks=read_ranks(store, run.key, curve),
        machines=read_machines(store, run.key, events),
        monitor={name: facts[name] for name in ("goodput", "diagnosis") if name in facts},
    )


def training_view(recipe: Recipe, run: Manifest, record: TrainingRecord) -> dict[str, Any]:
    """Charts, facts and tables of the section, and the notes of the tile that counts the steps."""
    restarts = len(record.attempts) - 1
    told = f"interrupted {'once' if restarts == 1 else f'{restarts} times'}" if restarts > 0 else "without interruption"
    return {
        "steps": f"{record.curve[-1].step:,}" if record.curve else "–",
        "steps_notes": [f"{_epochs(recipe.training.epochs)} of {recipe.training.global_batch:,} rows a batch", told],
        "diagnosis": [_sentences(one) for one in record.monitor.get("diagnosis", ())],
        "goodput": _goodput(record),
        "charts": [
            *progress_charts(
                record.curve, progress_marks(record.commits, record.attempts, record.left_out, record.gone_back)
            ),
            *rank_charts(record.ranks),
        ],
        "facts": _facts(recipe, record),
        "attempts": _attempts(record.attempts),
        "order": _order(run, record.seen, _epochs_done(run, record)),
    }


def _sentences(finding: Mapping[str, Any]) -> str:
    """What is wrong, and what to change."""
    return " ".join(f"{told[:1].upper()}{told[1:]}." for told in (finding["text"], f"to change: {finding['setting']}"))


def _goodput(record: TrainingRecord) -> dict[str, Any] | None:
    """The sentence and the bar; None where no result says it."""
    if "goodput" not in record.monitor:
        return None
    goodput = parse_goodput(record.monitor["goodput"])
    values = {"steps": goodput.steps, **goodput.losses}
    return {
        "sentence": f"Goodput {goodput.share:.1%}: of {_duration(goodput.seconds)} from the first attempt's start to "
        f"the end, {_duration(goodput.steps)} went into steps that count.",
        "bar": whole_bar("Where the time went", values, labels={"steps": "steps that count", **LOSSES}),
    }


def _facts(recipe: Recipe, record: TrainingRecord) -> list[tuple[str, str]]:
    curve = record.curve
    training, optimizer = recipe.training, recipe.training.optimizer
    seconds = sum(one.seconds for one in curve)
    speeds = [one.rows / one.seconds for one in curve if one.seconds > 0]
    first, last = curve[: len(curve) // 20 or 1], curve[-(len(curve) // 20 or 1) :]
    facts = [
        ("Network", f"{recipe.model.name}, {_params(recipe.model.params)}"),
        ("Strategy", f"{training.strategy}, {training.sync} gradients, {training.precision}"),
        ("Ranks", ", then ".join(dict.fromkeys(str(attempt.world_size) for attempt in record.attempts))),
        ("Optimizer", f"{optimizer.name}, peak learning rate {optimizer.learning_rate:g}, {training.schedule.name}"),
        ("Seed", str(training.seed)),
    ]
    facts += _progress_facts(record.progress)
    facts += [
        (
            "Damaged commit",
            f"step {one.step:,} of attempt {one.attempt}: {one.reason}; attempt {one.found_by} went on from step "
            f"{one.went_on_from:,}, {one.lost_steps:,} steps were done again",
        )
        for one in record.damaged
    ]
    if curve:
        facts += [
            ("Loss", f"{statistics.mean(one.loss for one in first):.4f} in the first twentieth of the steps, "
                     f"{statistics.mean(one.loss for one in last):.4f} in the last"),
            ("Time in steps", _duration(seconds)),
            ("Throughput", f"{statistics.median(speeds):,.0f} samples a second (median)" if speeds else "–"),
        ]  # fmt: skip
    sent = [one.sent_bytes for one in curve if one.sent_bytes]
    if sent:
        told = f"{told_bytes(sum(sent) / len(curve))} a step and rank, {told_bytes(sum(sent))} a rank in all"
        facts.append(("Exchange", f"{training.sync}: {told}"))
    facts += machine_facts(record.machines)
    return facts


def _progress_facts(progress: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the guard left out, and what was measured on rows kept aside."""
    guard, measured = progress.get("guard", {}), progress.get("validation", {})
    facts = []
    if guard.get("skipped"):
        passed = ", ".join(f"{step} of epoch {epoch}" for epoch, step in guard["passed"])
        told = f"{guard['skipped']} steps; the state went back {guard['rollbacks']} times"
        facts.append(("Updates left out", told + (f", and batch {passed} was passed over" if passed else "")))
    if measured.get("best_value") is not None:
        told = f"best {measured['metric']} {measured['best_value']:.4f} after step {measured['best_step']:,}"
        facts.append(("Rows kept aside", told + (", ended early by it" if measured["stopped"] else "")))
    return facts


def _attempts(attempts: Sequence[AttemptRecord]) -> dict[str, Any]:
    rows = [
        [
            str(attempt.attempt),
            str(attempt.world_size),
            f"step {attempt.resumed_from_step:,}" if attempt.resumed_from_step else "the beginning",
            f"{attempt.last_step:,}",
            attempt.verdict or attempt.ended or "no word: it was killed together with its agent",
        ]
        for attempt in attempts
    ]
    return {"columns": ["Attempt", "Ranks", "Went on from", "Last step", "How it ended"], "right": [1, 3], "rows": rows}


def _epochs_done(run: Manifest, record: TrainingRecord) -> int:
    """Epochs that were trained to their end: all, but for a training that its measurements ended early."""
    epochs, measured = int(run.facts["epochs"]), record.progress.get("validation", {})
    return measured["step"] * epochs // int(run.facts["total_steps"]) if measured.get("stopped") else epochs


def _order(run: Manifest, seen: Mapping[int, int], epochs_done: int) -> dict[str, Any]:
    """Each epoch must see each training row once, so that its sum of hashes is that of all rows."""
    demanded, epochs = int(run.facts["order_expected"]), range(1, epochs_done + 1)
    wrong = [epoch for epoch in epochs if seen.get(epoch) != demanded]
    if wrong:
        told = ", ".join(map(str, wrong))
        sentence = f"NOT PROVEN for epoch {told} of {len(epochs)}: samples were left out or trained on twice."
    else:
        each = f"each of {len(epochs)} epochs" if len(epochs) > 1 else "the epoch"
        sentence = (
            f"Each of {run.facts['num_train_rows']:,} samples was trained on exactly once in {each}: the sum of hashes "
            "over the samples that the ranks really saw is the one that the data demand."
        )
    rows = [
        [
            str(epoch),
            Markup("<code>{}</code>").format(f"{demanded:016x}"),
            Markup("<code>{}</code>").format(f"{seen[epoch]:016x}" if epoch in seen else "none"),
            "DIFFERENT" if epoch in wrong else "equal",
        ]
        for epoch in epochs
    ]
    return {"sentence": sentence, "columns": ["Epoch", "Sum demanded", "Sum seen", ""], "right": [], "rows": rows}


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' if count != 1 else ''}"


def _params(params: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in params.items()) or "its defaults"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
