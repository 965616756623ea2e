"""Objects by their URIs: `file://` and `s3://[CONNECTION@]BUCKET/KEY`, for the little that a job's end is judged by.

Rejected: Airflow's ObjectStoragePath, which has S3 only with the amazon provider and s3fs (thirty packages more, and a
boto3 that they hold back), and lists from a cache that may be older than the job.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit


class ObjectError(Exception):
    """A store did not answer, or refused: nothing is known of the object, and a later look may tell."""


def read_object(uri: str) -> bytes | None:
    """The object's bytes; None where there is no such object. Raises ObjectError."""
    scheme, place, key = split_uri(uri)
    if scheme == "s3":
        from paddle_cluster.s3_objects import read_key

        return read_key(place, key, uri)
    try:
        return Path(key).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ObjectError(f"{uri} could not be read: {error.strerror}") from error


def list_names(folder_uri: str) -> list[str]:
    """Names of the objects right below a folder, sorted; none where there is no such folder. Raises ObjectError."""
    scheme, place, key = split_uri(folder_uri)
    if scheme == "s3":
        from paddle_cluster.s3_objects import list_prefix

        return list_prefix(place, f"{key.rstrip('/')}/", folder_uri)
    try:
        return sorted(path.name for path in Path(key).iterdir() if path.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ObjectError(f"{folder_uri} could not be listed: {error.strerror}") from error


def split_uri(uri: str) -> tuple[str, str, str]:
    """(scheme, [CONNECTION@]BUCKET, key or path), decoded. Raises ValueError for a scheme that is not read here."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return "file", "", unquote(parts.path)
    if parts.scheme == "s3" and parts.netloc:
        return "s3", parts.netloc, unquote(parts.path).lstrip("/")
    raise ValueError(f"{uri!r}: results are looked for at file:///PATH and s3://[CONNECTION@]BUCKET/KEY")
