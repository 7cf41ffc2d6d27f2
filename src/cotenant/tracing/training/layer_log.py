"""The layers of a network in the order in which the training loop calls them: class, parameters, output shape.

Estimators that describe a network by its layers use them. One forward pass is recorded: that of the second step, since
a dry run may come before the first; where there is no second step, all calls before the first.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.core.trace import LayerCall
from cotenant.tracing.recorder import TraceRecorder

_SINGLE_LAYERS = (torch.nn.MultiheadAttention,)
"""Modules that use the weights of their submodules without calling them."""


class LayerLog:
    """Writes the calls of layers into the recorder, during the first two steps."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder
        self._counted: set[tuple[int, int]] = set()
        self._closed_step = -1

    def close_batch(self) -> None:
        """A backward pass begins: calls between it and the next step belong to another batch."""
        self._closed_step = self._recorder.steps

    def record(self, module: torch.nn.Module, output: Any) -> None:
        """A module's forward ended with `output`. A module with submodules is a layer if it has weights of its own.

        A parameter counts for the layer that uses it first.
        """
        recorder = self._recorder
        step = recorder.steps
        if step > 1 or step == self._closed_step or recorder.phase != "forward":
            return
        is_single = isinstance(module, _SINGLE_LAYERS)
        is_block = not is_single and next(module.children(), None) is not None
        parameters = 0
        for parameter in module.parameters(recurse=is_single):
            if (step, id(parameter)) not in self._counted:
                self._counted.add((step, id(parameter)))
                parameters += parameter.numel()
        if is_block and not parameters:
            return
        shape = () if is_block else _shape_of(output)
        recorder.layers.setdefault(step, []).append(LayerCall(type(module).__name__, parameters, shape))


def _shape_of(output: Any) -> tuple[int, ...]:
    """Shape of the first tensor in an output; empty if there is none."""
    first = output
    while isinstance(first, (tuple, list, dict)) and first:
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    has_shape = isinstance(first, torch.Tensor) and not first.is_nested
    return tuple(int(size) for size in first.shape) if has_shape else ()
