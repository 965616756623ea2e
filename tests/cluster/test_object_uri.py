"""Objects by their URIs, and the connections that URIs name: into a job's environment and nowhere else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from paddle_cluster.connections import connection_json, environment_of, extra_of, named_connections
from paddle_cluster.job_work import build_spec
from paddle_cluster.jobs import JobSpec, JobState
from paddle_cluster.launchers.local import LocalLauncher
from paddle_cluster.object_uri import ObjectError, list_names, read_object
from paddlewheel.storage import path_to_uri

from .conftest import end_of

SECRET = "hush/+hush"
URI_FORM = "aws://AKIAEXAMPLE:hush%2F%2Bhush@/?region_name=eu-west-1&endpoint_url=http%3A%2F%2F127.0.0.1%3A9"


def test_a_missing_object_is_none_and_an_unreadable_one_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "Meine Läufe 100%"
    folder.mkdir()
    (folder / "b.json").write_bytes(b"{}")
    (folder / "a").mkdir()
    uri = path_to_uri(folder)
    assert read_object(f"{uri}/b.json") == b"{}"
    assert read_object(f"{uri}/c.json") is None
    assert read_object(f"{uri}/b.json/d") is None
    assert list_names(uri) == ["b.json"]
    assert list_names(f"{uri}/none") == []
    with pytest.raises(ObjectError, match="could not be read: Is a directory"):
        read_object(f"{uri}/a")


def test_a_scheme_that_is_not_read_is_told() -> None:
    with pytest.raises(ValueError, match=r"'gs://b/k': results are looked for at file:///PATH and s3://"):
        read_object("gs://b/k")


def test_connections_are_those_that_uris_name() -> None:
    texts = ["agent", "s3://one@bucket/runs/a", "--root", "s3://one@bucket", "s3://plain/x@y", "s3://two@b", "a@b"]
    assert named_connections(texts) == ["one", "two"]


def test_a_connection_is_handed_on_as_json_in_either_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", URI_FORM)
    monkeypatch.setenv("AIRFLOW_CONN_JOBS", json.dumps({"conn_type": "generic", "extra": {"state_folder": "/jobs"}}))
    (name, raw), *rest = environment_of(["store"]).items()
    tree = json.loads(raw)
    assert (name, rest) == ("AIRFLOW_CONN_STORE", [])
    assert (tree["conn_type"], tree["login"], tree["password"]) == ("aws", "AKIAEXAMPLE", SECRET)
    assert json.loads(tree["extra"]) == {"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:9"}
    assert extra_of("jobs") == {"state_folder": "/jobs"}
    assert connection_json("nowhere") is None
    with pytest.raises(LookupError, match="no connection 'nowhere'; add it"):
        environment_of(["nowhere"])


def test_secrets_reach_the_job_and_no_file_or_text_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", URI_FORM)
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "aws://not:this@/")
    monkeypatch.setenv("AWS_PROFILE", "night")
    monkeypatch.setenv("UNRELATED", "not this")
    found = tmp_path / "found"
    script = f"import json, os; open({str(found)!r}, 'w').write(json.dumps(dict(os.environ)))"
    job = {"name": "run-a", "command": [sys.executable, "-c", script, "s3://store@bucket/root"]}
    spec = build_spec(job, 1, {})
    launcher = LocalLauncher(state_folder=tmp_path / "jobs")
    texts = [launcher.render(spec), repr(spec)]
    assert end_of(launcher, launcher.submit(spec)).state is JobState.SUCCEEDED
    environment = json.loads(found.read_text())
    assert json.loads(environment["AIRFLOW_CONN_STORE"])["password"] == SECRET
    assert environment["AWS_PROFILE"] == "night"
    assert not {"AIRFLOW_CONN_OTHER", "UNRELATED"} & set(environment)
    texts += [path.read_text() for path in (tmp_path / "jobs").rglob("*") if path.is_file()]
    assert len(texts) > 5
    assert not [text for text in texts if "hush" in text]


def test_nothing_of_a_connection_is_looked_up_when_no_uri_names_one(tmp_path: Path) -> None:
    assert build_spec({"name": "run-a", "command": ["true", "--root", str(tmp_path)]}, 1, {}).secrets == {}
    assert JobSpec(name="a", command=("true",)).secrets == {}
    assert "AIRFLOW_CONN_STORE" not in os.environ
