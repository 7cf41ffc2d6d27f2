"""Calls of PyTorch's operators on the samples of its own tests, each between marks in the order of allocations.

    python benchmarks/estimator/jobs/operator_calls.py PART OF

Runs operators whose place in the database leaves PART when divided by OF. Each is called on its largest samples, in
float32 and bfloat16 where it supports them, and differentiated. Samples are made on the CPU, so that both sides have
the same; their sizes are raised from 5 to 24. A call lies between an allocation of `START` bytes, followed by one that
says which call it is, and one of `END` bytes; `FAILED` before that says that it raised. `call_number` and `call_of`
translate. Source of the samples: torch/testing/_internal/common_methods_invocations.py, `op_db`.
"""

from __future__ import annotations

import random
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

START, END, FAILED = 7777 * 512, 8889 * 512, 8001 * 512
SIZE = 24
SAMPLES = 3
DTYPES = (torch.float32, torch.bfloat16)
PHASES = ("forward", "backward")
UNIT_BYTES = 512
NOT_CALLED = frozenset(("grid_sampler_3d",))
"""Its samples are tensors of five dimensions, of 34 GB in this size."""
_CALLS_PER_OPERATOR = len(DTYPES) * SAMPLES * len(PHASES)


class Call(NamedTuple):
    """Which call: the operator's place in the database, and which of `DTYPES`, of its samples and of `PHASES`."""

    operator: int
    dtype: int
    sample: int
    phase: int


def call_number(call: Call) -> int:
    """A number for each call, from 1."""
    place = (call.dtype * SAMPLES + call.sample) * len(PHASES) + call.phase
    return 1 + call.operator * _CALLS_PER_OPERATOR + place


def call_of(number: int) -> Call:
    """The call of a number."""
    operator, place = divmod(number - 1, _CALLS_PER_OPERATOR)
    place, phase = divmod(place, len(PHASES))
    return Call(operator, *divmod(place, SAMPLES), phase)


def operator_database() -> Any:
    """PyTorch's list of operators with samples, which are made in `SIZE`."""
    if "expecttest" not in sys.modules:  # torch.testing needs its base class only
        sys.modules["expecttest"] = stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal import common_methods_invocations as database

    sizes = {"XS": SIZE // 2, "S": SIZE, "M": 2 * SIZE, "L": 4 * SIZE}
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal.opinfo") or module is database:
            for constant, size in sizes.items():
                if isinstance(getattr(module, constant, None), int):
                    setattr(module, constant, size)
    return database.op_db


def name_of(operator: Any) -> str:
    """The operator and its variant."""
    return f"{operator.name} {operator.variant_test_name}".rstrip()


def samples_of(operator: Any, dtype: torch.dtype, *, grad: bool) -> list[Any]:
    """The largest samples, on the CPU; none where they cannot be made."""
    torch.manual_seed(0)
    random.seed(0)
    try:
        found = list(operator.sample_inputs("cpu", dtype, requires_grad=grad))
    except Exception:  # noqa: BLE001 - of the samples, not of the operator
        return []
    dense = (sample for sample in found if all(tensor.layout is torch.strided for tensor in _tensors_of(sample)))
    return sorted(dense, key=lambda sample: -sum(tensor.numel() for tensor in _tensors_of(sample)))[:SAMPLES]


def _tensors_of(sample: Any) -> list[torch.Tensor]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _mark(nbytes: int) -> None:
    torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def _between_marks(call: Call, function: Callable[[], Any]) -> Any:
    _mark(START)
    _mark(UNIT_BYTES * call_number(call))
    try:
        return function()
    except Exception:  # noqa: BLE001 - an operator may refuse a sample on a GPU, and a trace an operator
        _mark(FAILED)
    finally:
        _mark(END)


def _on_gpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.detach().cuda()
    return moved.requires_grad_() if value.requires_grad else moved


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)


def run(operator: Any, place: int) -> None:
    """All calls of an operator."""
    supported = operator.supported_dtypes("cuda")
    for number, dtype in enumerate(DTYPES):
        if dtype in supported:
            for rank, sample in enumerate(samples_of(operator, dtype, grad=operator.supports_autograd)):
                _run_sample(operator, sample, Call(place, number, rank, 0))


def _run_sample(operator: Any, sample: Any, call: Call) -> None:
    inputs = tree_map(_on_gpu, (sample.input, sample.args, dict(sample.kwargs)))
    first, args, kwargs = inputs
    if "device" in kwargs:
        kwargs["device"] = "cuda"
    out = _between_marks(call, lambda: operator(first, *args, **kwargs))
    results, sources = list(_tensors(out)), [leaf for leaf in _tensors(inputs) if leaf.is_leaf]
    if results and sources:
        grads = [torch.empty_like(result) for result in results]
        _between_marks(call._replace(phase=1), lambda: torch.autograd.grad(results, sources, grads, allow_unused=True))


def main(part: int, parts: int) -> None:
    """Run a part of the database, and a step of an optimizer, which ends a trace."""
    warnings.simplefilter("ignore")
    weight = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (weight @ weight).sum().backward()  # cuBLAS takes its workspace with the first product of each thread
    for place, operator in enumerate(operator_database()):
        if place % parts == part and operator.name not in NOT_CALLED:
            run(operator, place)
    optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
