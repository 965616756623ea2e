"""What S3 and the way to it answer: what may be asked again, and what people are told of the rest.

A refusal names the action that was refused as a policy names it (a HEAD is refused as GetObject), the URI, the server's
reason and the way out. Secrets of keys are in none of it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from paddlewheel.errors import StorageError

# About fifteen seconds: a server that is started anew is waited for, a wrong address is told in bearable time.
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
SILENT_RETRIES = 2
TRANSIENT_STATUS = (429, 500, 502, 503, 504)
TRANSIENT_CODES = (
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "XAmzContentChecksumMismatch",
)
PERMISSIONS = {
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
}
WAYS_OUT = {
    "SignatureDoesNotMatch": "the secret does not belong to the key id: correct it in {credentials}",
    "InvalidAccessKeyId": "the server does not know this key id: correct it in {credentials}",
    "AccessDenied": "the key may not do that: grant it s3:{permission} there, or name another key in {credentials}",
    "NoSuchBucket": "create the bucket, or correct the root",
    "InvalidBucketName": "no bucket can have this name: correct the root",
    "NoSuchKey": "there is no such object",
    "RequestTimeTooSkewed": "set this machine's clock{skew}",
    "ExpiredToken": "renew the session token in {credentials}",
    "InvalidToken": "correct the session token in {credentials}",
    "TokenRefreshRequired": "renew the session token in {credentials}",
    "AuthorizationHeaderMalformed": "set the bucket's region (region_name) in {credentials}",
    "PermanentRedirect": "set the bucket's region (region_name) or endpoint in {credentials}",
    "IllegalLocationConstraintException": "set the bucket's region (region_name) in {credentials}",
    "PreconditionFailed": "the server says that another object is there, but shows none",
    "InsufficientStorage": "the server's disk is full: free some space there, then run the same command again",
    "KeyTooLongError": "shorten the root's prefix or the names in the recipe",
    "NotImplemented": "this server lacks what a store needs: conditional writes and checksums",
}
# Answers that say it all in their head, and answers that say it in a body.
IN_THE_HEAD = ("GetObject", "HeadObject", "PutObject", "UploadPart")
IN_THE_BODY = ("CompleteMultipartUpload", "CreateMultipartUpload", "ListMultipartUploads", "ListObjectsV2")
T = TypeVar("T")
log = logging.getLogger(__name__)


class AnswerCut(Exception):
    """A connection ended within an answer's head. Python takes what came for a whole answer, a listing for empty."""


def refuse_cut_answer(operation: str, headers: Mapping[str, str], body: bytes | None) -> None:
    """Raise AnswerCut where an answer that says yes lacks what every such answer has. `body` None: not read yet."""
    etag, missing = headers.get("ETag", ""), []
    if operation in IN_THE_HEAD and not (len(etag) > 1 and etag[0] == etag[-1] == '"'):
        missing.append("ETag")
    if operation in ("GetObject", "HeadObject"):
        missing += [name for name in ("Content-Length", "Last-Modified") if not headers.get(name)]
    if operation in IN_THE_BODY and not body:
        missing.append("body")
    if missing:
        raise AnswerCut(f"the answer was cut off: it has no {' and no '.join(missing)}")


def code_of(error: BaseException) -> str:
    """The server's code (`NoSuchKey`; `404` where it sent no body), or empty for what is no answer of a server."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def status_of(error: BaseException) -> int:
    """The HTTP status of a server's answer, or 0."""
    response = getattr(error, "response", None)
    found = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    return int(found.get("HTTPStatusCode") or 0)


def is_unmet(error: BaseException) -> bool:
    """Whether If-Match or If-None-Match did not hold."""
    return code_of(error) in ("PreconditionFailed", "412")


