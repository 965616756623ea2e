"""docs/events.md: it names every field, and its handler, moved over from paddle.fluid, does what the page says."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.training import events

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
RUN_KEY = "0123456789abcdef0123"
COMMON = {"attempt", "rank", "epoch", "step", "at"}
HANDED = [
    one
    for one in vars(events).values()
    if isinstance(one, type) and issubclass(one, events.Event) and one is not events.Event
]


@pytest.mark.parametrize("event", HANDED, ids=lambda event: event.__name__)
def test_page_names_every_field_of_an_event(event: type[Any]) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{event.__name__}` |")]
    named = set(re.findall(r"`(\w+)`", row))
    missing = {field.name for field in dataclasses.fields(event)} - COMMON - named
    assert not missing


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pages_handler_prints_saves_and_stops_and_the_run_goes_on_later(
    new_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    # A cost of 0.05 is never reached on these rows: the same call, at a step of the second epoch.
    stopping = code.replace("event.loss < GOOD_ENOUGH", "(event.step, event.attempt) == (23, 1)")
    assert stopping != code
    (tmp_path / "my_handlers.py").write_text(stopping)
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = {"training.handlers": ["my_handlers:event_handler"], "training.validation": {"fraction": 0.2}}
    run = new_run("run", rows=300, overrides=overrides)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root]
    codes = [
        subprocess.run([*command, "--ranks-per-node", "2"], env={**os.environ, "PYTHONPATH": path}, timeout=120,
                       capture_output=True, check=False).returncode
        for _ in range(2)
    ]  # fmt: skip
    assert codes == [14, 0]
    logs = [
        [run.store.read(f"runs/{RUN_KEY}/logs/attempt-{attempt}/rank-{rank}.log").decode() for rank in (0, 1)]
        for attempt in (1, 2)
    ]
    per_epoch = -(-len(run.ids) // 16)
    assert re.search(r"^epoch 1 took [\d.]+ s, cost \d\.\d{4}$", logs[0][0], re.MULTILINE)
    assert re.search(r"^test after epoch 1: \{'", logs[0][0], re.MULTILINE)
    assert f"saved runs/{RUN_KEY}/checkpoints/step-24-attempt-1" in logs[0][0]
    told = [int(step) for log in logs for step in re.findall(r"^step (\d+), epoch \d, cost", log[0], re.MULTILINE)]
    assert told == [step for step in range(1, 2 * per_epoch + 1) if step % 10 == 0]
    assert not any("cost" in log[1] for log in logs)  # the other rank is silent
