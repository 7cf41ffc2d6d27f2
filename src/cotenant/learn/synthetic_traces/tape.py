"""Autograd without arithmetic: what one process allocates and frees, operation by operation.

The caller records the operations of a forward pass on a `Tape`, and the tape runs the backward pass itself. What each
operation allocates, saves and frees, and in which order, was read off traces of torch 2.13 (`cotenant.tracing`);
tests/needs_torch/test_learn_synthetic.py compares the two event by event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace, TraceHeader
from cotenant.learn.synthetic_traces.backward_steps import BackwardStep, NodeBackward

F32 = 4


class Tensor:
    """A storage with a reference count; `node` is the operation that made it, None where no gradient flows."""

    __slots__ = ("bytes", "node", "number", "refs")

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.bytes = nbytes
        self.refs = 1
        self.node: Node | None = None


class Parameter:
    """A weight of the network: its bytes, and its gradient while there is one."""

    __slots__ = ("bytes", "grad", "has_state")

    def __init__(self, nbytes: int) -> None:
        self.bytes = nbytes
        self.grad: Tensor | None = None
        self.has_state = False


class Node:
    """One differentiable operation: the tensors it saves for the backward pass, and the steps of that pass."""

    __slots__ = ("formula", "parents", "saved")

    def __init__(
        self, parents: Sequence[Node | None], saved: Sequence[Tensor], formula: Sequence[BackwardStep]
    ) -> None:
        self.parents = parents
        self.saved: Sequence[Tensor] | None = saved
        self.formula = formula


class Tape:
    """Records memory events, and the autograd graph of one forward pass at a time."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []
        self.ops: list[LibraryCall] = []
        self.phase = "load"
        self.graph: list[Node] = []
        self._op_ids: dict[Any, int] = {}
        self._made = 0

    # -- storages ---------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, category: str = "temporary") -> Tensor:
        """A new storage with one reference."""
        tensor = Tensor(self._made, nbytes)
        self._made += 1
        if nbytes:
            self.events.append(MemoryEvent("alloc", tensor.number, nbytes, category, self.phase, "", 0, 0))
        return tensor

    def retain(self, tensor: Tensor) -> Tensor:
        """Add a reference."""
        tensor.refs += 1
        return tensor

    def release(self, tensor: Tensor | None) -> None:
        """Remove a reference; without any left the storage is freed."""
        if tensor is None:
            return
        tensor.refs -= 1
        if not tensor.refs and tensor.bytes:
            self.events.append(MemoryEvent("free", tensor.number, 0, "", self.phase, "", 0, 0))

    def enter_phase(self, phase: str) -> None:
        """Begin a phase."""
        self.phase = phase
        self.events.append(MemoryEvent("phase", -1, 0, "", phase, "", 0, 0))

    def call_library(self, kind: str, thread: str = "main", params: tuple[tuple[str, Any], ...] = ()) -> None:
        """Record a library call."""
        self.record_call(self.op_id(kind, thread, params))

    def op_id(self, kind: str, thread: str, params: tuple[tuple[str, Any], ...] = ()) -> int:
        """The id of a library call, to be recorded later by `record_call`."""
        key = (kind, thread, params)
        if key not in self._op_ids:
            self._op_ids[key] = len(self.ops)
            self.ops.append(LibraryCall(kind=kind, thread=thread, params=dict(params)))
        return self._op_ids[key]

    def record_call(self, number: int) -> None:
        """Record the library call `number`."""
        self.events.append(MemoryEvent("op", -1, 0, "", self.phase, "", 0, 0, number))

    # -- the graph --------------------------------------------------------------------------------------------

    def record(
        self, output: Tensor, inputs: Sequence[Tensor], formula: Iterable[BackwardStep], saved: Sequence[Tensor] = ()
    ) -> Tensor:
        """Record `output` of an operation on `inputs`; each of `saved` gets a reference until its backward pass."""
        for tensor in saved:
            self.retain(tensor)
        output.node = Node([tensor.node for tensor in inputs], saved, tuple(formula))
        self.graph.append(output.node)
        return output

    def free_graph(self) -> None:
        """Free the graph without a backward pass, from its end on."""
        for node in reversed(self.graph):
            for tensor in node.saved or ():
                self.release(tensor)
        self.graph = []

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass from `loss`; gradients of parameters stay with them."""
        self.enter_phase("backward")
        seed = self.allocate(F32)
        due: dict[int, Tensor] = {id(loss.node): self.retain(seed)}
        for node in reversed(self.graph):
            gradient = due.pop(id(node), None)
            if gradient is None:
                continue
            for parent, found in self._backward_of(node, gradient):
                before = due.get(id(parent))
                if before is None:
                    due[id(parent)] = found
                else:
                    self.release(found)  # added to the other in place
        self.graph = []
        self.release(seed)
        self.enter_phase("forward")

    def _backward_of(self, node: Node, gradient: Tensor) -> list[tuple[Node, Tensor]]:
        """The gradients of the inputs of `node`, each with the operation that made that input."""
        run = NodeBackward(self, node, gradient)
        for step in node.formula:
            step.apply(run)
        run.release()
        return run.input_gradients

    def trace(self, header: TraceHeader) -> MemoryTrace:
        """The recorded events in the form that the tracer writes."""
        return MemoryTrace(events=tuple(self.events), ops=tuple(self.ops), header=header)
