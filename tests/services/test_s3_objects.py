"""What a job's end is judged by, in a bucket of a real server: there, not there, or refused, which is neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paddle_cluster.job_operator import PaddleJobOperator
from paddle_cluster.job_work import read_result
from paddle_cluster.object_uri import ObjectError, list_names, read_object
from paddlewheel.storage import open_store

from .s3.proxy import Cut, Proxy
from .s3.server import S3Server, free_port

pytestmark = pytest.mark.services


def test_an_object_is_read_by_the_connection_and_a_missing_one_is_no_result(
    s3_server: S3Server, s3_bucket: str
) -> None:
    client = s3_server.client()
    for name in ("runs/ä b+%/result.json", "runs/ä b+%/attempts/1.verdict.json", "runs/ä b+%/attempts/logs/x"):
        client.put_object(Bucket=s3_bucket, Key=name, Body=b'{"facts": {"steps": 7}}')
    folder = open_store(f"s3://mine@{s3_bucket}").uri("runs/ä b+%")
    assert "%25" in folder
    found = read_result(f"{folder}/result.json")
    assert found is not None
    assert found["steps"] == 7
    assert read_result(f"{folder}/none.json") is None
    assert list_names(f"{folder}/attempts") == ["1.verdict.json"]
    assert list_names(f"{folder}/none") == []


def test_awss_own_configuration_serves_when_no_connection_is_named(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.client().put_object(Bucket=s3_bucket, Key="a", Body=b"abc")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.admin.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.admin.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert read_object(f"s3://{s3_bucket}/a") == b"abc"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"password": "wrong"}, "GetObject was refused on .*SignatureDoesNotMatch"),
        (
            {"extra": {"endpoint_url": "http://127.0.0.1:{port}", "region_name": "us-east-1"}},
            "could not be reach",
        ),
        ({"conn_type": "postgres"}, "connection 'mine' is of kind 'postgres'; s3://mine@… needs kind aws"),
        ({"extra": {"profile_name": "nobody"}}, "connection 'mine' cannot be used for S3"),
    ],
)
def test_a_refusal_is_an_error_and_never_a_missing_result(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], told: str
) -> None:
    text = json.dumps(json.loads(s3_server.connection()) | changed).replace("{port}", str(free_port()))
    monkeypatch.setenv("AIRFLOW_CONN_MINE", text)
    with pytest.raises(ObjectError, match=told) as caught:
        read_result(f"s3://mine@{s3_bucket}/runs/a/result.json")
    assert s3_server.admin.secret not in str(caught.value)


@pytest.mark.parametrize("after_bytes", [20, 60, 150, 200])
def test_a_cut_answer_is_an_error_and_never_a_missing_result(
    s3_server: S3Server, s3_bucket: str, proxy: Proxy, after_bytes: int
) -> None:
    """http.client takes the first lines of an answer's head for all of it: no length, and nothing to read."""
    s3_server.client().put_object(Bucket=s3_bucket, Key="a/b", Body=b"abc")
    for look in (lambda: read_object(f"s3://mine@{s3_bucket}/a/b"), lambda: list_names(f"s3://mine@{s3_bucket}/a")):
        proxy.cut = Cut(way="down", after_bytes=after_bytes, only=b"GET ")
        with pytest.raises(ObjectError, match=r"was cut off$|could not be reached"):
            look()
        assert proxy.cut.times == 0


def test_no_job_is_started_while_the_store_does_not_answer(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = json.loads(s3_server.connection())
    tree["extra"]["endpoint_url"] = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(tree))
    job = {
        "name": "run-a",
        "command": ["true"],
        "launcher": "local",
        "state_folder": str(tmp_path / "jobs"),
        "result_uri": f"s3://mine@{s3_bucket}/runs/a/result.json",
    }
    with pytest.raises(ObjectError, match="could not be reached"):
        PaddleJobOperator(task_id="train", job=job).execute({})
    assert not (tmp_path / "jobs").exists()


def test_a_bucket_that_is_not_there_is_no_missing_result(s3_bucket: str) -> None:
    with pytest.raises(ObjectError, match=r"GetObject was refused on s3://mine@no-such-bucket/a: NoSuchBucket"):
        read_object("s3://mine@no-such-bucket/a")
    with pytest.raises(ObjectError, match=r"ListBucket was refused on s3://mine@no-such-bucket/a: NoSuchBucket"):
        list_names("s3://mine@no-such-bucket/a")


def test_a_connection_that_airflow_has_not_is_told(s3_bucket: str) -> None:
    with pytest.raises(ObjectError, match="no connection 'nowhere'"):
        read_object(f"s3://nowhere@{s3_bucket}/a")
