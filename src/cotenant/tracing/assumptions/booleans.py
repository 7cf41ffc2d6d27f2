"""What a script most likely finds when it checks unknown values: that they are sound.

`isfinite`, `isnan`, `x == x` and range checks guard against accidents, which a trace does not have. As unknown booleans
they would read as False, and the first would end or skip the training. The comparison of one number with a Python
number gives what the script would get by reading the number. A comparison of tensors alone says nothing: a sequence may
have ended or not. Where all are false, so that their number is zero, `isnan(x).sum() > 0` is false as well.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from cotenant.tracing.assumptions import data_dependent_loops
from cotenant.tracing.training import lbfgs

_TRUTH_ATTRIBUTE = "_cotenant_truth"
AssumedTruth = Literal[True, False, "in range", "selection", "likely", "unlikely"] | None
"""Of every element. `in range`: of a range check, which counts only if the script requires all of a tensor;
`selection`: whether any element of an unknown mask is true, which a branch that selects by the mask assumes (see
`selections`); `likely`, `unlikely`: of the comparison of an assumed number, which does not end a loop (see
`data_dependent_loops`)."""

_ASSUMED_FALSE = frozenset({"isnan", "isinf", "isposinf", "isneginf"})
_COMPARISONS = frozenset({"ge", "gt", "le", "lt"})
_SAME_ELEMENTS = frozenset(
    {
        "view",
        "_unsafe_view",
        "reshape",
        "expand",
        "squeeze",
        "unsqueeze",
        "select",
        "slice",
        "alias",
        "detach",
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
    }
)
AND_OPERATORS = frozenset({"mul", "bitwise_and", "logical_and", "__and__"})
"""Operators whose result is true where both of their boolean arguments are."""
_OR = frozenset({"bitwise_or", "logical_or", "__or__"})
_NOT = frozenset({"logical_not", "bitwise_not"})
_OPPOSITE: dict[AssumedTruth, AssumedTruth] = {True: False, False: True, "likely": "unlikely", "unlikely": "likely"}


def assumed(tensor: Any) -> AssumedTruth:
    """What is assumed of all elements of a boolean tensor, or of that which it is a view of; None: nothing."""
    truth: AssumedTruth = getattr(tensor, _TRUTH_ATTRIBUTE, None)
    if truth is None and isinstance(tensor, torch.Tensor) and tensor._is_view():
        return getattr(tensor._base, _TRUTH_ATTRIBUTE, None)  # operators of views are not seen on the null GPU
    return truth


def assume(tensor: torch.Tensor, value: bool) -> None:
    """Assume that all elements of a boolean tensor have this value."""
    setattr(tensor, _TRUTH_ATTRIBUTE, value)


COUNTS = frozenset({"sum", "count_nonzero"})


def propagate_count(args: Any, out: torch.Tensor) -> None:
    """Set that `out`, the number of true elements as one of `COUNTS` gives it, is zero where all are false."""
    if assumed(args[0]) is False:
        setattr(out, _TRUTH_ATTRIBUTE, False)


def is_zero_count(tensor: Any) -> bool:
    """Whether it is the number of true elements where all are assumed to be false."""
    return tensor.dtype is torch.int64 and assumed(tensor) is False


def propagate(func: OpOverload, args: Any, out: torch.Tensor) -> None:
    """Set what is assumed of `out`, booleans that `func` returned."""
    truth = _infer(func._opname, args)
    if truth is not None:
        setattr(out, _TRUTH_ATTRIBUTE, truth)


def _infer(name: str, args: Any) -> AssumedTruth:
    if name in ("eq", "ne"):
        return _compare_equality(name, args)
    if name in _ASSUMED_FALSE:
        return False
    if name == "isfinite":
        return True
    if name == "gt" and isinstance(args[1], float) and args[1] == lbfgs.CURVATURE:
        return True
    if name == "any" and getattr(args[0], "_is_param", False):  # optimizers check whether a parameter is all zeros
        return True
    if name in _COMPARISONS:
        return _compare_number(name, args) if _is_number(args) else "in range"
    first = assumed(args[0])
    if name == "any" and len(args) == 1 and first in (None, "in range"):
        return "selection"
    if name in ("all", "_is_all_true"):
        return True if first == "in range" else first
    if name in _SAME_ELEMENTS:
        return first
    if name in _NOT:
        return _OPPOSITE.get(first)
    if name in AND_OPERATORS and len(args) > 1:
        return _and(first, assumed(args[1]))
    if name in _OR and len(args) > 1:
        return _or(first, assumed(args[1]))
    return None


def _is_number(args: Any) -> bool:
    first, second = args[0], args[1]
    return isinstance(second, (int, float)) and first.numel() == 1 and first.dtype is not torch.bool


def _compare_number(name: str, args: Any) -> AssumedTruth:
    """How an unknown number compares: as the number that a script would read."""
    number, limit = args[:2]
    value = data_dependent_loops.assumed_number() if number.dtype.is_floating_point else 1 - is_zero_count(number)
    return "likely" if getattr(operator, name)(value, limit) else "unlikely"


def _compare_equality(name: str, args: Any) -> AssumedTruth:
    first, second = args[0], args[1]
    if first is second:  # NaN is the only value that differs from itself
        return name == "eq"
    if isinstance(second, float) and math.isinf(second):
        return name == "ne"
    return None


def _and(first: AssumedTruth, second: AssumedTruth) -> AssumedTruth:
    if first is False or second is False:
        return False
    if first is None or second is None:
        return None
    for truth in ("selection", "unlikely", "in range", "likely"):
        if truth in (first, second):
            return truth
    return True


def _or(first: AssumedTruth, second: AssumedTruth) -> AssumedTruth:
    if first is True or second is True:
        return True
    if None in (first, second) or "in range" in (first, second):
        return None
    for truth in ("likely", "selection", "unlikely"):
        if truth in (first, second):
            return truth
    return False
