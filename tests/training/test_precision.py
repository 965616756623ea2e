"""The scale of an fp16 loss, by literal sequences; the real thing is in tests/gpu."""

from __future__ import annotations

import json
import math

import pytest

from paddlewheel.training.precision import LossScale, build_scale


def test_only_fp16_has_a_scale_and_it_begins_at_65536() -> None:
    assert [build_scale(name) for name in ("float32", "bf16")] == [None, None]
    scale = build_scale("fp16")
    assert scale is not None
    assert scale.to_json() == {"value": 65536.0, "good": 0}


def test_scale_halves_at_each_overflow_and_doubles_after_2000_good_steps() -> None:
    scale = LossScale()
    values = []
    for overflow in (False, True, True, False):
        scale.after(overflow=overflow)
        values.append((scale.value, scale.good))
    assert values == [(65536.0, 1), (32768.0, 0), (16384.0, 0), (16384.0, 1)]
    for _ in range(1998):
        scale.after(overflow=False)
    assert (scale.value, scale.good) == (16384.0, 1999)
    scale.after(overflow=False)
    assert (scale.value, scale.good) == (32768.0, 0)
    for _ in range(1999):
        scale.after(overflow=False)
    scale.after(overflow=True)
    assert (scale.value, scale.good) == (16384.0, 0)


def test_scale_never_falls_below_1_where_it_is_not_to_blame_any_more() -> None:
    scale = LossScale(2.0)
    assert scale.overflows(0.5, math.inf)
    scale.after(overflow=True)
    assert scale.value == 1.0
    scale.after(overflow=True)
    assert scale.value == 1.0
    assert not scale.overflows(0.5, math.inf)


@pytest.mark.parametrize(
    ("loss", "norm", "overflow"),
    [(0.5, 1e30, False), (0.5, math.inf, True), (0.5, math.nan, True), (math.nan, 1.0, True)],
)
def test_a_step_overflows_when_its_loss_or_its_norm_is_not_finite(loss: float, norm: float, overflow: bool) -> None:
    assert LossScale().overflows(loss, norm) is overflow


def test_scale_goes_on_as_a_commit_tells_it_and_from_the_start_without() -> None:
    scale = LossScale()
    for overflow in (True, False, False):
        scale.after(overflow=overflow)
    again = LossScale(1.0)
    again.load(json.loads(json.dumps(scale.to_json())))
    assert (again.value, again.good) == (32768.0, 2)
    again.load({})
    assert (again.value, again.good) == (65536.0, 0)
