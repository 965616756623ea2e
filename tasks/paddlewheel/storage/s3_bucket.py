"""A bucket as it is spoken to: asked again where that helps, looked into where an answer says too little, errors told.

Names here are whole keys of the bucket. HEAD has no body, so that its 403 may be a wrong secret, a clock that is off or
a missing right, and its 404 a missing bucket: a GET of one byte tells.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from paddlewheel.errors import PaddlewheelError, StorageError
from paddlewheel.storage import ObjectChanged, ObjectDamaged, quote_key
from paddlewheel.storage.s3_client import build_client
from paddlewheel.storage.s3_download import BytesDiffer, read_object, save_object
from paddlewheel.storage.s3_errors import ask, code_of, is_unmet, refusal, status_of

T = TypeVar("T")
# What goes into the next request of a listing, and where the page says it.
NEXT = (
    ("ContinuationToken", "NextContinuationToken"),
    ("KeyMarker", "NextKeyMarker"),
    ("UploadIdMarker", "NextUploadIdMarker"),
)


class NoObject(StorageError):
    """The bucket is there, and has no such object."""


class S3Bucket:
    """Safe for threads; a forked process makes a client of its own."""

    def __init__(self, connection_id: str, bucket: str) -> None:
        self.connection_id, self.bucket = connection_id, bucket
        self.root = f"s3://{connection_id}@{bucket}" if connection_id else f"s3://{bucket}"
        self._lock = threading.Lock()
        self._made: tuple[int, Any] | None = None
        self._is_there = False

    @property
    def client(self) -> Any:
        """This process's boto3 client."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                self._made = (os.getpid(), build_client(self.connection_id))
            return self._made[1]

    def uri(self, name: str) -> str:
        """`s3://[CONNECTION@]BUCKET/NAME`."""
        return f"{self.root}/{quote_key(name)}"

    def told(self, error: BaseException, action: str, name: str) -> PaddlewheelError:
        """The error for people, which it may be already."""
        if isinstance(error, PaddlewheelError):
            return error
        return refusal(error, action, self.uri(name), self.connection_id)

    def head(self, name: str) -> dict[str, Any] | None:
        """What HeadObject says, or None where there is no such object."""
        try:
            found = self._ask("HeadObject", name, "head_object", Key=name)
        except Exception as error:
            if status_of(error) == 404 and self._is_there:
                return None
            if 400 <= status_of(error) < 500:
                return self.look_into(name)
            raise self.told(error, "HeadObject", name) from error
        self._is_there = True
        return found

    def look_into(self, name: str) -> dict[str, Any] | None:
        """The object's head after a HEAD that did not find it: the bucket itself may be gone, which this raises."""
        try:
            self._ask("GetObject", name, "get_object", Key=name)["Body"].close()
        except Exception as error:
            if code_of(error) == "NoSuchKey":
                self._is_there = True
                return None
            raise self.told(error, "GetObject", name) from error
        return self.request("HeadObject", name, "head_object", Key=name)

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises StorageError where there is none, ObjectDamaged for bytes other than stored."""
        return self._whole(name, lambda: read_object(self.client, self.bucket, name))

    def find(self, name: str) -> bytes | None:
        """The object's bytes, or None where there is no such object."""
        try:
            return self.read(name)
        except NoObject:
            return None

    def save(self, name: str, etag: str, path: Path) -> str:
        """Write this version of the object to a file; its xxh3-128. Raises ObjectChanged for another version."""
        return self._whole(name, lambda: save_object(self.client, self.bucket, name, etag, path))

    def pages(self, action: str, prefix: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """The pages of `ListObjectsV2` or `ListMultipartUploads` below a prefix."""
        call = {"ListObjectsV2": "list_objects_v2", "ListMultipartUploads": "list_multipart_uploads"}[action]
        while True:
            page = self.request(action, prefix, call, Prefix=prefix, **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments |= {ours: page[theirs] for ours, theirs in NEXT if page.get(theirs)}

    def request(self, action: str, name: str, call: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a request that may be made twice without harm. Raises StorageError."""
        try:
            return self._ask(action, name, call, **arguments)
        except Exception as error:
            raise self.told(error, action, name) from error

    def _ask(self, action: str, name: str, call: str, **arguments: Any) -> dict[str, Any]:
        client = self.client
        answer: dict[str, Any] = ask(
            lambda: getattr(client, call)(Bucket=self.bucket, **arguments), f"{action} {self.uri(name)}"
        )
        return answer

    def _whole(self, name: str, get: Callable[[], T]) -> T:
        """What `get` gives. Bytes that are not those stored are asked for once more: the way may be to blame."""
        from botocore.exceptions import FlexibleChecksumError

        for last in (False, True):
            try:
                return ask(get, f"GetObject {self.uri(name)}")
            except (BytesDiffer, FlexibleChecksumError) as error:
                if last:
                    raise ObjectDamaged(
                        f"{self.uri(name)} is damaged on the server: what it sends is not what was stored ({error})"
                    ) from error
            except OSError:
                raise  # this machine's disk
            except Exception as error:
                if is_unmet(error):
                    raise ObjectChanged(f"{self.uri(name)} was replaced since it was listed") from error
                if code_of(error) == "NoSuchKey":
                    raise NoObject(f"cannot read {self.uri(name)}: no such object") from error
                raise self.told(error, "GetObject", name) from error
        raise AssertionError("a loop of two ended without an end")
