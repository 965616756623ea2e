"""The run card: one self-contained HTML file that tells a night to a person, and the lines that end a night.

A card is made from manifests and events alone and holds no time of its making: the same run gives the same bytes.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml

from paddlewheel.card.data import data_view, reasons_of, row_counts
from paddlewheel.card.drift import drift_view
from paddlewheel.card.evaluation import holdout_view, interval, metric_tiles, number, slice_views
from paddlewheel.card.training import TrainingRecord, read_training, training_view
from paddlewheel.lineage import ancestors, manifest_key, nearest
from paddlewheel.manifest import (
    Manifest,
    code_digest,
    derive_key,
    find_done,
    input_of,
    publish_file,
    publish_manifest,
    read_manifest,
)
from paddlewheel.recipe import Recipe, dump
from paddlewheel.runs import newest_manifests
from paddlewheel.storage import Store, digest_file
from paddlewheel.training.goodput import goodput_line, parse_goodput

CARD = "card.html"
TEMPLATE = Path(__file__).with_name("template.html")
CODE = ("paddlewheel.card", "paddlewheel.data.checks", "paddlewheel.data.statistics")
MOST_REASONS = 3
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Story:
    """The manifests behind a promotion: the last ones by name, and all of them by kind, the nearest first."""

    promotion: Manifest
    verdict: Manifest
    evaluation: Manifest
    run: Manifest
    by_kind: dict[str, list[Manifest]]


def report(recipe: Recipe, promotion_uri: str, *, store: Store) -> str:
    """Write the card of a promotion or of a refusal; the URI of the `card` manifest, beside which card.html lies."""
    source = input_of(store, promotion_uri)
    story = read_story(store, source.key)
    made_of = (source.key, source.digest, recipe.digest, code_digest(*CODE), digest_file(TEMPLATE))
    folder = f"{story.run.key}/cards/{derive_key('card', *made_of)}"
    if find_done(store, f"{folder}/manifest.json"):
        return store.uri(f"{folder}/manifest.json")
    run_key = story.run.key.removeprefix("runs/")
    html = render_card(recipe, story, read_training(store, story.run), store=store)
    with store.staging() as staging:
        (staging / CARD).write_text(html, encoding="utf-8")
        file = publish_file(store, f"{folder}/{CARD}", staging / CARD)
    log.info("report: %s", store.uri(file.key))
    facts = {"run": run_key, "partition": story.promotion.facts["partition"], "title": recipe.title}
    manifest = Manifest(
        kind="card", name=recipe.name, key=folder, files=(file,), inputs=(source,), recipe=recipe.digest, facts=facts
    )
    return publish_manifest(store, manifest)


def summary_lines(store: Store, promotion_uri: str) -> list[str]:
    """The lines that end a night: what went in, the holdout's metrics, the verdict, the champion, the card's path."""
    source = input_of(store, promotion_uri)
    story = read_story(store, source.key)
    counts, facts = row_counts(story.by_kind), story.evaluation.facts
    reasons = list(reasons_of(story.by_kind.get("table", ())).items())
    told = ", ".join(f"{rows:,} {reason}" for reason, rows in reasons[:MOST_REASONS])
    lines = [
        ("night", f"{story.promotion.name}, partition {facts['partition']}, run {facts['run']}"),
        ("ingested", f"{counts['read']:,} rows; {counts['train']:,} to train on ({len(facts['train'])} days), "
                     f"{counts['holdout']:,} held out ({len(facts['holdout'])} days), "
                     f"{counts['without_label']:,} without a label"),
        ("refused", f"{sum(rows for _, rows in reasons):,} rows" + (f": {told}" if told else "")
                    + (f" and {len(reasons) - MOST_REASONS} further reasons" if len(reasons) > MOST_REASONS else "")),
        *_drift_lines(story.by_kind["validated"][0]),
        *_training_lines(store, story.run),
        ("holdout", ", ".join(f"{name} {_estimate(facts['metrics'][metric])}"
                              for name, metric in (("AUC", "auc"), ("log loss", "log_loss")))),
        ("gate", "accepted" if story.verdict.facts["accepted"] else "refused"),
        *(("", f"{'ok  ' if check['passed'] else 'FAIL'} {check['text']}") for check in story.verdict.facts["checks"]),
        ("champion", _champion_line(story.promotion.facts)),
    ]  # fmt: skip
    override = story.verdict.facts["override"]
    if override:
        lines.insert(-1, ("override", f"by {override['by']}: {override['reason']}"))
    run_key = story.run.key.removeprefix("runs/")
    cards = [one for one in newest_manifests(store, run_key, "cards") if one.inputs[0].key == source.key]
    if cards:
        lines.append(("report", _where(store, cards[-1].files[0].key)))
    return [f"{name:<9} {text}" for name, text in lines]


def _where(store: Store, key: str) -> str:
    """Where a browser finds the card: its path, or its URI and the path of this machine's copy."""
    uri, path = store.uri(key), str(store.local_path(key))
    return path if uri.startswith("file:") else f"{uri} (a copy: {path})"


