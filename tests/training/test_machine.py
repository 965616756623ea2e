"""Figures of a node: what the system says is told in its units, whoever limits the memory, and only of what lives."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paddlewheel.manifest import Manifest
from paddlewheel.storage.local import LocalStore
from paddlewheel.training.attempts import open_attempt
from paddlewheel.training.curve import read_counted, read_machines
from paddlewheel.training.events import AnomalyEvent, GpuFigures, MachineEvent, to_line
from paddlewheel.training.gpu import open_gpus
from paddlewheel.training.machine import Machine
from paddlewheel.training.memory_limit import memory_and_limit
from paddlewheel.training.ranks import Rank, kill_ranks

KEY = "0123456789abcdef0123"
BUSY = "import sys, time\nheld = bytearray(64 << 20)\nprint('on', flush=True)\nwhile True: pass"
MEMINFO = "MemTotal:       8000 kB\nMemFree:        1000 kB\nMemAvailable:   6000 kB\n"
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    """A process that keeps one processor busy and holds 64 MiB."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    if process.stdout is None or process.stdout.readline() != b"on\n":
        raise AssertionError("the rank did not start")
    found = Rank(number=0, process=process, folder=tmp_path)
    yield found
    kill_ranks([found])


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def make_machine(store: LocalStore, ranks: list[Rank]) -> Machine:
    attempt = open_attempt(store, KEY, world_size=1)
    return Machine(store, Manifest(kind="run", name="x", key=f"runs/{KEY}"), attempt, ranks, device="cpu")


def test_a_busy_rank_takes_a_processor_and_its_memory(store: LocalStore, rank: Rank) -> None:
    machine = make_machine(store, [rank])
    spent = _processor_seconds(rank)
    time.sleep(1.0)
    event = machine.look(7)
    [figures] = event.ranks
    took = (_processor_seconds(rank) - spent) / event.seconds
    assert figures.processors == pytest.approx(took, abs=0.2)
    assert 64 << 20 < figures.rss_bytes < 128 << 20
    assert (event.attempt, event.node, event.step, event.gpus) == (1, 0, 7, ())
    assert 0 < event.memory_bytes < event.memory_limit_bytes
    assert event.at == pytest.approx(time.time(), abs=5)


