"""Autograd without arithmetic: what one process allocates and frees, operation by operation.

A `Tape` is told the operations of a forward pass and plays the backward pass itself. What each operation allocates,
saves and frees, and in which order, was read off traces of torch 2.13 (`cotenant.tracing`); tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace

F32 = 4


class Tensor:
    """A storage with a count of who needs it; `node` made it, None where no gradient flows."""

    __slots__ = ("bytes", "node", "number", "refs")

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.bytes = nbytes
        self.refs = 1
        self.node: Node | None = None


class Parameter:
    """A weight: its bytes, and its gradient while there is one."""

    __slots__ = ("bytes", "grad", "has_state")

    def __init__(self, nbytes: int) -> None:
        self.bytes = nbytes
        self.grad: Tensor | None = None
        self.has_state = False


class BackwardStep(NamedTuple):
    """A step of a backward formula.

    Attributes:
        what: `grad`: make the gradient for parent `which`; `pass`: hand that parent the incoming one; `weight`: make
            the gradient of `parameter`; `op`: library call number `which`; `make` and `drop`: scratch number `which`;
            `done`: the incoming gradient and what was saved are not needed from here on.
        bytes: of `grad` and `make`.
    """

    what: str
    which: int = 0
    bytes: int = 0
    parameter: Parameter | None = None


DONE = BackwardStep("done")


class Node:
    """One operation that a gradient will come back through: what it keeps for that, and what it does then."""

    __slots__ = ("formula", "parents", "saved")

    def __init__(
        self, parents: Sequence[Node | None], saved: Sequence[Tensor], formula: Sequence[BackwardStep]
    ) -> None:
        self.parents = parents
        self.saved: Sequence[Tensor] | None = saved
        self.formula = formula


class Tape:
    """Records events; knows the graph of one forward pass at a time."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []
        self.ops: list[LibraryCall] = []
        self.phase = "load"
        self.graph: list[Node] = []
        self._op_ids: dict[Any, int] = {}
        self._made = 0

    # -- storages ---------------------------------------------------------------------------------------------

    def make(self, nbytes: int, category: str = "temporary") -> Tensor:
        """A new storage, needed by one."""
        tensor = Tensor(self._made, nbytes)
        self._made += 1
        if nbytes:
            self.events.append(MemoryEvent("alloc", tensor.number, nbytes, category, self.phase, "", 0, 0))
        return tensor

    def keep(self, tensor: Tensor) -> Tensor:
        """One more needs it."""
        tensor.refs += 1
        return tensor

    def drop(self, tensor: Tensor | None) -> None:
        """One less needs it; nobody: it is freed."""
        if tensor is None:
            return
        tensor.refs -= 1
        if not tensor.refs and tensor.bytes:
            self.events.append(MemoryEvent("free", tensor.number, 0, "", self.phase, "", 0, 0))

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase = phase
        self.events.append(MemoryEvent("phase", -1, 0, "", phase, "", 0, 0))

    def call(self, kind: str, thread: str = "main", params: tuple[tuple[str, Any], ...] = ()) -> None:
        """A library call, now."""
        self.called(self.op(kind, thread, params))

    def op(self, kind: str, thread: str, params: tuple[tuple[str, Any], ...] = ()) -> int:
        """The number of a library call, to be made later."""
        key = (kind, thread, params)
        if key not in self._op_ids:
            self._op_ids[key] = len(self.ops)
            self.ops.append(LibraryCall(kind=kind, thread=thread, params=dict(params)))
        return self._op_ids[key]

    def called(self, number: int) -> None:
        """The library call `number`, now."""
        self.events.append(MemoryEvent("op", number, 0, "", self.phase, "", 0, 0))

    # -- the graph --------------------------------------------------------------------------------------------

    def result(
        self, output: Tensor, inputs: Sequence[Tensor], formula: Iterable[BackwardStep], saved: Sequence[Tensor] = ()
    ) -> Tensor:
        """`output` as what an operation on `inputs` gave; each of `saved` is needed once more until backward."""
        for each in saved:
            self.keep(each)
        output.node = Node([each.node for each in inputs], saved, tuple(formula))
        self.graph.append(output.node)
        return output

    def forget(self) -> None:
        """The graph goes without a backward pass, from its end on."""
        for node in reversed(self.graph):
            for each in node.saved or ():
                self.drop(each)
        self.graph = []

    def backward(self, loss: Tensor) -> None:
        """Play the graph backward from `loss`; gradients of parameters stay with them."""
        self.enter("backward")
        seed = self.make(F32)
        due: dict[int, Tensor] = {id(loss.node): self.keep(seed)}
        for node in reversed(self.graph):
            gradient = due.pop(id(node), None)
            if gradient is None:
                continue
            for parent, found in self._play(node, gradient):
                before = due.get(id(parent))
                if before is None:
                    due[id(parent)] = found
                else:
                    self.drop(found)  # added to the other in place
        self.graph = []
        self.drop(seed)
        self.enter("forward")

    def _play(self, node: Node, gradient: Tensor) -> list[tuple[Node, Tensor]]:
        scratch: dict[int, Tensor] = {}
        given: list[tuple[Node, Tensor]] = []
        for step in (*node.formula, DONE):
            what, which, nbytes, parameter = step
            parent = node.parents[which] if what in ("grad", "pass") else None
            if what == "grad" and parent is not None:
                given.append((parent, self.make(nbytes)))
            elif what == "pass" and parent is not None:
                given.append((parent, self.keep(gradient)))
            elif parameter is not None:
                parameter.grad = self.make(parameter.bytes, "gradient")
            elif what == "op":
                self.called(which)
            elif what == "make":
                scratch[which] = self.make(nbytes)
            elif what == "drop":
                self.drop(scratch.pop(which))
            elif what == "done" and node.saved is not None:
                self.drop(gradient)
                for each in node.saved:
                    self.drop(each)
                node.saved = None
        return given

    def trace(self, header: dict[str, object]) -> MemoryTrace:
        """All of it, as if it had been traced."""
        return MemoryTrace(events=tuple(self.events), ops=tuple(self.ops), header=header)
