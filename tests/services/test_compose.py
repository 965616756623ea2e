"""The images and docker/compose.yaml for real: built, brought up, a night run through the Celery worker, brought down.

conftest.py finds or starts the engine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TAG = "test"
# A small night whose model the gate takes whatever it is worth: what is tested is the way, not the model.
QUICK = {
    "partition": "2013-11-01",
    "data.window.train_days": 21,
    "data.window.holdout_days": 3,
    "training.epochs": 2,
    "gate.min_auc": 0,
}
AIRFLOW_SERVICES = ("api-server", "dag-processor", "scheduler", "triggerer", "worker")

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A running compose project: its command line, its engine's environment, its secrets, its address."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    settings: Mapping[str, str]
    address: str


def run(command: list[str], environment: Mapping[str, str], *, timeout: int = 1800) -> str:
    """Standard output of a command that must succeed; an AssertionError with all it said otherwise."""
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def compose(deployment: Deployment, *arguments: str) -> str:
    """Standard output of `docker compose ARGUMENTS`."""
    return run([*deployment.command, *arguments], deployment.environment)


def inside(deployment: Deployment, service: str, *command: str) -> str:
    """Standard output of a command in a service's container."""
    return compose(deployment, "exec", "-T", service, *command)


def call(
    deployment: Deployment, method: str, path: str, body: Any = None, *, token: str | None = None
) -> tuple[int, Any]:
    """Status and JSON of one request to the API server."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(deployment.address + path, data=content, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def log_in(deployment: Deployment, user: str) -> str:
    """A token for one of the two users of the env file."""
    password = deployment.settings[f"{user.upper()}_PASSWORD"]
    status, answer = call(deployment, "POST", "/auth/token", {"username": user, "password": password})
    assert status == 201, answer
    token: str = answer["access_token"]
    return token


def wait_for(what: str, ask: Callable[[], Any], *, seconds: float) -> Any:
    """The first true answer; an AssertionError that names what was waited for when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(2)


