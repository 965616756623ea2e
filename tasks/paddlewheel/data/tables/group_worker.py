"""The process that reads groups for `data.isolate`: jobs come in and results go out as lines of JSON.

Whatever a reader prints goes to standard error: the pipe of the results is a descriptor of its own.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl(2)


def main() -> int:
    """Read group after group until there is no more; its argument is the process that it dies with."""
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and decides
    faulthandler.enable()
    jobs, results = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    mine = os.getpid()
    for line in jobs:
        answer = _read(json.loads(line), results)
        if os.getpid() != mine:  # a reader forked, and both came back: one answer a job
            os._exit(0)
        _send(results, answer)
    return 0


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that dies; end at once where it has already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _read(work: Mapping[str, Any], results: TextIO) -> dict[str, Any]:
    """What a group held, or how reading it failed."""
    try:
        from paddlewheel.data.tables.group import GroupJob, read_group

        job = GroupJob.from_json(work["job"])
        result = read_group(job, Path(work["folder"]), announce=lambda name: _send(results, {"file": name}))
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        fault = {"kind": type(error).__name__, "text": str(error), "errno": number, "trace": traceback.format_exc()}
        return {"fault": fault}
    return {"result": result.to_json()}


def _send(results: TextIO, entry: Mapping[str, Any]) -> None:
    results.write(json.dumps(entry) + "\n")
    results.flush()


if __name__ == "__main__":
    sys.exit(main())
