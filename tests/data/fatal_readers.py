"""Readers that die as native code does, at files whose bytes say so; the tests name them as formats."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIGNALS = {
    "segv": signal.SIGSEGV,
    "abrt": signal.SIGABRT,
    "bus": signal.SIGBUS,
    "ill": signal.SIGILL,
    "fpe": signal.SIGFPE,
}


def read(path: Path, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`id` a line; a word instead of it is how to die."""
    text = path.read_text().strip()
    (Path(params["log"]) / f"{path.name}-{os.getpid()}-{time.monotonic_ns()}").touch()
    print("a reader may print what it likes")
    if text == "null":
        ctypes.string_at(0)
    elif text in SIGNALS:
        os.kill(os.getpid(), SIGNALS[text])
    elif text == "fork and die":
        if os.fork():
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(600)
    elif text == "exit":
        os._exit(3)
    elif text == "allocate":
        print("memory allocation of 123 bytes failed", file=sys.stderr, flush=True)
        os.abort()
    elif text == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif text == "killed once":
        path.write_text("7")
        os.kill(os.getpid(), signal.SIGKILL)
    elif text == "wait":
        time.sleep(600)
    return [{"id": int(line)} for line in text.splitlines()]
