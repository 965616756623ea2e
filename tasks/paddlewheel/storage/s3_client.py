"""A boto3 client from an Airflow connection of kind aws, or from the AWS configuration of this machine as it is.

What a connection says is read as Airflow's amazon provider reads it. boto3 is imported at the first request, never with
this module: a DAG that is parsed opens no store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from paddlewheel.connections import Connection, find_connection
from paddlewheel.errors import RecipeError
from paddlewheel.storage.s3_errors import refuse_cut_answer

CONNECT_SECONDS, READ_SECONDS = 10, 60
MAX_CONNECTIONS = 32


def build_client(connection_id: str) -> Any:
    """An S3 client; without a connection id by the environment, the profile and AWS_ENDPOINT_URL_S3.

    It does not retry: its user knows better what may be asked again. Raises RecipeError for a connection that is
    unknown, of another kind, or says what cannot be.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.handlers import add_expect_header

    connection = find_connection(connection_id) if connection_id else Connection(kind="aws")
    where = f"the connection {connection_id!r}" if connection_id else "the AWS configuration"
    if connection.kind not in ("aws", "s3"):
        raise RecipeError(f"{where} is of kind {connection.kind!r}; a store on S3 needs one of kind aws")
    if connection.extra.get("role_arn"):
        raise RecipeError(
            f"{where} has role_arn, which is not read here; name a profile that assumes the role (profile_name)"
        )
    own: Any = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=MAX_CONNECTIONS,
    )
    try:
        config: Any = own.merge(Config(**_config_arguments(connection)))
        session: Any = boto3.session.Session(**_session_arguments(connection))
        # An endpoint of one's own is addressed by path unless config_kwargs says otherwise: botocore sees to that.
        client = session.client("s3", config=config, endpoint_url=_endpoint(connection), verify=_verify(connection))
    except (BotoCoreError, TypeError, ValueError) as error:
        raise RecipeError(f"{where} cannot be used for S3: {error}") from error
    client.meta.events.register("after-call.s3", _look_at_answer)
    # A connection that closes inside the answer "100 Continue" would keep botocore reading for ever.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client


def _look_at_answer(*, http_response: Any, model: Any, **_: Any) -> None:
    if http_response.status_code < 300:
        body = None if model.has_streaming_output else http_response.content
        refuse_cut_answer(model.name, http_response.headers, body)


def _session_arguments(connection: Connection) -> dict[str, Any]:
    extra = connection.extra
    key_id, secret = connection.login, connection.password
    if not (key_id and secret):
        key_id, secret = extra.get("aws_access_key_id") or "", extra.get("aws_secret_access_key") or ""
    found = {
        "aws_access_key_id": key_id,
        "aws_secret_access_key": secret,
        "aws_session_token": extra.get("aws_session_token"),
        "region_name": extra.get("region_name"),
        "profile_name": extra.get("profile_name"),
    }
    for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"):
        if re.search(r"\s", found[name] or ""):
            raise ValueError(f"its {name} has white space in it, as a line's end that was copied with it")
    return {name: value for name, value in found.items() if value}


def _config_arguments(connection: Connection) -> dict[str, Any]:
    arguments = dict(_tree(connection.extra.get("config_kwargs")))
    if arguments.get("signature_version") == "unsigned":
        from botocore import UNSIGNED

        arguments["signature_version"] = UNSIGNED
    return arguments


def _endpoint(connection: Connection) -> str | None:
    service = _tree(_tree(connection.extra.get("service_config")).get("s3"))
    return service.get("endpoint_url", connection.extra.get("endpoint_url")) or None


def _verify(connection: Connection) -> bool | str | None:
    """Whether certificates are verified, or by which authorities. A connection's URI can only say it in letters."""
    value = connection.extra.get("verify")
    return {"true": True, "false": False}.get(str(value).lower(), value)


def _tree(value: Any) -> Mapping[str, Any]:
    """A part of the extra, which is JSON within a string where the connection is a URI."""
    tree = json.loads(value) if isinstance(value, str) and value else value or {}
    if not isinstance(tree, Mapping):
        raise ValueError(f"{tree!r} is not a mapping")
    return tree