def _processor_seconds(rank: Rank) -> float:
    """What the kernel counts, in hundredths."""
    fields = Path(f"/proc/{rank.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_rank_that_is_dead_has_no_figures_and_is_no_error(store: LocalStore, rank: Rank) -> None:
    machine = make_machine(store, [rank])
    kill_ranks([rank])
    assert machine.look(1).ranks == []


def test_looks_are_published_in_their_order_and_never_by_step(
    store: LocalStore, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("paddlewheel.training.machine.time.monotonic", lambda: now[0])
    machine = make_machine(store, [rank])
    for step in range(1, 1041):
        now[0] += 0.125
        machine.poll(step)
    machine.publish()
    chunks = [stat.key.rpartition("/")[2] for stat in store.list(f"runs/{KEY}/events/attempt-1/node-0")]
    assert sorted(chunks) == ["part-0.jsonl", "part-1.jsonl", "part-2.jsonl"]
    steps = [event["step"] for event in read_machines(store, KEY, read_counted(store, KEY))]
    assert steps == list(range(16, 1041, 16))


def test_looks_at_steps_that_were_taken_back_are_dropped(store: LocalStore) -> None:
    for resumed in (0, 4):
        number = open_attempt(store, KEY, world_size=1).number
        path = store.local_path(f"runs/{KEY}/attempts/{number}.json")
        path.write_text(path.read_text().replace('"resumed_from_step": 0', f'"resumed_from_step": {resumed}'))
    first = [(3, 10.0), (6, 11.0)]  # 6 was rolled back by attempt 2
    second = [(5, 20.0), (7, 21.0), (6, 23.0)]  # at 22.0 the state went back to step 5
    for number, looks in ((1, first), (2, second)):
        lines = b"".join(to_line(_look(number, step, at)) for step, at in looks)
        store.publish(f"runs/{KEY}/events/attempt-{number}/node-0/part-0.jsonl", lines)
    back = AnomalyEvent(
        attempt=2, rank=0, epoch=1, step=5, at=22.0, kind="loss", value="nan", batch=6, first_ids=(), back_to=5
    )
    store.publish(f"runs/{KEY}/events/attempt-2/rank-0/step-5.jsonl", to_line(back))
    assert [
        (one["attempt"], one["step"], one["at"]) for one in read_machines(store, KEY, read_counted(store, KEY))
    ] == [
        (1, 3, 10.0),
        (2, 5, 20.0),
        (2, 6, 23.0),
    ]


def _look(attempt: int, step: int, at: float) -> MachineEvent:
    return MachineEvent(
        attempt=attempt,
        node=0,
        step=step,
        at=at,
        seconds=2.0,
        processors=1.0,
        num_processors=2,
        memory_bytes=1,
        memory_limit_bytes=2,
        read_bytes=0.0,
        written_bytes=0.0,
        received_bytes=0.0,
        sent_bytes=0.0,
        disk_free_bytes=1,
    )


@pytest.mark.parametrize(
    ("files", "taken", "limit"),
    [
        ({}, 2000 << 10, 8000 << 10),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                f"{V2}/job/step/memory.current": "700\n",
                f"{V2}/job/step/memory.max": "max\n",
                f"{V2}/job/step/memory.stat": "inactive_file 100\n",
                f"{V2}/job/memory.current": "900\n",
                f"{V2}/job/memory.max": "1000\n",
                f"{V2}/job/memory.stat": "anon 500\ninactive_file 300\n",
            },
            600,
            1000,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/host/9\n",
                f"{V1}/memory.usage_in_bytes": "950\n",
                f"{V1}/memory.limit_in_bytes": "1000\n",
                f"{V1}/memory.stat": "inactive_file 1\ntotal_inactive_file 150\n",
            },
            800,
            1000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                f"{V1}/memory.usage_in_bytes": "950\n",
                f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
                f"{V1}/memory.stat": "total_inactive_file 150\n",
            },
            2000 << 10,
            8000 << 10,
        ),
    ],
    ids=["host", "cgroup-v2-of-the-parent", "cgroup-v1-in-a-container", "cgroup-v1-without-a-limit"],
)
def test_memory_is_that_of_the_tightest_limit(tmp_path: Path, files: dict[str, str], taken: int, limit: int) -> None:
    for name, content in {"proc/meminfo": MEMINFO, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert memory_and_limit(tmp_path) == (taken, limit)


def test_nothing_is_known_of_memory_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert memory_and_limit(tmp_path) == (0, 0)


class NvmlStandIn:
    """Stands in for pynvml, since no GPU is here: one card, of which the power cannot be read."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 1)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: f"gpu {index}")
    nvmlDeviceGetUtilizationRates = staticmethod(lambda _: SimpleNamespace(gpu=87, memory=3))
    nvmlDeviceGetMemoryInfo = staticmethod(lambda _: SimpleNamespace(used=30, total=80))
    nvmlDeviceGetTemperature = staticmethod(lambda *_: 61)

    @classmethod
    def nvmlDeviceGetPowerUsage(cls, _: Any) -> int:
        raise cls.NVMLError("Not Supported")


def test_a_gpus_figures_are_told_but_for_those_that_it_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NvmlStandIn)
    assert open_gpus("gpu")() == [
        GpuFigures(index=0, busy=0.87, memory_bytes=30, memory_limit_bytes=80, celsius=61, watts=None)
    ]


def test_there_are_no_gpu_figures_and_no_error_without_nvml(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpus("gpu")() == ()
    assert "nvidia-ml-py is not installed" in caplog.text
    assert open_gpus("cpu")() == ()
