"""Autograd's graphs of a model's calls: whether a script drops them without a backward pass, and what they held.

A node of a graph holds the functions that are called before its backward pass: such a function is a mark, which dies
with the node. Source: torch/autograd/graph.py, `Node.register_prehook` (2.0 and later).
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cotenant.tracing.recorder import TraceRecorder


class CallGraphs:
    """The graphs of the last two calls of one kind.

    Attributes:
        is_used: whether a backward pass came to one.
    """

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder
        self._latest: deque[_CallGraph] = deque(maxlen=2)
        self._held: Sequence[bool] = ()  # for each input, whether the graph of an alike call held it
        self._backward_passes = 0
        self.is_used = False

    def add(
        self,
        results: Iterable[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        left: Iterable[int] = (),
        *,
        is_replaced: bool = False,
    ) -> None:
        """Record a call, and the storages that it left beside its results."""

        def mark(*_gradients: Any) -> None:
            self.is_used = True
            if is_replaced:
                self._recorder.warn("a call was taken for one without a backward pass: its gradients were not traced")

        for node in {tensor.grad_fn for tensor in results if tensor.grad_fn is not None}:
            node.register_prehook(mark)
        self._latest.append(_CallGraph(self._recorder, mark, inputs, set(left)))

    def are_dropped(self, backward_passes: int) -> bool:
        """Whether nothing is left of the call before the last, and no backward pass followed; of `backward_passes` all.

        A variable such as `output` names the last result until the next call has returned. A backward pass may come to
        a part of a graph that is not behind the results.
        """
        before, self._backward_passes = self._backward_passes, backward_passes
        if before != backward_passes:
            return False
        if len(self._latest) < 2:
            return True
        graph = self._latest[0]
        self._held = graph.held()
        return graph.is_dropped()

    def held(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those inputs of a call that its graph would hold."""
        return [tensor for tensor, is_held in zip(inputs, self._held, strict=True) if is_held]


class _CallGraph:
    """The graph of a call: after how many storages of the trace it and each input died."""

    def __init__(self, recorder: TraceRecorder, mark: object, inputs: Sequence[torch.Tensor], left: set[int]) -> None:
        self._recorder = recorder
        self._left = left
        self._ends: dict[int, int] = {}
        things = [*(tensor.untyped_storage() for tensor in inputs), mark]
        self._refs = [weakref.ref(thing, self._noting_end_of(place)) for place, thing in enumerate(things)]

    def _noting_end_of(self, place: int) -> Callable[[object], None]:
        ends, recorder = self._ends, self._recorder  # and not `self`, which holds the reference

        def note(_: object) -> None:
            ends[place] = recorder.position()[1]

        return note

    def is_dropped(self) -> bool:
        return len(self._refs) - 1 in self._ends and not self._recorder.any_live(self._left)

    def held(self) -> list[bool]:
        """For each input, whether the graph may have held it: that one did not die before the graph."""
        *inputs, graph = [self._ends.get(place, math.inf) for place in range(len(self._refs))]
        return [end >= graph for end in inputs]
