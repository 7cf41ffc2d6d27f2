"""The layers of a network, as the training loop calls them: class, parameters, shape of what comes out.

For estimators that know a network by its layers and not by its memory. One forward pass is kept: that of the second
step, since a trial run may come before the first, or all calls before the first step where there is no second.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.core.trace import LayerCall
from cotenant.tracing.recorder import TraceRecorder

_WHOLE = (torch.nn.MultiheadAttention,)
"""Modules that use the weights of their submodules without calling them."""


class LayerLog:
    """Writes each call of a layer into the recorder, while the first two steps last."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder
        self._counted: set[tuple[int, int]] = set()
        self._closed = -1

    def close(self) -> None:
        """A backward pass begins: what is called between it and the next step is another batch."""
        self._closed = self._recorder.steps

    def note(self, module: torch.nn.Module, output: Any) -> None:
        """A module's forward ended with `output`. Modules with submodules are no layers, but for weights of their own.

        A parameter counts where it is used first.
        """
        recorder = self._recorder
        step = recorder.steps
        if step > 1 or step == self._closed or recorder.phase != "forward":
            return
        is_whole = isinstance(module, _WHOLE)
        is_block = not is_whole and next(module.children(), None) is not None
        parameters = 0
        for each in module.parameters(recurse=is_whole):
            if (step, id(each)) not in self._counted:
                self._counted.add((step, id(each)))
                parameters += each.numel()
        if is_block and not parameters:
            return
        shape = () if is_block else _shape_of(output)
        recorder.layers.setdefault(step, []).append(LayerCall(type(module).__name__, parameters, shape))


def _shape_of(output: Any) -> tuple[int, ...]:
    """Of the first tensor of an output; empty if there is none."""
    first = output
    while isinstance(first, (tuple, list, dict)) and first:
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    has_shape = isinstance(first, torch.Tensor) and not first.is_nested
    return tuple(int(size) for size in first.shape) if has_shape else ()