def is_transient(error: BaseException) -> bool:
    """Whether the same may be asked again. A write may have been done all the same: look before it is."""
    from botocore.exceptions import (
        ClientError,
        ConnectionError,
        HTTPClientError,
        IncompleteReadError,
        ResponseStreamingError,
    )

    if isinstance(error, ClientError):
        return code_of(error) in TRANSIENT_CODES or status_of(error) in TRANSIENT_STATUS
    if isinstance(error, ConnectionError | HTTPClientError):  # none, a cut one, a time-out
        return not any(words in str(error) for words in ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER"))
    return isinstance(error, AnswerCut | IncompleteReadError | ResponseStreamingError)


def pause(number: int, error: BaseException, what: str) -> bool:
    """Sleep before try `number` (from 1) is made again; False, at once, after the last."""
    if number > len(PAUSES_SECONDS):
        return False
    seconds = PAUSES_SECONDS[number - 1] * random.uniform(0.5, 1.0)
    if number > SILENT_RETRIES:
        log.warning("%s: %s; again in %.1f s", what, reason_of(error), seconds)
    time.sleep(seconds)
    return True


def ask(request: Callable[[], T], what: str) -> T:
    """What a request that changes nothing gives, asked again where that may help. Raises the last error as it is."""
    number = 0
    while True:
        number += 1
        try:
            return request()
        except Exception as error:
            if not is_transient(error) or not pause(number, error, what):
                raise


def reason_of(error: BaseException) -> str:
    """The server's code and words, or the library's."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        found = response.get("Error", {})
        words = str(found.get("Message") or "").strip().rstrip(".")[:200]
        return f"{found.get('Code')} ({words})" if words and words != found.get("Code") else str(found.get("Code"))
    return str(error).rstrip(".") or type(error).__name__


def refusal(error: BaseException, action: str, uri: str, connection_id: str) -> StorageError:
    """The error that people are told. `action` as boto3 names it (`HeadObject`)."""
    from botocore.exceptions import BotoCoreError, ConnectionError, HTTPClientError

    permission = PERMISSIONS.get(action, action)
    credentials = (
        f"the connection {connection_id!r}" if connection_id else "the AWS configuration (environment, profile)"
    )
    code, reason = code_of(error), reason_of(error)
    if code:
        way_out = WAYS_OUT.get(code, "see what the server's documentation says of it")
        if code == "AccessDenied" and permission == "GetObject":
            way_out += "; or there is no such object, and the key may not list the bucket (s3:ListBucket)"
        told = way_out.format(credentials=credentials, permission=permission, skew=_skew(error))
        return StorageError(f"{permission} was refused on {uri}: {reason}; {told}")
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        told = f"put a key id and its secret into {credentials}, or name a connection: s3://CONNECTION@BUCKET/…"
        return StorageError(f"{permission} on {uri} was not asked for: {reason}; {told}")
    if isinstance(error, HTTPClientError | ConnectionError | AnswerCut):
        told = f"is the server up, and its address right in {credentials}?"
        if "WRONG_VERSION_NUMBER" in reason:
            told = f"that address speaks no TLS: write it with http:// in {credentials}"
        return StorageError(f"{permission} on {uri} got no answer: {reason}; {told}")
    if type(error).__name__ == "ParamValidationError" and "Invalid bucket name" in reason:
        return StorageError(f"{permission} on {uri} was not asked for: {WAYS_OUT['InvalidBucketName']}")
    if isinstance(error, BotoCoreError):
        return StorageError(f"{permission} on {uri} failed: {reason}; see {credentials}")
    return StorageError(f"{permission} on {uri} failed: {reason}")


def _skew(error: BaseException) -> str:
    """By how much the clock is off, where the server's answer says its time."""
    response: Any = getattr(error, "response", {})
    try:
        theirs = parsedate_to_datetime(response["ResponseMetadata"]["HTTPHeaders"]["date"])
        seconds = round((datetime.now(UTC) - theirs).total_seconds())
    except (KeyError, TypeError, ValueError):
        return ""
    return f": it is {abs(seconds)} seconds {'before' if seconds > 0 else 'behind'} the server's"
