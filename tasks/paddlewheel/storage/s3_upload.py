"""One upload to S3, whole or not at all and only where nothing is: a PUT, or parts side by side for what is large.

Every request carries its checksum: without one, some servers keep a body that was cut off half way.
"""

from __future__ import annotations

import base64
import contextlib
import mimetypes
import os
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from paddlewheel.storage.s3_errors import ask

PART_BYTES = 16 << 20
MULTIPART_BYTES = 64 << 20
MAX_PARTS = 10_000
PARTS_AT_ONCE = 4
# Metadata of each object that a store writes. `xxh3-128` spares a download where the same is published again.
DIGEST, WRITTEN, WRITER = "xxh3-128", "written-seconds", "writer"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Where a part begins, its size, and its checksum as S3 writes it."""

    start: int
    bytes: int
    crc32: str


@dataclass(frozen=True, kw_only=True)
class Body:
    """What is uploaded, with its digests: xxh3-128 is the store's, CRC-32 is what the server checks.

    `metadata` goes with it. The writer in it is this very upload: whose answer was lost knows its own object by it.
    """

    content: bytes | Path
    bytes: int
    digest: str
    crc32: str
    parts: tuple[Part, ...]
    metadata: Mapping[str, str]


def describe(content: bytes | Path) -> Body:
    """Read the content once. Raises OSError."""
    state, whole, start = xxhash.xxh3_128(), 0, 0
    parts: list[Part] = []
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    part_bytes = max(PART_BYTES, -(-size // MAX_PARTS))
    while start < size or not parts:
        chunk = _read(content, start, part_bytes)
        if len(chunk) != min(part_bytes, size - start):
            raise OSError(f"{content!s} became shorter while it was read")
        state.update(chunk)
        whole = zlib.crc32(chunk, whole)
        parts.append(Part(start=start, bytes=len(chunk), crc32=_letters(zlib.crc32(chunk))))
        start += part_bytes
    digest = state.hexdigest()
    metadata = {DIGEST: digest, WRITTEN: f"{time.time():.6f}", WRITER: os.urandom(8).hex()}
    return Body(
        content=content, bytes=size, digest=digest, crc32=_letters(whole), parts=tuple(parts), metadata=metadata
    )


def put(client: Any, bucket: str, name: str, body: Body, **condition: str) -> str:
    """PutObject; the new object's etag."""
    arguments = {
        "Bucket": bucket,
        "Key": name,
        "ContentLength": body.bytes,
        "ChecksumCRC32": body.crc32,
        **_headers(name, body),
        **condition,
    }
    if isinstance(body.content, bytes):
        return _etag(client.put_object(Body=body.content, **arguments))
    with body.content.open("rb") as file:
        return _etag(client.put_object(Body=file, **arguments))


def put_parts(client: Any, bucket: str, name: str, body: Body) -> str:
    """A multipart upload, completed only where nothing is; the new object's etag. Aborted where it fails."""
    whole = {"ChecksumType": "FULL_OBJECT"}
    upload = client.create_multipart_upload(
        Bucket=bucket, Key=name, ChecksumAlgorithm="CRC32", **_headers(name, body), **whole
    )["UploadId"]
    here = {"Bucket": bucket, "Key": name, "UploadId": upload}

    def send(number: int) -> dict[str, Any]:
        part = body.parts[number - 1]
        chunk = _read(body.content, part.start, part.bytes)
        sent = ask(
            lambda: client.upload_part(PartNumber=number, Body=chunk, ChecksumCRC32=part.crc32, **here),
            f"UploadPart {number} of {name}",
        )
        return {"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32": part.crc32}

    try:
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            try:
                parts = list(pool.map(send, range(1, len(body.parts) + 1)))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return _etag(
            client.complete_multipart_upload(
                MultipartUpload={"Parts": parts},
                ChecksumCRC32=body.crc32,
                MpuObjectSize=body.bytes,
                IfNoneMatch="*",
                **whole,
                **here,
            )
        )
    except BaseException:
        with contextlib.suppress(Exception):  # what it failed of is told; `sweep` finds what stays
            client.abort_multipart_upload(**here)
        raise


def _headers(name: str, body: Body) -> dict[str, Any]:
    """What is kept beside the bytes; with its type a browser shows a card and does not save it."""
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return {"ContentType": kind, "Metadata": dict(body.metadata)}


def _read(content: bytes | Path, start: int, size: int) -> bytes:
    if isinstance(content, bytes):
        return content[start : start + size]
    with content.open("rb") as file:
        file.seek(start)
        return file.read(size)


def _etag(answer: dict[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')


def _letters(checksum: int) -> str:
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()
