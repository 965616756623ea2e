"""Reading from S3 with an Airflow connection of kind aws, read as the amazon provider reads it.

Without a connection by AWS's own configuration: environment, profile, the role of the machine. boto3 is imported at the
first request.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit

from paddle_cluster.connections import connection_json
from paddle_cluster.object_uri import ObjectError

CONNECT_SECONDS, READ_SECONDS, TRIES = 10, 60, 4


def read_key(place: str, key: str, uri: str) -> bytes | None:
    """The bytes of an object of [CONNECTION@]BUCKET; None where the bucket has no such key. Raises ObjectError."""
    from botocore.exceptions import BotoCoreError, ClientError

    client, bucket = open_bucket(place)
    try:
        raw: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    except client.exceptions.NoSuchKey:
        return None
    except (ClientError, BotoCoreError) as error:
        raise ObjectError(_told("GetObject", uri, error)) from error
    return raw


def list_prefix(place: str, prefix: str, uri: str) -> list[str]:
    """What the keys right below the prefix add to it, sorted. Raises ObjectError."""
    from botocore.exceptions import BotoCoreError, ClientError

    client, bucket = open_bucket(place)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
    try:
        return sorted(found["Key"].removeprefix(prefix) for page in pages for found in page.get("Contents", ()))
    except (ClientError, BotoCoreError) as error:
        raise ObjectError(_told("ListBucket", uri, error)) from error


def open_bucket(place: str) -> tuple[Any, str]:
    """(boto3's client, bucket) for [CONNECTION@]BUCKET. Raises ObjectError for a connection that cannot be used."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    connection_id, _, bucket = place.rpartition("@")
    connection = _read_connection(connection_id) if connection_id else {}
    extra = _tree(connection.get("extra"))
    login, password = connection.get("login"), connection.get("password")
    if not (login and password):
        login, password = extra.get("aws_access_key_id"), extra.get("aws_secret_access_key")
    # Config's own types stand in the stubs; the connection's arguments are the user's.
    own: Any = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"total_max_attempts": TRIES, "mode": "standard"},
    )
    endpoint = _tree(_tree(extra.get("service_config")).get("s3")).get("endpoint_url", extra.get("endpoint_url"))
    try:
        session: Any = boto3.session.Session(
            aws_access_key_id=login or None,
            aws_secret_access_key=password or None,
            aws_session_token=extra.get("aws_session_token"),
            region_name=extra.get("region_name"),
            profile_name=extra.get("profile_name"),
        )
        config: Any = own.merge(Config(**_tree(extra.get("config_kwargs"))))
        verify = {"true": True, "false": False}.get(str(extra.get("verify")).lower(), extra.get("verify"))
        arguments = {"endpoint_url": endpoint or None, "verify": verify}
        client = session.client("s3", config=config, **arguments)
        if _has_no_domains(client.meta.endpoint_url) and not (config.s3 or {}).get("addressing_style"):
            by_path: Any = {**(config.s3 or {}), "addressing_style": "path"}
            client = session.client("s3", config=config.merge(Config(s3=by_path)), **arguments)
    except (BotoCoreError, TypeError, ValueError) as error:
        whose = f"the connection {connection_id!r}" if connection_id else "the AWS configuration"
        raise ObjectError(f"{whose} cannot be used for S3: {error}") from error
    client.meta.events.register("after-call.s3", _must_be_whole)
    return client, bucket


def _must_be_whole(*, http_response: Any, model: Any, **_: Any) -> None:
    """Raise ObjectError for an answer whose head was cut off, which Python takes for whole: a listing for empty."""
    streams = model.has_streaming_output
    if http_response.status_code < 300 and not (
        http_response.headers.get("Content-Length") if streams else http_response.content
    ):
        raise ObjectError(f"the answer to {model.name} was cut off")


def _read_connection(connection_id: str) -> dict[str, Any]:
    raw = connection_json(connection_id)
    if raw is None:
        raise ObjectError(f"Airflow has no connection {connection_id!r}, by which s3://{connection_id}@… is read")
    tree = _tree(raw)
    kind = tree.get("conn_type")
    if kind not in ("aws", "s3"):
        raise ObjectError(
            f"the connection {connection_id!r} is of kind {kind!r}; s3://{connection_id}@… needs kind aws"
        )
    return tree


def _tree(value: Any) -> dict[str, Any]:
    """A part of the extra, which is JSON within a string where the connection is a URI."""
    tree = json.loads(value) if isinstance(value, str) and value else value
    return tree if isinstance(tree, dict) else {}


def _has_no_domains(endpoint_url: str) -> bool:
    """Whether `BUCKET.HOST` names no host: an address, localhost, a bare name as a container has."""
    host = urlsplit(endpoint_url).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(".localhost")
    return True


def _told(action: str, uri: str, error: Any) -> str:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        found = answer.get("Error", {})
        return f"{action} was refused on {uri}: {found.get('Code')} ({found.get('Message')})"
    return f"{uri} could not be reached: {error}"
