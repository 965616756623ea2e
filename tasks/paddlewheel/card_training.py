"""What the card says of the training: curves, throughput, attempts and resumes, and the proof of the order."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from paddlewheel.card_plots import Mark, Series, chart, smooth

if TYPE_CHECKING:
    from paddlewheel.manifest import Manifest
    from paddlewheel.recipe import Recipe
    from paddlewheel.training.events import AttemptRecord, StepRecord


def training_view(
    recipe: Recipe, result: Manifest, curve: Sequence[StepRecord], attempts: Sequence[AttemptRecord]
) -> dict[str, Any]:
    """Charts, facts and tables of the section, and the notes of the tile that counts the steps."""
    resumes = [attempt for attempt in attempts if attempt.resumed_from_step]
    told = f"{len(resumes)} resume{'s' if len(resumes) != 1 else ''}" if resumes else "without interruption"
    return {
        "steps": f"{curve[-1].step + 1:,}" if curve else "–",
        "steps_notes": [f"{recipe.training.epochs} epochs of {recipe.training.global_batch:,} rows a batch", told],
        "charts": _charts(curve, attempts),
        "facts": _facts(recipe, curve, attempts),
        "attempts": _attempts(attempts),
        "order": _order(result),
    }


def _charts(curve: Sequence[StepRecord], attempts: Sequence[AttemptRecord]) -> list[Markup]:
    steps, losses = [float(record.step) for record in curve], [record.loss for record in curve]
    marks = [Mark(x=float(step), look="commit") for step in sorted({s for one in attempts for s in one.commits})]
    marks += [
        Mark(x=float(one.resumed_from_step), look="resume", label=f"resumed at {one.resumed_from_step:,}")
        for one in attempts
        if one.resumed_from_step
    ]
    speeds = [(float(record.step), record.samples / record.seconds) for record in curve if record.seconds > 0]
    fastest = statistics.quantiles([speed for _, speed in speeds], n=50)[-1] if len(speeds) > 1 else 1.0
    rates = [record.learning_rate for record in curve]
    return [
        chart(
            name="Training loss",
            x_label="global step (triangles: committed checkpoints)",
            y_label="loss of the batch",
            series=_with_average("each step", steps, losses),
            marks=marks,
        ),
        chart(
            name="Learning rate",
            x_label="global step",
            y_label="learning rate",
            series=[Series(label="", look="challenger", xs=steps, ys=rates)],
            y_range=(0, 1.08 * max(rates, default=1.0)),
        ),
        chart(
            name="Throughput",
            x_label="global step",
            y_label="samples a second",
            series=_with_average(
                "each step", [step for step, _ in speeds], [min(speed, fastest) for _, speed in speeds]
            ),
            y_range=(0, 1.08 * fastest),
        ),
    ]


def _with_average(label: str, xs: Sequence[float], ys: Sequence[float]) -> list[Series]:
    average = smooth(ys, span=max(5, len(ys) // 20))
    return [
        Series(label=label, look="raw", xs=xs, ys=ys),
        Series(label="smoothed", look="challenger", xs=xs, ys=average),
    ]


def _facts(recipe: Recipe, curve: Sequence[StepRecord], attempts: Sequence[AttemptRecord]) -> list[tuple[str, str]]:
    training, optimizer = recipe.training, recipe.training.optimizer
    seconds = sum(record.seconds for record in curve)
    speeds = [record.samples / record.seconds for record in curve if record.seconds > 0]
    first, last = curve[: len(curve) // 20 or 1], curve[-(len(curve) // 20 or 1) :]
    facts = [
        ("Network", f"{recipe.model.name}, {_params(recipe.model.params)}"),
        ("Strategy", f"{training.strategy}, {training.sync} gradients, {training.precision}"),
        ("Ranks", ", then ".join(dict.fromkeys(str(attempt.world_size) for attempt in attempts))),
        ("Optimizer", f"{optimizer.name}, peak learning rate {optimizer.learning_rate:g}, {training.schedule.name}"),
        ("Seed", str(training.seed)),
    ]
    if curve:
        facts += [
            ("Loss", f"{statistics.mean(one.loss for one in first):.4f} in the first twentieth of the steps, "
                     f"{statistics.mean(one.loss for one in last):.4f} in the last"),
            ("Time in steps", _duration(seconds)),
            ("Throughput", f"{statistics.median(speeds):,.0f} samples a second (median)" if speeds else "–"),
        ]  # fmt: skip
    return facts


def _attempts(attempts: Sequence[AttemptRecord]) -> dict[str, Any]:
    rows = [
        [
            str(attempt.number),
            str(attempt.world_size),
            f"step {attempt.resumed_from_step:,}" if attempt.resumed_from_step else "the beginning",
            f"{len(attempt.commits)}",
            attempt.ended,
        ]
        for attempt in attempts
    ]
    return {"columns": ["Attempt", "Ranks", "Went on from", "Commits", "How it ended"], "right": [1, 3], "rows": rows}


def _order(result: Manifest) -> dict[str, Any]:
    epochs = result.facts["order"]
    proven = sum(epoch["proven"] for epoch in epochs)
    if proven == len(epochs):
        sentence = (
            f"Each sample of each of the {len(epochs)} epochs was trained on exactly once: the sum over the samples "
            "that the ranks really saw equals the sum that the order demands."
        )
    else:
        sentence = (
            f"NOT PROVEN for {len(epochs) - proven} of {len(epochs)} epochs: a sample was left out or seen twice."
        )
    rows = [
        [
            str(epoch["epoch"] + 1),
            f"{epoch['samples']:,}",
            Markup("<code>{}</code>").format(epoch["expected"]),
            Markup("<code>{}</code>").format(epoch["seen"]),
            "equal" if epoch["proven"] else "DIFFERENT",
        ]
        for epoch in epochs
    ]
    columns = ["Epoch", "Samples", "Sum demanded", "Sum seen", ""]
    return {"sentence": sentence, "columns": columns, "right": [1], "rows": rows}


def _params(params: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in params.items()) or "its defaults"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
