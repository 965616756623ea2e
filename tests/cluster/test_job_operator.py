"""Works as tasks of a real Airflow, by `airflow dags test`: one run, each task's job comes to another end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from .airflow_home import AirflowHome, build_home
from .conftest import lines_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
DAG = Path(__file__).with_name("jobs_dag.py")
WORKS = (
    "succeeds", "lost_once", "preempted_once", "user_fault", "vanishes_with_result", "no_result", "done_before",
    "overdue", "not_deferred",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the DAG."""

    home: AirflowHome
    code: int
    output: str

    def jobs(self, work: str) -> list[str]:
        """Names of the work's jobs, in order."""
        return sorted(path.name for path in (self.home.works / "jobs").glob(f"work-{work}-*"))

    def starts(self, work: str) -> int:
        """How often the command of the work's jobs began."""
        return len(lines_of(self.home.works / work / "starts"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("airflow")
    home = build_home(folder, DAG)
    for work in WORKS:
        (home.works / work).mkdir(parents=True)
    (home.works / "done_before/result.json").write_text('{"facts": {"steps": 9}}')
    done = home.run("dags", "test", "jobs")
    (folder / "output.txt").write_text(done.stdout)
    return Run(home=home, code=done.returncode, output=done.stdout)


def test_run_fails_when_some_works_cannot_be_done(run: Run) -> None:
    states = {task: state for task, (state, _) in run.home.tasks().items()}
    assert states == {
        "describe": "success",
        "succeeds": "success",
        "lost_once": "success",
        "preempted_once": "success",
        "user_fault": "failed",
        "vanishes_with_result": "success",
        "no_result": "failed",
        "done_before": "success",
        "overdue": "failed",
        "not_deferred": "success",
    }, run.output[-5000:]
    assert run.code == 1


@pytest.mark.parametrize("work", ["succeeds", "not_deferred"])
def test_one_job_runs_and_its_result_is_returned_when_it_succeeds(run: Run, work: str) -> None:
    assert run.jobs(work) == [f"work-{work}-1"]
    assert run.starts(work) == 1
    assert run.home.returned(work) == {
        "steps": 3,
        "order_ok": True,
        # sha256sum of the 55 bytes {"facts": {"steps": 3, "order_ok": true, "curve": [1]}}
        "digest": "sha256:3e0d88ab16bed2b8fd0befceb5afcae1c59fc51c49cf7a580b0e76329229b98d",
        "uri": f"file://{run.home.works}/{work}/result.json",
        "name": f"work-{work}-1",
    }


def test_jobs_log_is_in_the_tasks_log_when_it_ended(run: Run) -> None:
    after = run.output[run.output.index("log of job work-succeeds-1, the last 100 lines") :]
    assert "epoch 1 of 1" in after.splitlines()[1]


@pytest.mark.parametrize("work", ["lost_once", "preempted_once"])
def test_second_job_goes_on_when_the_first_vanished_or_was_preempted(run: Run, work: str) -> None:
    assert run.jobs(work) == [f"work-{work}-1", f"work-{work}-2"]
    assert run.starts(work) == 2
    assert run.home.tasks()[work] == ("success", 2)


def test_task_fails_at_once_with_the_agents_words_when_user_code_failed(run: Run) -> None:
    assert run.home.tasks()["user_fault"] == ("failed", 1)
    assert run.jobs("user_fault") == ["work-user_fault-1"]
    assert (
        "job work-user_fault-1 failed with exit code 10, user code failed; attempt 2 on rank 1: "
        "ZeroDivisionError: division by zero; mend the code that the trace names" in run.output
    )
    assert "File model.py, line 7" in run.output


def test_work_is_done_when_its_job_vanished_but_left_a_result(run: Run) -> None:
    assert run.home.tasks()["vanishes_with_result"] == ("success", 1)
    assert run.starts("vanishes_with_result") == 1


def test_task_fails_when_the_job_ended_well_without_a_result(run: Run) -> None:
    assert run.starts("no_result") == 1
    assert f"ended with 0 but left no file://{run.home.works}/no_result/result.json" in run.output


def test_no_job_is_started_when_the_result_is_there(run: Run) -> None:
    assert run.jobs("done_before") == []
    assert run.starts("done_before") == 0
    assert run.home.returned("done_before")["steps"] == 9


def test_job_is_cancelled_and_the_task_fails_when_the_deadline_passes(run: Run) -> None:
    end = json.loads((run.home.works / "jobs/work-overdue-1/exit.json").read_text())
    assert (end["cancelled"], end["exit_code"]) == (True, 143)
    assert "job work-overdue-1: timeout (the job's deadline passed)" in run.output
