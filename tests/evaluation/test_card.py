"""The card of a night whose manifests are written by hand, read as HTML by the standard library's parser."""

from __future__ import annotations

import dataclasses
import html.parser
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
import pytest

from paddlewheel.card.page import Story, render_card
from paddlewheel.card.training import TrainingRecord
from paddlewheel.evaluation.compare import Scored, compare
from paddlewheel.evaluation.gate import judge
from paddlewheel.evaluation.slices import cut_by
from paddlewheel.manifest import Manifest, Shard, publish_file, publish_manifest
from paddlewheel.recipe import Recipe, dump
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.events import AttemptRecord, StepRecord

HOSTILE = "</td><script>alert(1)</script><img src=https://evil.example/x onerror=alert(1)>"
Make = Callable[..., str]


class Page(html.parser.HTMLParser):
    """Tags, attributes and the text by element id of the nearest section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: dict[str, str] = {}
        self.open: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "link", "img", "br"):
            self.open.append((tag, dict(attrs).get("id") or ""))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, name in self.open:
            if name:
                self.texts[name] = " ".join(f"{self.texts.get(name, '')} {data}".split())


@pytest.fixture
def make_card(store: LocalStore, recipe: Recipe) -> Make:
    """make_card(champion=…, override=…, promoted=…, carrier=…, recipe=…) -> HTML."""

    def make(
        *,
        with_champion: bool = True,
        good: bool = True,
        carrier: str = "UA",
        text: str = "done",
        override: dict[str, str] | None = None,
        reason: str | None = None,
        seen_days: tuple[str, ...] = (),
        proven: bool = True,
        title: str = "Late arrivals",
        progress: Mapping[str, Any] = MappingProxyType({}),
        monitor: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        told = dataclasses.replace(recipe, title=title, description=title)
        generator = np.random.default_rng(1)
        logits = generator.normal(-1, 1.5, 600)
        labels = (generator.random(600) < 1 / (1 + np.exp(-logits))).astype(np.float64)
        sharp, blunt = 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-generator.normal(-1, 1, 600)))
        scored = Scored(
            labels_B=labels,
            challenger_B=sharp if good else blunt,
            champion_B=(blunt if good else sharp) if with_champion else None,
        )
        frame = pl.DataFrame({"carrier": [carrier] * 400 + ["AA"] * 190 + ["HA"] * 10})
        whole = compare(scored, told.evaluation, seed=1).to_json()
        champion = {"version": 4, "run": "r0", "partition": "2013-10-31"}
        facts: dict[str, Any] = {
            "run": "r1",
            "partition": "2013-11-01",
            "train": ["2013-10-28", "2013-10-29", "2013-10-30"],
            "holdout": ["2013-10-31", "2013-11-01"],
            "rows": 600,
            "positives": int(labels.sum()),
            "settings": dump(told.evaluation),
            "metrics": whole["challenger"],
            "champion": None,
            "slices": [cut.to_json() for cut in cut_by(frame, scored, told.evaluation, run_key="r1")],
            "skew": {"rows": 600, "largest_difference": 4e-8, "limit": 1e-5},
        }
        if with_champion:
            comparison = {"metrics": whole["champion"], "difference": whole["difference"]}
            seen = {"seen_days": list(seen_days), "seen_rows": 300, "comparable": True, "why_not": ""}
            facts["champion"] = champion | comparison | seen
        with store.staging() as staging:
            predictions = {"sample_id": range(600), "label": labels, "challenger": scored.challenger_B}
            table = pl.DataFrame(predictions).with_columns(champion=pl.Series(scored.models[-1], dtype=pl.Float64))
            table.write_parquet(staging / "predictions.parquet")
            key = f"e{len(list(store.list('predictions')))}"
            file = publish_file(store, f"predictions/{key}.parquet", staging / "predictions.parquet")
        checks = [dataclasses.asdict(check) for check in judge(told.gate, facts)]
        accepted = all(check["passed"] for check in checks) or override is not None
        promoted = accepted and reason is None
        against = champion if with_champion else None
        promotion = {
            "run": "r1",
            "partition": "2013-11-01",
            "promoted": promoted,
            "version": 5 if promoted else None,
            "judged_against": against,
            "kept": None if promoted else against,
            "reason": reason or ("promoted as version 5" if promoted else "the gate refused it"),
        }
        night = {"train": facts["train"], "holdout": facts["holdout"], "partition": facts["partition"]}
        shards = Manifest(
            kind="shards",
            name="late",
            key="datasets/late.shards/k",
            files=(
                Shard(key="t", bytes=1, digest="t", rows=1500, facts={"role": "train", "day": "2013-10-28"}),
                Shard(key="h", bytes=1, digest="h", rows=600, facts={"role": "holdout", "day": "2013-11-01"}),
            ),
            facts=night | {"without_label": 41, "join_misses": {carrier: 7}},
        )
        if store.stat(f"{shards.key}/manifest.json") is None:
            publish_manifest(store, shards)
        tables = [
            Manifest(
                kind="table",
                name="t",
                key="t",
                facts={
                    "source": carrier,
                    "rows": 2141,
                    "refused": 9,
                    "reasons": {f"bad: {carrier}": 9},
                    "files": [{"path": "a.csv"}],
                    "unreadable": [{"path": f"{carrier}.csv", "reason": f"cut off: {carrier}"}],
                },
            )
        ]
        story = Story(
            promotion=Manifest(kind="promotion", name="late", key="p", facts=promotion),
            verdict=Manifest(
                kind="verdict",
                name="late",
                key="v",
                facts={"accepted": accepted, "checks": checks, "override": override},
            ),
            evaluation=Manifest(kind="evaluation", name="late", key="e", files=(file,), facts=facts),
            run=Manifest(
                kind="run",
                name="late",
                key="runs/r1",
                code="c0de1234",
                facts={"order_expected": str(0x8F3A), "epochs": 2, "total_steps": 96, "num_train_rows": 1500},
            ),
            by_kind={
                "shards": [shards],
                "table": tables,
                "validated": [Manifest(kind="validated", name="late", key="d", facts={"rows": 2141, "refused": 9})],
                "features": [
                    Manifest(
                        kind="features",
                        name="late",
                        key="datasets/late.features/k",
                        files=(Shard(key="f/features.json", bytes=1, digest="feed5678"),),
                    )
                ],
                "bundle": [Manifest(kind="bundle", name="late", key="runs/r1/bundle")],
            },
        )
        curve = [
            StepRecord(
                step=step,
                epoch=1 + step // 25,
                loss=0.7 - step / 200,
                learning_rate=1e-3,
                rows=64,
                seconds=0.02,
                attempt=1,
            )
            for step in range(1, 49)
        ]
        attempts = [
            AttemptRecord(
                attempt=1, world_size=2, resumed_from_step=0, last_step=23, ended="node", verdict=f"killed {text}"
            ),
            AttemptRecord(attempt=2, world_size=1, resumed_from_step=20, last_step=48, ended=text),
        ]
        seen = {1: 0x8F3A, 2: 0x8F3A if proven else 0x8F3B}
        commits = [10, 20, 30, 40, 48]
        record = TrainingRecord(
            curve=curve, attempts=attempts, commits=commits, seen=seen, progress=progress, monitor=monitor
        )
        return render_card(told, story, record, store=store)

    return make


def test_card_tells_the_whole_night_when_a_run_is_promoted(make_card: Make) -> None:
    page = Page(make_card())
    told = "Promoted: version 5 is in service It replaces version 4 (2013-10-31). AUC 0."
    assert page.texts["verdict"].startswith(told)
    assert "2,150" in page.texts["data"]  # rows read: 2,141 good and 9 refused
    assert "bad: UA 9" in page.texts["data"]
    assert "Without a label (no outcome to learn from) 41 1.9%" in page.texts["data"]
    assert "resumed at 20" in page.texts["training"]
    assert "2 1 step 20 48 done" in page.texts["training"]
    assert "Each of 1,500 samples was trained on exactly once in each of 2 epochs" in page.texts["training"]
    assert "1 0000000000008f3a 0000000000008f3a equal" in page.texts["training"]
    assert "600 rows of 2 days (2013-10-31 to 2013-11-01)" in page.texts["holdout"]
    assert "of them with delay above 15." in page.texts["holdout"]
    assert "differ by 4.0e-08 at most" in page.texts["holdout"]
    for digest in ("c0de1234", "feed5678"):
        assert digest in page.texts["provenance"]
    assert "max_slice_loss: 0.05" in page.texts["provenance"]
    assert page.tags.count("svg") > 5
    assert {"details", "table", "polyline"} <= set(page.tags)


def test_card_says_why_when_the_gate_refuses(make_card: Make) -> None:
    page = Page(make_card(good=False))
    assert page.texts["verdict"].startswith("Refused: version 4 (2013-10-31) stays in service AUC 0.")
    assert "worse" in page.texts["verdict"]
    assert "failed" in [value for name, value in page.attributes if name == "class"]


def test_card_says_why_when_an_accepted_run_is_too_old(make_card: Make) -> None:
    page = Page(make_card(reason="its partition 2013-11-01 is older than the champion's"))
    assert page.texts["verdict"].endswith("Its partition 2013-11-01 is older than the champion's.")


def test_card_names_who_and_why_when_the_gate_was_overridden(make_card: Make) -> None:
    page = Page(make_card(good=False, override={"by": "Ada", "reason": "a strike"}))
    assert page.texts["verdict"].endswith("The gate had refused it; accepted by Ada: a strike")
    assert "Accepted in spite of the gate by Ada: a strike" in page.texts["gate"]


def test_card_of_a_first_model_compares_with_nothing(make_card: Make) -> None:
    page = Page(make_card(with_champion=False))
    assert "It is the model's first version." in page.texts["verdict"]
    assert "There is no champion yet" in page.texts["gate"]
    assert "Difference" not in page.texts["holdout"]


def test_card_is_honest_when_the_champion_saw_holdout_days_or_the_order_is_not_proven(make_card: Make) -> None:
    page = Page(make_card(seen_days=("2013-10-31",), proven=False))
    assert "version 4, was trained on 1 of these days (300 rows), which favours it" in page.texts["holdout"]
    assert "NOT PROVEN for epoch 2 of 2" in page.texts["training"]


def test_card_tells_what_the_guard_left_out_and_how_measurements_ended_the_training(make_card: Make) -> None:
    guard = {"skipped": 3, "rollbacks": 1, "passed": [[1, 7]]}
    measured = {"metric": "log_loss", "step": 48, "best_step": 24, "best_value": 0.5, "stopped": True}
    page = Page(make_card(proven=False, progress={"guard": guard, "validation": measured}))
    told = page.texts["training"]
    assert "3 steps; the state went back 1 times, and batch 7 of epoch 1 was passed over" in told
    assert "best log_loss 0.5000 after step 24, ended early by it" in told
    # 48 of 96 steps are one epoch: the second, of which some samples were seen, was not trained to its end.
    assert "Each of 1,500 samples was trained on exactly once in the epoch" in told


def test_card_tells_the_goodput_and_what_to_change(make_card: Make) -> None:
    goodput = {
        "share": 0.8,
        "seconds": 600.0,
        "steps": 480.0,
        "losses": {"startup": 90.0, "waiting": 30.0},
        "parts": {},
    }
    finding = {"kind": "data", "text": "data-bound: a step waits", "setting": "more ranks", "figures": {}}
    told = Page(make_card(monitor={"goodput": goodput, "diagnosis": [finding]})).texts["training"]
    assert "Goodput 80.0%: of 10 min 00 s from the first attempt's start to the end, 8 min 00 s went into" in told
    assert "steps that count 80.0% start-up 15.0% waiting for the next attempt 5.0%" in told
    assert "Data-bound: a step waits. To change: more ranks." in told


def test_card_says_nothing_of_goodput_or_trouble_when_nothing_is_known(make_card: Make) -> None:
    text = make_card()
    assert "Goodput" not in Page(text).texts["training"]
    assert 'class="checks diagnosis"' not in text


def test_card_holds_no_markup_of_the_data_when_texts_are_hostile(make_card: Make) -> None:
    text = make_card(
        good=False,
        carrier=HOSTILE,
        text=HOSTILE,
        title=HOSTILE,
        override={"by": HOSTILE, "reason": HOSTILE},
        monitor={"diagnosis": [{"text": HOSTILE, "setting": HOSTILE}]},
    )
    page = Page(text)
    assert not {"script", "img", "iframe", "object", "link"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE in page.texts["training"]
    assert HOSTILE in page.texts["gate"]


def test_card_loads_nothing_from_anywhere(make_card: Make) -> None:
    text = make_card()
    page = Page(text)
    assert not [value for name, value in page.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert not re.search(r"@import|url\(|https?:|//[a-z]+\.", text)


def test_card_has_the_same_bytes_when_made_again(make_card: Make) -> None:
    assert make_card() == make_card()
