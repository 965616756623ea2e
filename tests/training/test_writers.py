"""Figures for other tools: one run for all attempts, each step once; and a tool that fails costs a warning alone.

The tests with the real packages are skipped where those are not installed (docs/monitoring.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paddlewheel.errors import RecipeError
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.events import AnomalyEvent, CheckpointEvent, EndStepEvent, EvaluationEvent, to_line
from paddlewheel.training.writers import check_writers, writer_connections
from paddlewheel.training.writers.held import Held, Point, first_steps

HERE = str(Path(__file__).parent)
RUN_KEY = "0123456789abcdef0123"
WHO = {"attempt": 1, "rank": 0, "epoch": 1}


class Shelf:
    """Stands in for a tool's store: keeps points, and fails as often as it is told to."""

    def __init__(self, told: int = 0, fails: int = 0) -> None:
        self.told, self.fails = told, fails
        self.points: list[tuple[str, int, float]] = []
        self.closed: list[bool] = []
        self.threads: set[str] = set()

    def last_step(self) -> int:
        return self.told

    def write(self, points: Sequence[Point]) -> None:
        self.threads.add(threading.current_thread().name)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the server is away")
        self.points += [(point.name, point.step, point.value) for point in points]

    def close(self, *, done: bool) -> None:
        self.closed.append(done)

    def steps(self) -> list[int]:
        return [step for name, step, _ in self.points if name == "loss"]


def step(number: int, loss: float = 0.5, attempt: int = 1) -> EndStepEvent:
    return EndStepEvent(
        **{**WHO, "attempt": attempt},
        step=number,
        at=100.0 + number,
        loss=loss,
        learning_rate=0.1,
        rows=16,
        seconds=0.5,
        parts={"data": 0.125},
        rss_bytes=1,
        norm=2.0,
    )


def commit(number: int) -> CheckpointEvent:
    return CheckpointEvent(**WHO, step=number, commit="c", bytes=1, seconds=0.1)


def back(to: int) -> AnomalyEvent:
    return AnomalyEvent(**WHO, step=to, kind="loss", value="nan", batch=1, first_ids=(), back_to=to)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def feed(shelf: Shelf, store: LocalStore, *events: Any, resumed: int = 0, done: bool = True) -> Held:
    held = Held("shelf", lambda: shelf, store, f"runs/{RUN_KEY}", step=resumed)
    for event in events:
        held(event)
    held.close(done=done)
    return held


def test_a_committed_step_is_told_with_its_figures(store: LocalStore) -> None:
    shelf = Shelf()
    measured = EvaluationEvent(**WHO, step=1, metrics={"auc": 0.75}, rows=9, best=True, seconds=1.0)
    feed(shelf, store, step(1, 0.25), measured, commit(1))
    assert shelf.points == [
        ("loss", 1, 0.25),
        ("learning_rate", 1, 0.1),
        ("gradient_norm", 1, 2.0),
        ("rows_per_second", 1, 32.0),
        ("seconds/data", 1, 0.125),
        ("validation/auc", 1, 0.75),
    ]
    assert (shelf.closed, shelf.threads) == ([True], {"writer-shelf"})


def test_steps_beyond_the_commit_are_held_back_and_lost_with_the_attempt(store: LocalStore) -> None:
    shelf = Shelf()
    # A commit is told a step or more after the one that it is of.
    feed(shelf, store, step(1), step(2), step(3), commit(2), step(4), done=False)
    assert (shelf.steps(), shelf.closed) == ([1, 2], [False])


def test_steps_that_were_taken_back_are_told_once_as_they_finally_were(store: LocalStore) -> None:
    shelf = Shelf()
    feed(shelf, store, step(1), commit(1), step(2, 9.0), step(3, 9.0), back(1), step(2, 0.25), commit(2))
    assert [(number, value) for name, number, value in shelf.points if name == "loss"] == [(1, 0.5), (2, 0.25)]


def test_what_a_dead_attempt_had_committed_and_not_told_is_told_by_the_next(store: LocalStore) -> None:
    for number, resumed in ((1, 0), (2, 6)):
        record = {"attempt": number, "resumed_from_step": resumed, "world_size": 1, "host": "a", "pid": 1}
        tree = json.dumps({**record, "started": "2013-11-02T03:00:00+00:00"}).encode()
        store.publish(f"runs/{RUN_KEY}/attempts/{number}.json", tree)
    lines = b"".join(to_line(step(number)) for number in range(1, 9))
    store.publish(f"runs/{RUN_KEY}/events/attempt-1/rank-0/step-8-rest.jsonl", lines)
    shelf = Shelf(told=4)
    feed(shelf, store, step(7, attempt=2), commit(7), resumed=6)
    assert shelf.steps() == [5, 6, 7]


