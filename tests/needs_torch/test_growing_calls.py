"""What calls of growing sizes return is made again: values of the same types, with the same parts."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

pytest.importorskip("torch", reason="the calls are of models of torch")

from cotenant.tracing.training.growing_calls import _flatten, _unflatten

Pair = namedtuple("Pair", "left right")


@dataclass
class Cache:
    keys: object
    values: object


@dataclass
class ModelOutput(OrderedDict):
    """As transformers' and diffusers': a dict and a dataclass, whose items its fields are."""

    loss: object = None
    logits: object = None

    def __post_init__(self):
        self.update({name: value for name, value in vars(self).items() if value is not None})


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(ModelOutput(logits=(1, 2)), id="a dict that is a dataclass"),
        pytest.param(Cache([1], {"a": 2}), id="a dataclass"),
        pytest.param(Pair(1, Cache(2, 3)), id="a named tuple"),
        pytest.param({"a": [1, (2, 3)]}, id="a dict"),
    ],
)
def test_value_is_made_again_of_its_parts(value):
    leaves = []
    structure = _flatten(value, leaves)
    again = _unflatten(structure, iter(leaves))
    assert type(again) is type(value)
    assert again == value
    assert getattr(again, "__dict__", None) == getattr(value, "__dict__", None)