def read_story(store: Store, promotion_key: str) -> Story:
    """Every manifest behind a promotion, without those of the champion, whose data went into another run."""
    promotion = read_manifest(store, promotion_key)
    verdict = nearest(store, promotion_key, "verdict")
    run_key = f"runs/{promotion.facts['run']}"
    by_kind: dict[str, list[Manifest]] = {"bundle": [read_manifest(store, f"{run_key}/bundle/manifest.json")]}
    for manifest in ancestors(store, f"{run_key}/manifest.json"):
        by_kind.setdefault(manifest.kind, []).append(manifest)
    return Story(
        promotion=promotion,
        verdict=verdict,
        evaluation=read_manifest(store, verdict.facts["evaluation"]),
        run=by_kind["run"][0],
        by_kind=by_kind,
    )


def render_card(recipe: Recipe, story: Story, record: TrainingRecord, *, store: Store) -> str:
    """The card's HTML. Every text is escaped; charts are markup that escapes what it holds."""
    facts = story.evaluation.facts
    training = training_view(recipe, story.run, record)
    settings, label = facts["settings"], recipe.data.label
    question = f"{label.column} above {label.above:g}"
    return _template().render(
        title=recipe.title,
        description=" ".join(recipe.description.split()),
        name=recipe.name,
        partition=facts["partition"],
        run=facts["run"],
        verdict=_verdict(story),
        tiles=[*metric_tiles(facts), *_count_tiles(story, training)],
        checks=_checks(story.verdict),
        data=data_view(story.by_kind, store),
        drift=drift_view(recipe, story.by_kind["validated"][0], (facts["champion"] or {}).get("run"), store),
        training=training,
        holdout=holdout_view(facts, story.evaluation, store, question=question),
        question=question,
        slices=slice_views(facts),
        provenance=_provenance(recipe, story, store),
        recipe=yaml.safe_dump(dump(recipe), sort_keys=False, allow_unicode=True),
        footnote=f"{settings['confidence']:.0%} percentiles of {settings['resamples']:,} bootstrap resamples of the "
        "holdout rows, the same resamples for challenger and champion.",
    )


def _verdict(story: Story) -> dict[str, Any]:
    facts, override = story.promotion.facts, story.verdict.facts["override"]
    if facts["promoted"]:
        headline = f"Promoted: version {facts['version']} is in service"
        judged = facts["judged_against"]
        lines = [
            f"It replaces version {judged['version']} ({judged['partition']})."
            if judged
            else "It is the model's first version."
        ]
        lines += [check["text"] for check in story.verdict.facts["checks"] if judged and check["rule"] == "champion"]
    else:
        kept = facts["kept"]
        stays = f"version {kept['version']} ({kept['partition']}) stays in service" if kept else "nothing is in service"
        failed = [check["text"] for check in story.verdict.facts["checks"] if not check["passed"]]
        reason = f"{facts['reason'][:1].upper()}{facts['reason'][1:]}."
        headline, lines = f"Refused: {stays}", [reason] if story.verdict.facts["accepted"] else failed
    if override:
        lines.append(f"The gate had refused it; accepted by {override['by']}: {override['reason']}")
    return {"promoted": facts["promoted"], "headline": headline, "lines": lines}


