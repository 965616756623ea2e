"""What the card says of the holdout: tiles, metrics, ROC and calibration, and the slices. Numbers become text here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from markupsafe import Markup

from paddlewheel.card.plots import Series, chart, interval_bar
from paddlewheel.evaluation.metrics import HIGHER_IS_BETTER, reliability, roc_curve
from paddlewheel.manifest import Manifest
from paddlewheel.storage import Store

NAMES = {
    "auc": "AUC",
    "log_loss": "Log loss",
    "brier": "Brier score",
    "accuracy": "Accuracy at 0.5",
    "calibration_error": "Calibration error",
}
Facts = Mapping[str, Any]


def metric_tiles(facts: Facts) -> list[dict[str, Any]]:
    """The two numbers that count, each with its interval and how it stands against the champion."""
    return [
        {"name": NAMES[metric], "number": number(facts["metrics"][metric]["value"]), "notes": _notes(metric, facts)}
        for metric in ("auc", "log_loss")
    ]


def holdout_view(facts: Facts, evaluation: Manifest, store: Store, *, question: str) -> dict[str, Any]:
    """Sentences, the table of metrics, and two charts from the published predictions. `question`: what label 1 says."""
    champion = facts["champion"]
    compared = bool(champion and champion["comparable"])
    columns = ["Metric", "Challenger", "Interval"]
    if compared:
        columns += [f"Champion, version {champion['version']}", "Difference", "Interval"]
    rows = []
    own = {metric: metric.rpartition(":")[2] for metric in facts["settings"].get("metrics", ())}
    for metric, name in (NAMES | own).items():
        mine = facts["metrics"][metric]
        cells = [name, number(mine["value"]), interval(mine)]
        look = ""
        if compared:
            difference = champion["difference"].get(metric, {"value": None, "low": None, "high": None})
            cells += [number(champion["metrics"][metric]["value"]), signed(difference["value"])]
            cells.append(interval(difference, sign=True))
            look = sure(metric, difference) if metric in HIGHER_IS_BETTER else ""
        rows.append({"cells": cells, "look": look})
    predictions = pl.read_parquet(store.local_path(evaluation.files[0].key))
    return {
        "lines": _sentences(facts, question),
        "columns": columns,
        "rows": rows,
        "charts": _charts(predictions, champion if compared else None),
    }


def slice_views(facts: Facts) -> list[dict[str, Any]]:
    """One table a slice column, the largest slice first."""
    champion = facts["champion"]
    compared, overall = bool(champion and champion["comparable"]), facts["metrics"]["auc"]["value"]
    views = []
    for cut in facts["slices"]:
        mine = [part["challenger"]["auc"] for part in cut["slices"] if part["enough"]]
        theirs = [part["difference"]["auc"] for part in cut["slices"] if part["enough"]] if compared else []
        limits, difference_limits = _limits(mine), _symmetric(theirs)
        rows = []
        for part in cut["slices"]:
            auc, row = part["challenger"]["auc"], dict(_slice_texts(part))
            row["bar"] = _bar(auc, limits, overall) if part["enough"] else "too few rows"
            if compared:
                difference = part["difference"]["auc"]
                row["difference"] = signed(difference["value"])
                row["difference_bar"] = _bar(difference, difference_limits, 0.0) if part["enough"] else ""
                row["look"] = sure("auc", difference)
            rows.append(row)
        confidence = f"{facts['settings']['confidence']:.0%}"
        views.append(
            {
                "column": cut["column"],
                "compared": compared,
                "confidence": confidence,
                "rows": rows,
                "note": _slice_note(facts, cut, limits, difference_limits if compared else None),
            }
        )
    return views


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; a dash where the rows do not define it."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 4) -> str:
    """A difference, with a real minus sign."""
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "−")


def interval(estimate: Facts, *, sign: bool = False) -> str:
    """`0.6890 to 0.7120`, empty where there is none."""
    if estimate["low"] is None or estimate["high"] is None:
        return ""
    show = signed if sign else number
    return f"{show(estimate['low'])} to {show(estimate['high'])}"


def sure(metric: str, difference: Facts) -> str:
    """`better` or `worse` where the whole interval of a difference lies on one side of zero, else empty."""
    if difference["low"] is None or difference["high"] is None or difference["low"] <= 0 <= difference["high"]:
        return ""
    return "better" if (difference["low"] > 0) == HIGHER_IS_BETTER[metric] else "worse"


def _notes(metric: str, facts: Facts) -> list[dict[str, str]]:
    mine, champion = facts["metrics"][metric], facts["champion"]
    notes = [{"look": "", "text": interval(mine) or "no interval"}]
    if champion and champion["comparable"]:
        difference = champion["difference"][metric]
        text = f"{signed(difference['value'])} against version {champion['version']}"
        notes.append({"look": sure(metric, difference), "text": text})
    elif champion:
        notes.append({"look": "", "text": f"version {champion['version']} cannot be compared"})
    else:
        notes.append({"look": "", "text": "no champion to compare with"})
    return notes


def _sentences(facts: Facts, question: str) -> list[str]:
    share, days = facts["positives"] / facts["rows"], facts["holdout"]
    lines = [
        f"{facts['rows']:,} rows of {len(days)} days ({days[0]} to {days[-1]}) that training never saw, "
        f"{share:.1%} of them with {question}."
    ]
    champion = facts["champion"]
    if champion and not champion["comparable"]:
        lines.append(f"The champion, version {champion['version']}, cannot be compared: {champion['why_not']}.")
    elif champion and champion["seen_days"]:
        lines.append(
            f"Mind that the champion, version {champion['version']}, was trained on {len(champion['seen_days'])} of "
            f"these days ({champion['seen_rows']:,} rows), which favours it."
        )
    skew = facts["skew"]
    lines.append(
        "The exported bundle, from raw rows through Paddle Inference, says what the trained network says: on "
        f"{skew['rows']:,} rows they differ by {skew['largest_difference']:.1e} at most "
        f"({skew['limit']:.0e} is allowed)."
    )
    return lines


def _charts(predictions: pl.DataFrame, champion: Facts | None) -> list[Markup]:
    labels_B = predictions["label"].cast(pl.Float64).to_numpy()
    models = [("Challenger", "challenger")]
    if champion is not None:
        models.append((f"Champion, version {champion['version']}", "champion"))
    curves, bins = [], []
    for label, look in reversed(models):
        probabilities_B = predictions[look].to_numpy()
        roc = roc_curve(labels_B, probabilities_B)
        curves.append(
            Series(
                label=label,
                look=look,
                xs=roc.false_positive_rates_P.tolist(),
                ys=roc.true_positive_rates_P.tolist(),
            )
        )
        found = reliability(labels_B, probabilities_B)
        bins.append(
            Series(
                label=label,
                look=look,
                dots=True,
                xs=[one.predicted for one in found],
                ys=[one.observed for one in found],
                intervals=[(one.low, one.high) for one in found],
            )
        )
    top = min(1.0, 1.04 * max((max(one.xs, default=0.0) for one in bins), default=1.0))
    top = min(1.0, max(top, 1.04 * max((high for one in bins for _, high in one.intervals), default=0.0)))
    return [
        chart(
            name="ROC curve",
            x_label="false positive rate",
            y_label="true positive rate",
            series=curves,
            x_range=(0, 1),
            y_range=(0, 1),
            diagonal=True,
        ),
        chart(
            name="Calibration",
            x_label="predicted probability (each dot: a tenth of the rows)",
            y_label="observed share",
            series=bins,
            x_range=(0, top),
            y_range=(0, top),
            diagonal=True,
        ),
    ]


def _slice_texts(part: Facts) -> dict[str, Any]:
    return {
        "value": part["value"],
        "rows": f"{part['rows']:,}",
        "positives": f"{part['positives'] / part['rows']:.1%}",
        "enough": part["enough"],
        "auc": number(part["challenger"]["auc"]["value"], 3),
        "log_loss": number(part["challenger"]["log_loss"]["value"], 3),
    }


def _slice_note(facts: Facts, cut: Facts, limits: tuple[float, float], differences: tuple[float, float] | None) -> str:
    note = f"Bars run from {limits[0]:.2f} to {limits[1]:.2f}; the dashed line is the AUC of all rows."
    if differences:
        note += (
            f" Differences run from {signed(differences[0], 2)} to {signed(differences[1], 2)}; the dashed line is 0."
        )
    small = sum(not part["enough"] for part in cut["slices"])
    if small:
        least = facts["settings"]["min_slice_rows"]
        note += f" Slices of fewer than {least} rows ({small} of them) have no interval and are not judged."
    if cut["left_out"]:
        note += f" {cut['left_out']} further values with {cut['left_out_rows']:,} rows are not shown."
    return note


def _bar(estimate: Facts, limits: tuple[float, float], reference: float | None) -> Markup:
    return interval_bar(
        estimate["value"],
        estimate["low"],
        estimate["high"],
        limits=limits,
        reference=limits[0] if reference is None else reference,
    )


def _limits(estimates: Sequence[Facts]) -> tuple[float, float]:
    """The range of all intervals, to the next five hundredths."""
    lows = [one["low"] for one in estimates if one["low"] is not None]
    highs = [one["high"] for one in estimates if one["high"] is not None]
    if not lows:
        return 0.0, 1.0
    return math.floor(min(lows) * 20) / 20, math.ceil(max(highs) * 20) / 20


def _symmetric(estimates: Sequence[Facts]) -> tuple[float, float]:
    """A range around zero that holds all intervals, to the next hundredth."""
    ends = [abs(one[end]) for one in estimates for end in ("low", "high") if one[end] is not None]
    most = math.ceil(max(ends, default=0.01) * 100) / 100 or 0.01
    return -most, most
