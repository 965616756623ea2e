"""From a URI to Airflow's path of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from airflow.sdk import ObjectStoragePath


def open_uri(uri: str) -> Any:
    """An ObjectStoragePath. A file URI is decoded first: Airflow would look for a folder named `a%20b`."""
    parts = urlsplit(uri)
    return ObjectStoragePath(f"file://{unquote(parts.path)}" if parts.scheme == "file" else uri)