def _checks(verdict: Manifest) -> list[dict[str, str]]:
    checks = [
        {"look": "passed" if check["passed"] else "failed", "text": check["text"]} for check in verdict.facts["checks"]
    ]
    override = verdict.facts["override"]
    if override:
        text = f"Accepted in spite of the gate by {override['by']}: {override['reason']}"
        checks.append({"look": "note", "text": text})
    return checks


def _count_tiles(story: Story, training: dict[str, Any]) -> list[dict[str, Any]]:
    counts, facts = row_counts(story.by_kind), story.evaluation.facts
    held_out = f"{counts['holdout']:,} held out on {len(facts['holdout'])} days"
    return [
        {
            "name": "Training samples",
            "number": f"{counts['train']:,}",
            "notes": [{"look": "", "text": f"of {len(facts['train'])} days"}, {"look": "", "text": held_out}],
        },
        {
            "name": "Steps",
            "number": training["steps"],
            "notes": [{"look": "", "text": text} for text in training["steps_notes"]],
        },
    ]


def _provenance(recipe: Recipe, story: Story, store: Store) -> list[tuple[str, str]]:
    """Digests of data, code and recipe, and the manifests of the steps."""
    shards, features = story.by_kind["shards"][0], story.by_kind["features"][0]
    rows = [
        ("Data", input_of(store, manifest_key(shards)).digest),
        ("Features", features.files[0].digest),
        ("Code of the training", story.run.code),
        ("Recipe", recipe.digest),
    ]
    rows += [(f"Bundle: {file.key.rpartition('/')[2]}", file.digest) for file in story.by_kind["bundle"][0].files]
    steps = [story.promotion, story.verdict, story.evaluation, story.run, features, shards]
    rows += [(f"Manifest: {step.kind}", manifest_key(step)) for step in steps]
    return rows


def _drift_lines(validated: Manifest) -> list[tuple[str, str]]:
    """The columns that drifted, and days without rows or labels; nothing where all is as ever."""
    facts = validated.facts
    columns = dict.fromkeys(f"{one['source']}.{one['column']}" for one in facts.get("drift", ()) if one["warned"])
    told = ", ".join(list(columns)[:MOST_REASONS])
    more = f" and {len(columns) - MOST_REASONS} more columns" if len(columns) > MOST_REASONS else ""
    return [("drifted", f"{told}{more}")] * bool(columns) + [("note", note) for note in facts.get("notes", ())]


def _training_lines(store: Store, run: Manifest) -> list[tuple[str, str]]:
    """Goodput, and what held the training up; nothing of runs whose result says neither."""
    facts = read_manifest(store, f"{run.key}/result.json").facts
    if "goodput" not in facts:
        return []
    found = [("", f"{one['text']}; {one['setting']}") for one in facts["diagnosis"]]
    return [("training", goodput_line(parse_goodput(facts["goodput"]))), *found]


def _champion_line(facts: Any) -> str:
    if facts["promoted"]:
        return f"version {facts['version']} (this run)"
    kept = facts["kept"]
    return f"version {kept['version']} stays (partition {kept['partition']}, run {kept['run']})" if kept else "none yet"


def _estimate(estimate: Any) -> str:
    told = interval(estimate)
    return f"{number(estimate['value'])}{f' ({told})' if told else ''}"


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE.parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(TEMPLATE.name)