@pytest.fixture(scope="module")
def deployment(engine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The whole compose project, built and healthy, with secrets of its own, on a free port."""
    env_file = tmp_path_factory.mktemp("compose") / "env"
    run([str(PROJECT / "docker" / "make-env.sh"), str(env_file)], engine)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = [line for line in env_file.read_text().splitlines() if not line.startswith(("AIRFLOW_PORT=", "TAG="))]
    env_file.write_text("\n".join([*kept, f"AIRFLOW_PORT={port}", f"TAG={TAG}"]) + "\n")
    project = f"paddlewheel-test-{os.getpid()}"
    command = (
        "docker",
        "compose",
        "-p",
        project,
        "-f",
        str(PROJECT / "docker/compose.yaml"),
        "--env-file",
        str(env_file),
    )
    found = Deployment(
        command=command,
        environment=engine,
        settings=dict(
            line.split("=", 1) for line in env_file.read_text().splitlines() if "=" in line and line[0] != "#"
        ),
        address=f"http://127.0.0.1:{port}",
    )
    try:
        compose(found, "build")
        try:
            compose(found, "up", "--detach", "--wait", "--wait-timeout", "600")
        except AssertionError as error:
            logs = subprocess.run(
                [*command, "logs", "--tail", "60"], env=engine, capture_output=True, text=True, check=False
            )
            raise AssertionError(f"{error}\n{logs.stdout[-20_000:]}") from error
        yield found
    finally:
        run([*command, "--profile", "demo", "down", "--volumes", "--remove-orphans", "--timeout", "20"], engine)


def test_every_service_is_healthy_when_compose_is_up(deployment: Deployment) -> None:
    rows = [json.loads(line) for line in compose(deployment, "ps", "--format", "json").splitlines()]
    assert {row["Service"]: row["Health"] for row in rows} == {
        "postgres": "healthy", "redis": "healthy", "api-server": "healthy", "scheduler": "healthy",
        "dag-processor": "healthy", "triggerer": "healthy", "worker": "healthy",
    }  # fmt: skip


def test_health_check_fails_when_the_job_is_not_there(deployment: Deployment) -> None:
    check = ["exec", "-T", "scheduler", "python", "docker/healthcheck.py", "job", "TriggererJob"]
    done = subprocess.run(
        [*deployment.command, *check], env=dict(deployment.environment), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split(" on ")[0]) == (1, "no running TriggererJob")


def test_only_the_api_is_published_and_on_loopback_when_compose_is_up(deployment: Deployment) -> None:
    rows = [json.loads(line) for line in compose(deployment, "ps", "--format", "json").splitlines()]
    published = {
        (row["Service"], entry["URL"], entry["TargetPort"])
        for row in rows for entry in row["Publishers"] or [] if entry["PublishedPort"]
    }  # fmt: skip
    assert published == {("api-server", "127.0.0.1", 8080)}


@pytest.mark.parametrize("service", AIRFLOW_SERVICES)
def test_code_is_read_only_and_the_user_is_not_root_when_a_service_runs(deployment: Deployment, service: str) -> None:
    script = (
        "id -u; for path in dags plugins tasks recipes docker; do test -w $path && echo $path is writable; done; true"
    )
    assert inside(deployment, service, "sh", "-c", script) == "1000\n"


def test_paddle_is_in_the_workers_image_alone(deployment: Deployment) -> None:
    script = "import importlib.util as u; print([u.find_spec(name) is not None for name in ('airflow', 'paddle')])"
    assert inside(deployment, "worker", "python", "-c", script) == "[True, True]\n"
    assert inside(deployment, "scheduler", "python", "-c", script) == "[True, False]\n"


def test_api_wants_a_token_and_the_right_role_when_a_run_is_asked_for(deployment: Deployment) -> None:
    body = {"logical_date": None, "conf": {}}
    assert call(deployment, "POST", "/api/v2/dags/nightly_retrain/dagRuns", body)[0] == 401
    viewer = log_in(deployment, "viewer")
    assert call(deployment, "POST", "/api/v2/dags/nightly_retrain/dagRuns", body, token=viewer)[0] == 403
    wrong = {"username": "admin", "password": deployment.settings["VIEWER_PASSWORD"]}
    assert call(deployment, "POST", "/auth/token", wrong)[0] == 401


def test_no_package_is_installed_again_when_code_changes(deployment: Deployment, tmp_path: Path) -> None:
    for name in ("dags", "docker", "plugins", "recipes", "tasks"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.txt"):
        shutil.copy2(PROJECT / name, tmp_path / name)
    with (tmp_path / "tasks/paddlewheel/errors.py").open("a") as source:
        source.write(f"\n# {time.time_ns()}\n")
    command = ["docker", "build", "--progress", "plain", "--file", str(tmp_path / "docker/airflow.Dockerfile")]
    done = subprocess.run(
        [*command, "--target", "worker", str(tmp_path)],
        env=dict(deployment.environment), capture_output=True, text=True, check=True,
    )  # fmt: skip
    steps = dict(re.findall(r"^#(\d+) \[(.+?) +\d+/\d+\] RUN", done.stderr, re.MULTILINE))
    cached = set(re.findall(r"^#(\d+) CACHED$", done.stderr, re.MULTILINE))
    again = sorted(stage for number, stage in steps.items() if number not in cached)
    assert again == ["code", "worker"]  # bytecode of the code, and the link to it


def test_night_ends_with_a_champion_when_it_is_triggered_by_the_api(deployment: Deployment) -> None:
    compose(deployment, "run", "--rm", "-T", "demo")
    token = log_in(deployment, "admin")
    night = "/api/v2/dags/nightly_retrain"
    wait_for("the DAG to be parsed", lambda: call(deployment, "GET", night, token=token)[0] == 200, seconds=120)
    status, run = call(deployment, "POST", f"{night}/dagRuns", {"logical_date": None, "conf": QUICK}, token=token)
    assert status == 200, run
    # Switched on only now, so that this run comes before the one that the schedule then asks for.
    assert call(deployment, "PATCH", night, {"is_paused": False}, token=token)[0] == 200

    def ended() -> str | None:
        state: str = call(deployment, "GET", f"{night}/dagRuns/{run['dag_run_id']}", token=token)[1]["state"]
        return state if state in ("success", "failed") else None

    state = wait_for("the night to end", ended, seconds=900)
    tasks = call(deployment, "GET", f"{night}/dagRuns/{run['dag_run_id']}/taskInstances", token=token)[1][
        "task_instances"
    ]
    states = {task["task_id"]: task["state"] for task in tasks}
    assert state == "success", f"{states}\n{failed_log(deployment, run['dag_run_id'], states)}"
    assert set(states.values()) == {"success"}

    runs = json.loads(inside(deployment, "worker", "paddlewheel", "runs", "list", "--json"))
    found = [
        (entry["recipe"], entry["partition"], entry["state"], entry["attempts"], entry["verdict"]) for entry in runs
    ]
    assert found == [("flights_delay", "2013-11-01", "trained", 1, "accepted")]
    models = json.loads(inside(deployment, "worker", "paddlewheel", "models", "list", "--json"))
    assert models == [{"name": "flights_delay", "champion": 1, "versions": 1}]
    assert json.loads(inside(deployment, "worker", "paddlewheel", "runs", "verify", "--json"))["problems"] == []
    check_deferral(deployment, run["dag_run_id"])
    check_card(deployment, runs[0]["key"], token)


def check_deferral(deployment: Deployment, run_id: str) -> None:
    """The training gave its slot back: the triggerer watched the job, which ran in the worker's container."""
    log = inside(
        deployment,
        "worker",
        "sh",
        "-c",
        f"cat '/opt/airflow/logs/dag_id=nightly_retrain/run_id={run_id}/task_id=train'/*",
    )
    assert "DEFERRED" in log.upper(), log[-2000:]


def check_card(deployment: Deployment, key: str, token: str) -> None:
    """The API server reads the card from the root's volume, for those who are logged in."""
    address = f"{deployment.address}/paddlewheel/runs/{key}/card"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(address, timeout=30)
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert key in answer.read().decode()


def failed_log(deployment: Deployment, run_id: str, states: Mapping[str, str]) -> str:
    """The end of the logs of the tasks that failed."""
    folder = f"/opt/airflow/logs/dag_id=nightly_retrain/run_id={run_id}"
    failed = [task for task, state in states.items() if state == "failed"]
    return "\n".join(
        inside(deployment, "worker", "sh", "-c", f"find '{folder}/task_id={task}' -type f -exec tail -n 40 {{}} +")
        for task in failed
    )


def test_training_image_trains_without_airflow_when_built(deployment: Deployment) -> None:
    image = f"paddlewheel/train:{TAG}"
    dockerfile = str(PROJECT / "docker/train.Dockerfile")
    run(["docker", "build", "--quiet", "--tag", image, "--file", dockerfile, str(PROJECT)], deployment.environment)
    script = (
        "import importlib.util, os, paddle; "
        "print(importlib.util.find_spec('airflow'), os.getuid(), paddle.to_tensor([2.0]).square().item())"
    )
    said = run(
        ["docker", "run", "--rm", "--entrypoint", "python", image, "-W", "ignore", "-c", script], deployment.environment
    )
    assert said == "None 1000 4.0\n"
    checked = run(
        ["docker", "run", "--rm", image, "recipe", "check", "recipes/flights_delay.yaml"], deployment.environment
    )
    assert checked.startswith("recipes/flights_delay.yaml: fine, digest ")
