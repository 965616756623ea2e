"""What NVML says of a node's GPUs. Nothing where there is none, or no NVML, or no package `nvidia-ml-py`."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from paddlewheel.training.events import GpuFigures

log = logging.getLogger(__name__)


def open_gpus(device: str) -> Callable[[], Sequence[GpuFigures]]:
    """A function that reads all GPUs of this node (about a millisecond each); on a CPU it gives none.

    Where a training on GPUs cannot read them, the log says once why.
    """
    if device != "gpu":
        return tuple
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except ImportError:
        log.warning("no figures of the GPUs: the package nvidia-ml-py is not installed on this node")
        return tuple
    except Exception as error:  # NVMLError is known only once the package is there; figures must not cost a training
        log.warning("no figures of the GPUs: NVML says %s", error)
        return tuple
    return lambda: [read_gpu(nvml, index, handle) for index, handle in enumerate(handles)]


def read_gpu(nvml: Any, index: int, handle: Any) -> GpuFigures:
    """One GPU's figures; those that it does not support are None."""

    def ask(read: Callable[[], Any]) -> Any:
        with contextlib.suppress(nvml.NVMLError):
            return read()
        return None

    busy = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    watts = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return GpuFigures(
        index=index,
        busy=None if busy is None else busy / 100,
        memory_bytes=None if memory is None else memory.used,
        memory_limit_bytes=None if memory is None else memory.total,
        celsius=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        watts=None if watts is None else watts / 1000,  # NVML gives milliwatts
    )
