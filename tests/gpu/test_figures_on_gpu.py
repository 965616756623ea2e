"""NVML's figures of a real GPU. Needs the driver and the package nvidia-ml-py, and no Paddle."""

from __future__ import annotations

import pytest

from paddlewheel.training.gpu import open_gpus

pytestmark = pytest.mark.gpu


def test_a_gpu_tells_figures_that_can_be_true() -> None:
    nvml = pytest.importorskip("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        pytest.skip(f"NVML says {error}")
    figures = open_gpus("gpu")()
    assert [one.index for one in figures] == list(range(nvml.nvmlDeviceGetCount()))
    for one in figures:
        assert one.memory_bytes is not None
        assert one.memory_limit_bytes is not None
        assert 0 <= one.memory_bytes <= one.memory_limit_bytes
        assert one.memory_limit_bytes > 1 << 30
        assert one.busy is None or 0 <= one.busy <= 1
        assert one.celsius is None or 10 < one.celsius < 110
        assert one.watts is None or 5 < one.watts < 2000