def test_a_tool_that_fails_for_a_while_gets_all_later_and_costs_one_warning(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf(fails=2)
    feed(shelf, store, step(1), commit(1), step(2), commit(2), step(3), commit(3))
    assert shelf.steps() == [1, 2, 3]
    assert [record.message for record in caplog.records] == [
        "shelf takes no figures for now, the training goes on: the server is away"
    ]


def test_a_tool_that_fails_to_the_end_is_told_of(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(fails=99)
    feed(shelf, store, step(1), commit(1))
    assert shelf.steps() == []
    assert "shelf did not take the figures of the last steps" in caplog.text


def test_chunks_are_of_whole_steps() -> None:
    points = [Point(name="a", value=0.0, step=number, at=0.0) for number in (1, 1, 1, 2, 2, 3)]
    assert [len(first_steps(points, most)) for most in (1, 3, 4, 5, 6, 99)] == [3, 3, 3, 5, 6, 6]


def test_a_package_that_is_missing_is_named_with_what_to_install(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddlewheel.training.writers.importlib.util.find_spec", lambda _: None)
    with pytest.raises(RecipeError, match=r"training\.writers\.0: 'visualdl' needs .* pip install visualdl, or leave"):
        check_writers(["visualdl"], store)


def test_a_root_that_is_no_folder_has_no_place_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddlewheel.training.writers.importlib.util.find_spec", lambda _: object())
    monkeypatch.delenv("AIRFLOW_CONN_MLFLOW", raising=False)

    class Bucket:
        root = "s3://bucket/x"

    with pytest.raises(RecipeError, match="'mlflow' writes below the root, and s3://bucket/x is no folder"):
        check_writers(["mlflow"], Bucket())  # type: ignore[arg-type]
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW", "http://tracking.example:5000")
    check_writers(["mlflow"], Bucket())  # type: ignore[arg-type]
    assert (writer_connections(["mlflow"]), writer_connections(["visualdl"])) == (["mlflow"], [])


@pytest.fixture
def trained(new_run: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """A run with this writer, two ranks, whose rank 0 died once after step 31; 38 steps."""
    pytest.importorskip(request.param)
    monkeypatch.syspath_prepend(HERE)
    path = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    handlers = ["fatal:die_once_at_step_31", "pacing:pace"]
    overrides = {"training.writers": [request.param], "training.handlers": handlers}
    run = new_run("run", rows=300, overrides=overrides)
    command = [sys.executable, "-m", "paddlewheel.training.agent", run.uri, "--root", run.store.root]
    done = subprocess.run(
        [*command, "--ranks-per-node", "2"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return run


def losses_of(run: Any) -> list[tuple[int, float]]:
    from paddlewheel.training.curve import read_curve

    records = read_curve(run.store, RUN_KEY)
    assert len({record.attempt for record in records}) == 2
    return [(record.step, record.loss) for record in records]


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["mlflow"], indirect=True)
def test_mlflow_has_one_run_with_each_step_once_after_a_death(trained: Any) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{trained.folder}/root/tracking/mlflow.db")
    experiment = client.get_experiment_by_name("small")
    [found] = client.search_runs([experiment.experiment_id])
    assert (found.info.status, found.data.tags["paddlewheel.run"]) == ("FINISHED", RUN_KEY)
    assert found.data.params["training.global_batch"] == "16"
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == losses_of(trained)


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["visualdl"], indirect=True)
def test_visualdl_has_one_log_with_each_step_once_after_a_death(trained: Any) -> None:
    visualdl = pytest.importorskip("visualdl")
    folder = trained.folder / "root" / "tracking" / "visualdl" / "small" / RUN_KEY
    assert sorted(path.name for path in folder.iterdir()) == ["vdlrecords.training.log", "written.json"]
    reader = visualdl.LogReader(file_path=str(folder / "vdlrecords.training.log"))
    points = [(point.id, point.value) for point in reader.get_data("scalar", "loss")]
    assert points == [(number, pytest.approx(loss, rel=1e-6)) for number, loss in losses_of(trained)]
    tags = {"loss", "learning_rate", "gradient_norm", "rows_per_second"}
    assert tags <= set(reader.get_tags()["scalar"])


@pytest.mark.slow
def test_a_visualdl_log_that_was_cut_in_the_middle_of_a_record_goes_on_whole(tmp_path: Path) -> None:
    visualdl = pytest.importorskip("visualdl")
    from paddlewheel.training.writers.visualdl_files import LOG_NAME, VisualdlLog

    log = VisualdlLog(tmp_path)
    log.write([Point(name="loss", value=0.5, step=4, at=1.0)])
    with (tmp_path / LOG_NAME).open("ab") as file:
        file.write(b"\x07half a record")  # a process that died between its log and written.json
    again = VisualdlLog(tmp_path)
    assert again.last_step() == 4
    again.write([Point(name="loss", value=0.25, step=5, at=2.0)])
    reader = visualdl.LogReader(file_path=str(tmp_path / LOG_NAME))
    assert [(point.id, point.value) for point in reader.get_data("scalar", "loss")] == [(4, 0.5), (5, 0.25)]


@pytest.mark.slow
def test_mlflows_file_is_whole_or_not_there_when_its_maker_dies(store: LocalStore) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    from paddlewheel.training.writers.mlflow_runs import database_uri

    code = "import sys\nfrom paddlewheel.storage import open_store\n"
    code += "from paddlewheel.training.writers.mlflow_runs import database_uri\ndatabase_uri(open_store(sys.argv[1]))"
    maker = subprocess.Popen([sys.executable, "-c", code, store.root])
    folder, deadline = store.folder / "tracking", time.monotonic() + 60
    while not any(path.stat().st_size for path in folder.glob(".tmp-*.db")):
        assert time.monotonic() < deadline
        assert maker.poll() is None
    maker.kill()
    maker.wait()
    assert not (folder / "mlflow.db").exists()
    client = tracking.MlflowClient(tracking_uri=database_uri(store))
    assert [one.name for one in client.search_experiments()] == ["Default"]
