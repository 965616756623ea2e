"""A store below a prefix of an S3 bucket, on AWS or on a server that knows conditional writes and checksums.

`publish` is a PUT with If-None-Match, `swap` one with If-Match; an etag is the version. After a failure that leaves it
open whether a write was done (a reset, a time-out; a large PUT that is refused often looks like one) the object is
looked at before anything is sent again. Rejected: boto3's own retries, which send again unseen, and its transfer
manager, which knows no If-None-Match on a multipart upload.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.storage import ROOMS, ObjectChanged, Stat, SwapConflict, path_to_uri, quote_key
from paddlewheel.storage.leftovers import remove_leftovers
from paddlewheel.storage.object_cache import CACHE_ROOMS, OTHER_FOLDER, STAGING, ObjectCache, default_folder
from paddlewheel.storage.s3_bucket import S3Bucket
from paddlewheel.storage.s3_errors import code_of, is_transient, is_unmet, pause
from paddlewheel.storage.s3_upload import DIGEST, MULTIPART_BYTES, WRITER, WRITTEN, Body, describe, put, put_parts
from paddlewheel.storage.staging import staging_folder

# From here on it is looked whether the object is there before it is sent, and sent in parts once it was cut off.
LARGE_BYTES = 1 << 20


class S3Store:
    """The store at `s3://[CONNECTION@]BUCKET[/PREFIX]`, with this machine's cache of its objects. Safe for threads."""

    def __init__(self, root: str, *, cache: ObjectCache | None = None) -> None:
        parts = urlsplit(root)
        connection_id, _, bucket = parts.netloc.rpartition("@")
        if ":" in connection_id:  # not the root itself: it may hold a secret
            raise RecipeError(
                f"a root on {bucket!r} names a key and its secret; put them into a connection, and name that: "
                "s3://CONNECTION@BUCKET/PREFIX"
            )
        if parts.scheme != "s3" or not bucket or parts.query or parts.fragment:
            raise RecipeError(
                f"{root!r} is no root on S3; write s3://[CONNECTION@]BUCKET/PREFIX (a ? or # in it as %3F or %23)"
            )
        prefix = unquote(parts.path).strip("/")
        if {".", ".."} & set(prefix.split("/")):
            raise RecipeError(
                f"{root!r} is no root on S3: a prefix is taken as it stands, so that . and .. lead nowhere"
            )
        self._start = f"{prefix}/" if prefix else ""
        self.bucket = S3Bucket(connection_id, bucket)
        self.root = f"{self.bucket.root}/{quote_key(prefix)}".rstrip("/")
        self.cache = cache or ObjectCache(folder=default_folder())

    def uri(self, key: str) -> str:
        return self.bucket.uri(self._name(key))

    def key(self, uri: str) -> str:
        parts = urlsplit(uri)
        name = unquote(parts.path.removeprefix("/"))
        if f"{parts.scheme}://{parts.netloc}" != self.bucket.root or not name.startswith(self._start):
            raise StorageError(f"{uri} is not below the root {self.root}; give --root the store that it belongs to")
        return name.removeprefix(self._start)

    def read(self, key: str) -> bytes:
        return self.bucket.read(self._name(key))

    def find(self, key: str) -> bytes | None:
        return self.bucket.find(self._name(key))

    def stat(self, key: str) -> Stat | None:
        head = self.bucket.head(self._name(key))
        return None if head is None else _describe(key, head)

    def list(self, prefix: str) -> Iterator[Stat]:
        for page in self.bucket.pages("ListObjectsV2", self._folder(prefix)):
            for entry in page.get("Contents", ()):
                if not entry["Key"].endswith("/"):  # the mark of an empty folder, as consoles make one
                    yield Stat(
                        key=entry["Key"].removeprefix(self._start),
                        bytes=int(entry["Size"]),
                        version=str(entry["ETag"]).strip('"'),
                        modified_seconds=entry["LastModified"].timestamp(),
                    )

    def children(self, prefix: str) -> Sequence[str]:
        start, found = self._folder(prefix), []
        for page in self.bucket.pages("ListObjectsV2", start, Delimiter="/"):
            found += [entry["Prefix"].removeprefix(start).rstrip("/") for entry in page.get("CommonPrefixes", ())]
        return sorted(found)

    def publish(self, key: str, content: bytes | Path) -> Stat:
        try:
            body = describe(content)
        except OSError as error:
            raise StorageError(f"cannot read {content!s} for {self.uri(key)}: {error.strerror or error}") from error
        found = self._same_or_refuse(key, body) if body.bytes >= LARGE_BYTES else None
        stat = found or self._create(key, body)
        if isinstance(content, Path):
            self.cache.adopt(self._identity(key, stat.version), posixpath.basename(key), content, body.digest)
        return stat

    def swap(self, key: str, content: bytes, *, expected: str | None) -> Stat:
        body, name, number = describe(content), self._name(key), 0
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": f'"{expected}"'}
        while True:
            number += 1
            try:
                etag = put(self.bucket.client, self.bucket.bucket, name, body, **condition)
                return Stat(key=key, bytes=body.bytes, version=etag, modified_seconds=time.time())
            except Exception as error:
                if not (is_unmet(error) or is_transient(error) or code_of(error) == "NoSuchKey"):
                    raise self.bucket.told(error, "PutObject", name) from error
                # This try, or one before it, may have been done although its answer was lost.
                head = self.bucket.head(name)
                found = None if head is None else _describe(key, head)
                if found and head and head["Metadata"].get(WRITER) == body.metadata[WRITER]:
                    return found
                if (found.version if found else None) != expected:
                    raise SwapConflict(
                        f"{self.uri(key)} was moved by somebody else meanwhile; read it again and retry"
                    ) from error
                if not pause(number, error, f"PutObject {self.uri(key)}"):
                    raise self.bucket.told(error, "PutObject", name) from error

    def remove(self, key: str) -> None:
        self.bucket.request("DeleteObject", self._name(key), "delete_object", Key=self._name(key))

    def local_path(self, key: str, *, version: str | None = None) -> Path:
        if version is not None and (found := self.cache.find(self._identity(key, version))) is not None:
            return found
        return self._fetch(key, version, again=False)[0]

    def digest(self, key: str) -> str:
        return self._fetch(key, None, again=True)[1]

    def audit(self, key: str) -> str:
        return self.bucket.save(self._name(key), self._must_be_there(key).version, Path(os.devnull))

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        folder = self.cache.folder / STAGING
        return staging_folder(folder, path_to_uri(folder), elsewhere=OTHER_FOLDER)

    def sweep(self, older_than_seconds: float) -> Sequence[str]:
        """Uploads in parts that nobody completed, and what dead writers left in this machine's cache."""
        newest, swept = time.time() - older_than_seconds, []
        pages = [self.bucket.pages("ListMultipartUploads", self._folder(room)) for room in ROOMS]
        for page in itertools.chain.from_iterable(pages):
            for entry in page.get("Uploads", ()):
                name, began = entry["Key"], entry["Initiated"].timestamp()
                if began <= newest:
                    here = {"Key": name, "UploadId": entry["UploadId"]}
                    self.bucket.request("AbortMultipartUpload", name, "abort_multipart_upload", **here)
                    began_at = f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M:%S} UTC"
                    swept.append(f"an upload of {self.bucket.uri(name)}, begun at {began_at}")
        left = remove_leftovers(self.cache.folder, older_than_seconds, rooms=CACHE_ROOMS)
        return swept + [path_to_uri(path) for path in left]

    def _name(self, key: str) -> str:
        """The bucket's own key. Raises StorageError for one that a folder would lead out of the root with."""
        if key.startswith("/") or ".." in key.split("/"):
            raise StorageError(f"the key {key!r} leads out of the root {self.root}")
        return self._start + key

    def _folder(self, prefix: str) -> str:
        prefix = prefix.strip("/")
        return self._name(prefix) + "/" if prefix else self._start

    def _identity(self, key: str, version: str) -> str:
        return f"{self.root}\0{key}\0{version}"

    def _must_be_there(self, key: str) -> Stat:
        name = self._name(key)
        head = self.bucket.head(name) or self.bucket.look_into(name)
        if head is None:
            raise StorageError(f"cannot read {self.uri(key)}: no such object")
        return _describe(key, head)

    def _fetch(self, key: str, version: str | None, *, again: bool) -> tuple[Path, str]:
        """(cached file, digest) of the object, or of this version of it."""
        stat = self._must_be_there(key)
        if version is not None and stat.version != version:
            raise ObjectChanged(f"{self.uri(key)} was replaced since it was listed")
        return self.cache.fetch(
            self._identity(key, stat.version),
            posixpath.basename(key),
            lambda path: self.bucket.save(self._name(key), stat.version, path),
            again=again,
        )

    def _create(self, key: str, body: Body) -> Stat:
        """Send the body, unless the same is there meanwhile. Raises StorageError where something else is."""
        name, number, in_parts = self._name(key), 0, body.bytes >= MULTIPART_BYTES
        while True:
            number += 1
            try:
                client, bucket = self.bucket.client, self.bucket.bucket
                etag = (
                    put_parts(client, bucket, name, body)
                    if in_parts
                    else put(client, bucket, name, body, IfNoneMatch="*")
                )
                return Stat(key=key, bytes=body.bytes, version=etag, modified_seconds=time.time())
            except Exception as error:
                if not (is_unmet(error) or is_transient(error) or code_of(error) == "NoSuchUpload"):
                    raise self.bucket.told(error, "PutObject", name) from error
                if found := self._same_or_refuse(key, body):
                    return found
                if not pause(number, error, f"PutObject {self.uri(key)}"):
                    raise self.bucket.told(error, "PutObject", name) from error
                in_parts = body.bytes >= LARGE_BYTES  # begins with a small request, whose refusal is heard

    def _same_or_refuse(self, key: str, body: Body) -> Stat | None:
        """The object where it has these bytes, None where there is none. Raises StorageError for other bytes."""
        head = self.bucket.head(self._name(key))
        if head is None:
            return None
        stat = _describe(key, head)
        if stat.bytes == body.bytes and (head["Metadata"].get(DIGEST) or self.digest(key)) == body.digest:
            return stat
        raise StorageError(f"{self.uri(key)} already exists with other content; nothing is overwritten in place")


def _describe(key: str, head: Mapping[str, Any]) -> Stat:
    written = head["Metadata"].get(WRITTEN)
    return Stat(
        key=key,
        bytes=int(head["ContentLength"]),
        version=str(head["ETag"]).strip('"'),
        modified_seconds=float(written) if written else head["LastModified"].timestamp(),
    )
