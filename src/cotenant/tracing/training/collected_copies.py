"""Copies of a model that a loop adds to a list, one in each iteration: snapshots of an ensemble, earlier policies.

A trace has the first iteration or two. What the copies take is known from the model, and how many come from the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cotenant.core.units import format_bytes
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.source_values import value_of
from cotenant.tracing.training.step_growth import AllocatedBytes, is_large

RunningLoop = tuple[FrameType, ast.stmt, Mapping[str, Any], bool]
"""Its frame, itself, the frame's names, and whether it is the innermost."""


def collected_copies(loops: Iterable[RunningLoop], allocated: AllocatedBytes) -> Iterator[str]:
    """Sentences for the user about the loops that run now, where their copies are many; call it after a step."""
    for frame, loop, names, _ in loops:
        rounds = Counters.of(loop, names).rounds_left or 0
        for call, model in _appended(loop, names):
            nbytes = _gpu_bytes(model)
            if is_large(nbytes * rounds, allocated):
                yield _sentence(frame, call, nbytes, rounds)


def _sentence(frame: FrameType, call: ast.Call, nbytes: int, rounds: int) -> str:
    place = f"{Path(frame.f_code.co_filename).name}, line {call.lineno}"
    return (
        f"a copy of a model is added to a list at {place}, {format_bytes(nbytes)} on the GPU, in each iteration of a "
        f"loop: {format_bytes(nbytes * rounds)} in the {rounds:,} that come are not included"
    )


def _appended(loop: ast.stmt, names: Mapping[str, Any]) -> Iterator[tuple[ast.Call, torch.nn.Module]]:
    """Calls such as `ensemble.append(copy.deepcopy(model))`, with the model."""
    for node in ast.walk(loop):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"):
            continue
        for copied in chain.from_iterable(map(_copied, node.args)):
            value = value_of(copied, names)
            if isinstance(value, torch.nn.Module):
                yield node, value


def _copied(node: ast.expr) -> Iterator[ast.expr]:
    """What `deepcopy` copies in an expression: a model, or the owner of a state dictionary."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and ast.unparse(part.func).rpartition(".")[2] == "deepcopy" and part.args:
            source = part.args[0]
            if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
                yield source.func.value if source.func.attr == "state_dict" else source
            else:
                yield source


def _gpu_bytes(model: torch.nn.Module) -> int:
    tensors = chain(model.parameters(), model.buffers())
    return sum(tensor.nbytes for tensor in tensors if tensor.device.type == "cuda")
