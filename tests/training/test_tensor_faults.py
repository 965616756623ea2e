"""What splitting a network by a plan could silently get wrong, on two real ranks: the same numbers, or a refusal."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from .conftest import run_script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What the ranks of splitting.py found, the same on both but for numbers of their own."""
    both = [json.loads(word.replace("_", " ")) for word in run_script("splitting", world_size=2)]
    assert both[0].keys() == both[1].keys()
    worst: dict[str, Any] = {
        name: value if isinstance(value, str) else float(np.max([value, both[1][name]]))
        for name, value in both[0].items()
    }
    return worst


def test_attention_with_a_fixed_number_of_heads_is_refused_when_its_columns_are_split(told: dict[str, Any]) -> None:
    assert "the split network is not the plain one, the gradient of" in told["heads"]


@pytest.mark.parametrize("name", ["learned", "told", "ids"])
def test_losses_are_those_of_the_plain_network_when_layers_read_parameters_or_have_rates_of_their_own(
    told: dict[str, Any], name: str
) -> None:
    """Ten steps, one of them with a class that is ignored, smoothing in the loss."""
    assert told[name] <= 1e-5
    assert told[f"{name} falls"] > 0.3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("padding", "embed has padding idx, with which it is not split"),
        ("most", "embed has max norm, with which it is not split"),
        ("tied", "embed.weight is a parameter of embed and more at once"),
        ("id", "an id of embed is 24, outside of 0 to 12"),
        ("class", "a class is 13, outside of 0 to 12"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(told: dict[str, Any], name: str, said: str) -> None:
    assert said in told[name]


def test_cross_entropy_is_the_plain_one_when_classes_are_masked_or_ignored(told: dict[str, Any]) -> None:
    assert told["masked"] <= 1e-6
