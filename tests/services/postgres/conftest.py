"""A PostgreSQL for these tests: Debian's, installed where root runs them on a machine without."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from .server import Postgres, find_binaries, install, run_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server with an empty database."""
    if find_binaries() is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip("there is no PostgreSQL, and installing Debian's needs root and apt-get")
        install()
    binaries = find_binaries()
    assert binaries is not None
    with run_server(binaries) as server:
        yield server
