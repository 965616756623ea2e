"""Readers in processes of their own: what they die of costs a file, not the task."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from paddlewheel.data.tables.group import GroupFile, GroupJob
from paddlewheel.data.tables.isolate import ReaderKilled, Readers
from paddlewheel.errors import DataError
from paddlewheel.recipe import dump
from paddlewheel.recipe_data import Column, Source

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _fatal_readers_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def readers() -> Iterator[Readers]:
    with Readers(2) as found:
        yield found


def job_of(folder: Path, **contents: str) -> GroupJob:
    """Files of these names and contents, read by `fatal_readers`; each read leaves a name in `folder/log`."""
    (folder / "log").mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(content)
    source = Source(
        name="own", path="*", format="fatal_readers:read", params={"log": str(folder / "log")},
        columns=(Column(name="id", type="int64"),),
    )  # fmt: skip
    files = tuple(GroupFile(name=name, path=str(folder / name)) for name in contents)
    return GroupJob(source=dump(source), partition=None, files=files)


def out(folder: Path) -> Path:
    (made := folder / f"out-{time.monotonic_ns()}").mkdir()
    return made


def pids(folder: Path) -> set[str]:
    """Processes that read anything."""
    return {path.name.split("-")[1] for path in (folder / "log").iterdir()}


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("null", "SIGSEGV"),
        ("segv", "SIGSEGV"),
        ("abrt", "SIGABRT"),
        ("bus", "SIGBUS"),
        ("ill", "SIGILL"),
        ("fpe", "SIGFPE"),
    ],
)
def test_a_file_is_unreadable_when_its_reader_crashes(tmp_path: Path, readers: Readers, word: str, name: str) -> None:
    job = job_of(tmp_path, a="1\n2", b=word, c="3")
    result = readers.read(job, folder := out(tmp_path))
    assert result.unreadable == {"b": f"its reader crashed in native code ({name})"}
    assert {file: count.rows for file, count in result.files.items()} == {"a": 2, "c": 1}
    assert pl.read_parquet(folder / "rows.parquet")["id"].to_list() == [1, 2, 3]
    assert sorted(path.name for path in folder.iterdir()) == ["rows.parquet", "statistics.json"]


def test_every_crashing_file_is_unreadable_when_there_are_several(tmp_path: Path, readers: Readers) -> None:
    result = readers.read(job_of(tmp_path, a="segv", b="1", c="abrt"), out(tmp_path))
    assert list(result.unreadable) == ["a", "c"]
    assert result.rows == 1


def test_a_table_without_rows_is_written_when_every_file_crashes(tmp_path: Path, readers: Readers) -> None:
    result = readers.read(job_of(tmp_path, a="segv"), folder := out(tmp_path))
    assert (result.rows, list(result.unreadable)) == (0, ["a"])
    assert pl.read_parquet(folder / "rows.parquet").schema == {"id": pl.Int64}


def test_a_crash_is_noticed_when_the_reader_had_forked(tmp_path: Path, readers: Readers) -> None:
    result = readers.read(job_of(tmp_path, a="1", b="fork and die"), out(tmp_path))
    assert result.unreadable == {"b": "its reader crashed in native code (SIGSEGV)"}


def test_one_process_reads_group_after_group(tmp_path: Path, readers: Readers) -> None:
    for number in range(3):
        readers.read(job_of(tmp_path, a=str(number)), out(tmp_path))
    assert len(pids(tmp_path)) == 1


def test_a_group_is_tried_again_when_its_reader_is_killed(tmp_path: Path, readers: Readers) -> None:
    result = readers.read(job_of(tmp_path, a="1", b="killed once"), out(tmp_path))
    assert (result.rows, dict(result.unreadable)) == (2, {})
    assert len(pids(tmp_path)) == 2


@pytest.mark.parametrize("word", ["killed", "allocate"])
def test_error_tells_of_memory_when_a_reader_is_killed_twice(tmp_path: Path, readers: Readers, word: str) -> None:
    with pytest.raises(
        ReaderKilled, match=r"b: the process that reads it was killed .* twice.*ran out of memory"
    ) as error:
        readers.read(job_of(tmp_path, a="1", b=word), out(tmp_path))
    assert error.value.exit_code == 3
    assert len(pids(tmp_path)) == 2


def test_nothing_else_runs_when_a_killed_group_is_tried_again(tmp_path: Path, readers: Readers) -> None:
    (slow := tmp_path / "slow").mkdir()
    (killed := tmp_path / "killed").mkdir()
    with ThreadPoolExecutor(4) as pool:
        again = pool.submit(readers.read, job_of(killed, a="killed once"), out(killed))
        others = [pool.submit(readers.read, job_of(slow, **{f"f{n}": "1"}), out(slow)) for n in range(6)]
        assert again.result().rows == 1
        assert [one.result().rows for one in others] == [1] * 6


def test_data_error_when_a_reader_ends_the_process(tmp_path: Path, readers: Readers) -> None:
    with pytest.raises(DataError, match=r"b: the process that reads it ended unexpectedly \(exit code 3\)"):
        readers.read(job_of(tmp_path, a="1", b="exit"), out(tmp_path))


def test_error_names_the_files_when_more_crash_than_is_borne(tmp_path: Path, readers: Readers) -> None:
    job = job_of(tmp_path, **{f"f{number:02}": "segv" for number in range(22)})
    with pytest.raises(DataError, match=r"f00, f01, f02 and 17 more files crashed the reader, and f20 once more"):
        readers.read(job, out(tmp_path))


def test_children_get_secrets_and_their_share_of_the_cores(tmp_path: Path) -> None:
    with Readers(2, secrets={"AIRFLOW_CONN_SHOP": "postgres://u:secret@db/shop"}) as readers:
        readers.read(job_of(tmp_path, a="1"), out(tmp_path))
        (pid,) = pids(tmp_path)
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    assert "AIRFLOW_CONN_SHOP=postgres://u:secret@db/shop" in environment
    assert f"POLARS_MAX_THREADS={max(1, len(os.sched_getaffinity(0)) // 2)}" in environment
    assert "secret" not in command


def test_children_end_when_the_context_does(tmp_path: Path) -> None:
    with Readers(1) as readers:
        readers.read(job_of(tmp_path, a="1"), out(tmp_path))
        (pid,) = pids(tmp_path)
    assert not Path(f"/proc/{pid}").exists()


def test_a_waiting_read_ends_when_the_context_does(tmp_path: Path) -> None:
    readers = Readers(1)
    faults: list[BaseException] = []

    def read() -> None:
        try:
            readers.read(job_of(tmp_path, a="wait"), out(tmp_path))
        except RuntimeError as error:
            faults.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "log").exists() or not pids(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    readers.__exit__(None, None, None)
    for thread in threads:
        thread.join(30)
    assert [str(fault) for fault in faults] == ["the readers were closed"] * 2


PARENT = """
    import sys
    from pathlib import Path
    from paddlewheel.data.tables.group import GroupJob
    from paddlewheel.data.tables.isolate import Readers
    with Readers(1) as readers:
        readers.read(GroupJob.from_json(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_reading_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    job = job_of(tmp_path, a="wait")
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), job.to_json(), str(out(tmp_path))],
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )
    deadline = time.monotonic() + 60
    while not pids(tmp_path):
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (pid,) = pids(tmp_path)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
