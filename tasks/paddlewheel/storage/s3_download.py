"""One object's bytes from S3: all of them and as they were stored, or an error.

A body's length is compared with what the server announced, its bytes with the checksum that the server keeps (botocore
does that where there is one) and with the digest that the writing store left beside it. Only then are they believed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

from paddlewheel.storage import READ_CHUNK_BYTES
from paddlewheel.storage.s3_upload import DIGEST


class BytesDiffer(Exception):
    """What came is not what was stored."""


def read_object(client: Any, bucket: str, name: str) -> bytes:
    """The object's bytes, in memory. Raises BytesDiffer, or botocore's errors."""
    answer = _get(client, bucket, name)
    raw: bytes = answer["Body"].read()
    _compare(answer, len(raw), xxhash.xxh3_128_hexdigest(raw))
    return raw


def save_object(client: Any, bucket: str, name: str, etag: str, path: Path) -> str:
    """Write the bytes of this version of an object to a file; their xxh3-128. Raises BytesDiffer, botocore's errors."""
    answer = _get(client, bucket, name, IfMatch=f'"{etag}"')
    state, size = xxhash.xxh3_128(), 0
    with path.open("wb") as file:
        while chunk := answer["Body"].read(READ_CHUNK_BYTES):
            state.update(chunk)
            file.write(chunk)
            size += len(chunk)
    _compare(answer, size, state.hexdigest())
    return state.hexdigest()


def _get(client: Any, bucket: str, name: str, **condition: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.get_object(Bucket=bucket, Key=name, ChecksumMode="ENABLED", **condition)
    return answer


def _compare(answer: dict[str, Any], size: int, digest: str) -> None:
    """Raises BytesDiffer where the bytes are not as many, or not those, that the answer's head says."""
    if size != answer["ContentLength"]:
        raise BytesDiffer(f"{size} bytes came, not {answer['ContentLength']}")
    stored = answer.get("Metadata", {}).get(DIGEST, digest)
    if digest != stored:
        raise BytesDiffer(f"the digest is {digest}, not {stored}, which its writer noted")
