"""How a connection becomes an S3 client: as Airflow's amazon provider reads it, and nothing imported too early."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlewheel.errors import RecipeError
from paddlewheel.storage import open_store
from paddlewheel.storage.s3_client import build_client


def client_of(monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any] | str) -> Any:
    raw = connection if isinstance(connection, str) else json.dumps({"conn_type": "aws", **connection})
    monkeypatch.setenv("AIRFLOW_CONN_MINE", raw)
    return build_client("mine")


def credentials_of(client: Any) -> tuple[str, str, str | None]:
    found = client._request_signer._credentials
    return found.access_key, found.secret_key, found.token


def test_keys_region_and_token_come_from_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"region_name": "eu-central-1", "aws_session_token": "token"}
    client = client_of(monkeypatch, {"login": "ID", "password": "se/cr+et", "extra": extra})
    assert credentials_of(client) == ("ID", "se/cr+et", "token")
    assert client.meta.region_name == "eu-central-1"
    assert client.meta.endpoint_url == "https://s3.eu-central-1.amazonaws.com"


def test_a_connections_uri_serves_as_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "aws://ID:se%2Fcr%2Bet@/?endpoint_url=http%3A%2F%2F127.0.0.1%3A9000&region_name=us-east-1&verify=False"
    client = client_of(monkeypatch, uri)
    assert credentials_of(client)[:2] == ("ID", "se/cr+et")
    assert client.meta.endpoint_url == "http://127.0.0.1:9000"
    assert client._endpoint.http_session._verify is False


def test_keys_may_stand_in_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"aws_access_key_id": "ID", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    assert credentials_of(client_of(monkeypatch, {"extra": extra}))[:2] == ("ID", "secret")


def test_a_profile_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "credentials").write_text("[night]\naws_access_key_id = PID\naws_secret_access_key = ps\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    client = client_of(monkeypatch, {"extra": {"profile_name": "night", "region_name": "us-east-1"}})
    assert credentials_of(client)[:2] == ("PID", "ps")


@pytest.mark.parametrize(
    ("extra", "address"),
    [
        ({"endpoint_url": "http://127.0.0.1:9000"}, "http://127.0.0.1:9000/bucket/a%20b"),
        ({"endpoint_url": "http://[::1]:9000"}, "http://[::1]:9000/bucket/a%20b"),
        ({"endpoint_url": "http://localhost:9000"}, "http://localhost:9000/bucket/a%20b"),
        ({"endpoint_url": "http://minio:9000"}, "http://minio:9000/bucket/a%20b"),
        ({"endpoint_url": "https://s3.example.org"}, "https://s3.example.org/bucket/a%20b"),
        (
            {"endpoint_url": "https://s3.example.org", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
            "https://bucket.s3.example.org/a%20b",
        ),
        (
            {"endpoint_url": "https://x.example.org", "service_config": {"s3": {"endpoint_url": "http://minio"}}},
            "http://minio/bucket/a%20b",
        ),
        ({}, "https://bucket.s3.amazonaws.com/a%20b"),
    ],
)
def test_the_address_is_one_that_exists(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], address: str) -> None:
    extra = {"region_name": "us-east-1", **extra}
    client = client_of(monkeypatch, {"login": "ID", "password": "secret", "extra": extra})
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "a b"})
    assert url.split("?")[0] == address


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ({"conn_type": "postgres"}, "is of kind 'postgres'; a store on S3 needs one of kind aws"),
        ({"extra": {"role_arn": "arn:aws:iam::1:role/x"}}, "name a profile that assumes the role"),
        ({"extra": {"profile_name": "no-such-profile"}}, "no-such-profile"),
        ({"extra": {"config_kwargs": {"no_such": 1}}}, "no_such"),
        ({"extra": {"endpoint_url": "nowhere"}}, "nowhere"),
        ({"extra": {"service_config": "x"}}, "cannot be used for S3"),
    ],
)
def test_what_a_connection_cannot_say_is_told(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=r"^the connection 'mine' ") as caught:
        client_of(monkeypatch, {"login": "ID", "password": "sEcReT", **connection})
    assert words in str(caught.value)
    assert "sEcReT" not in str(caught.value)


def test_a_connection_that_nobody_knows_is_told_at_the_first_request() -> None:
    with pytest.raises(RecipeError, match="there is no connection 'nobody'; add it in Airflow, or set AIRFLOW_CONN"):
        open_store("s3://nobody@bucket/root").stat("a")


@pytest.mark.parametrize("root", ["s3://", "s3:///prefix", "s3://mine@/prefix", "s3://bucket/a?b", "s3://bucket/a#b"])
def test_a_root_without_a_bucket_is_refused(root: str) -> None:
    with pytest.raises(RecipeError, match=r"is no root on S3; write s3://\[CONNECTION@\]BUCKET/PREFIX"):
        open_store(root)


def test_a_root_is_the_same_however_it_is_written() -> None:
    for root in ("s3://mine@bucket/the root/", "s3://mine@bucket/the%20root", "s3://mine@bucket//the%20root"):
        store = open_store(root)
        assert store.root == "s3://mine@bucket/the%20root"
        assert store.uri("a b") == "s3://mine@bucket/the%20root/a%20b"
    assert open_store("s3://bucket").uri("a") == "s3://bucket/a"


@given(st.text(min_size=1).filter(lambda key: ".." not in key and not key.startswith("/") and key.isprintable()))
def test_every_key_comes_back_from_its_uri(key: str) -> None:
    for root in ("s3://mine@bucket/the%20root", "s3://bucket"):
        store = open_store(root)
        uri = store.uri(key)
        assert uri.isascii()
        assert store.key(uri) == key


def test_opening_a_store_imports_no_boto3() -> None:
    script = (
        "import sys; from paddlewheel.storage import open_store; open_store('s3://a@bucket/b'); print([*sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "'paddlewheel.storage.s3'" in done.stdout
    assert "'boto3'" not in done.stdout
    assert "'botocore'" not in done.stdout
