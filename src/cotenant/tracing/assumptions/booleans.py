"""What a script is likely to find when it checks values that are not known: that they are sound.

`isfinite`, `isnan`, `x == x` and range checks guard against accidents, which a trace does not have; taken as unknown,
and so as False, the first would end or skip the training. A number compared with one of Python's is what the script
would read of it. A mere comparison of tensors says nothing about its outcome: a sequence may have ended or not.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import data_dependent_loops
from cotenant.tracing.training import lbfgs

_aten = torch.ops.aten
_TRUTH_ATTRIBUTE = "_cotenant_truth"
AssumedTruth = Literal[True, False, "in range", "likely", "unlikely"] | None
"""Of every element. `in range`: a comparison of sizes, believed only if asked for all of a tensor; `likely` and
`unlikely`: one of a number that was guessed, which ends no loop (see `loops`)."""

_ASSUMED_FALSE = frozenset({"isnan", "isinf", "isposinf", "isneginf"})
_COMPARISONS = frozenset({"ge", "gt", "le", "lt"})
_SAME_ELEMENTS = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze", "select", "slice", "alias", "detach"),
        *(
            "clone",
            "permute",
            "transpose",
            "t",
            "contiguous",
            "any",
            "_is_any_true",
            "max",
            "min",
            "amax",
            "amin",
            "_to_copy",
        ),
    )
)
_AND = frozenset({"mul", "bitwise_and", "logical_and", "__and__"})
_NOT = frozenset({"logical_not", "bitwise_not"})
_OPPOSITE: dict[AssumedTruth, AssumedTruth] = {True: False, False: True, "likely": "unlikely", "unlikely": "likely"}


def assumed(tensor: Any) -> AssumedTruth:
    """What is believed of the elements of a tensor of truth values; None: nothing."""
    return getattr(tensor, _TRUTH_ATTRIBUTE, None)


def assume_true(tensor: FakeTensor) -> None:
    """Believe that all elements of a tensor of truth values are true."""
    setattr(tensor, _TRUTH_ATTRIBUTE, True)


def propagate(func: Any, args: Any, out: FakeTensor) -> None:
    """Note what `out`, truth values that `func` gave, are believed to be."""
    found = _infer(func._opname, args)
    if found is not None:
        setattr(out, _TRUTH_ATTRIBUTE, found)


def _infer(name: str, args: Any) -> AssumedTruth:
    if name in ("eq", "ne"):
        return _compare_equality(name, args)
    if name in _ASSUMED_FALSE:
        return False
    if name == "isfinite":
        return True
    if name == "gt" and isinstance(args[1], float) and args[1] == lbfgs.CURVATURE:
        return True
    if name == "any" and getattr(args[0], "_is_param", False):  # optimizers ask whether it starts with zeros
        return True
    if name in _COMPARISONS:
        return _compare_number(name, args[1]) if _is_number(args) else "in range"
    first = assumed(args[0])
    if name in ("all", "_is_all_true"):
        return True if first == "in range" else first
    if name in _SAME_ELEMENTS:
        return first
    if name in _NOT:
        return _OPPOSITE.get(first)
    if name in _AND and len(args) > 1:
        return _and(first, assumed(args[1]))
    return None


def _is_number(args: Any) -> bool:
    first, second = args[0], args[1]
    return isinstance(second, (int, float)) and first.numel() == 1 and first.dtype.is_floating_point


def _compare_number(name: str, limit: float) -> AssumedTruth:
    """How an unknown number compares, by what a script would read of it."""
    return "likely" if getattr(operator, name)(data_dependent_loops.assumed_number(), limit) else "unlikely"


def _compare_equality(name: str, args: Any) -> AssumedTruth:
    first, second = args[0], args[1]
    if first is second:  # not a number is what differs from itself
        return name == "eq"
    if isinstance(second, float) and math.isinf(second):
        return name == "ne"
    return None


def _and(first: AssumedTruth, second: AssumedTruth) -> AssumedTruth:
    if first is False or second is False:
        return False
    if first is None or second is None:
        return None
    for each in ("unlikely", "in range", "likely"):
        if each in (first, second):
            return each
    return True
