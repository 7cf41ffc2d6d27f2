"""Steps of the backward pass of one operation: each allocates, frees or calls what autograd does at that point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotenant.learn.synthetic_traces.tape import Node, Parameter, Tape, Tensor


class NodeBackward:
    """The backward pass of one node, while it runs.

    Attributes:
        input_gradients: for each parent that a gradient flows to: the parent and its gradient.
        scratch: temporary storages by their slot.
    """

    __slots__ = ("gradient", "input_gradients", "node", "scratch", "tape")

    def __init__(self, tape: Tape, node: Node, gradient: Tensor) -> None:
        self.tape = tape
        self.node = node
        self.gradient = gradient
        self.scratch: dict[int, Tensor] = {}
        self.input_gradients: list[tuple[Node, Tensor]] = []

    def release(self) -> None:
        """Free the incoming gradient and the saved tensors, once."""
        if self.node.saved is None:
            return
        self.tape.release(self.gradient)
        for tensor in self.node.saved:
            self.tape.release(tensor)
        self.node.saved = None


class BackwardStep(ABC):
    """One step of a node's backward pass."""

    __slots__ = ()

    @abstractmethod
    def apply(self, run: NodeBackward) -> None:
        """Do it."""


@dataclass(slots=True)
class InputGradient(BackwardStep):
    """Allocate the gradient of input number `index`, if one flows there."""

    index: int
    bytes: int

    def apply(self, run: NodeBackward) -> None:
        parent = run.node.parents[self.index]
        if parent is not None:
            run.input_gradients.append((parent, run.tape.allocate(self.bytes)))


@dataclass(slots=True)
class PassGradient(BackwardStep):
    """Hand the incoming gradient on to input number `index`, without a copy."""

    index: int

    def apply(self, run: NodeBackward) -> None:
        parent = run.node.parents[self.index]
        if parent is not None:
            run.input_gradients.append((parent, run.tape.retain(run.gradient)))


@dataclass(slots=True)
class WeightGradient(BackwardStep):
    """Allocate the gradient of a parameter."""

    parameter: Parameter

    def apply(self, run: NodeBackward) -> None:
        self.parameter.grad = run.tape.allocate(self.parameter.bytes, "gradient")


@dataclass(slots=True)
class CallLibrary(BackwardStep):
    """Call cuBLAS, cuDNN or a reduction kernel; `op_id` as of `Tape.op_id`."""

    op_id: int

    def apply(self, run: NodeBackward) -> None:
        run.tape.record_call(self.op_id)


@dataclass(slots=True)
class AllocateScratch(BackwardStep):
    """Allocate a temporary storage in `slot`."""

    slot: int
    bytes: int

    def apply(self, run: NodeBackward) -> None:
        run.scratch[self.slot] = run.tape.allocate(self.bytes)


@dataclass(slots=True)
class FreeScratch(BackwardStep):
    """Free the temporary storage in `slot`."""

    slot: int

    def apply(self, run: NodeBackward) -> None:
        run.tape.release(run.scratch.pop(self.slot))


class ReleaseSaved(BackwardStep):
    """Free the incoming gradient and the saved tensors before the steps that follow."""

    __slots__ = ()

    def apply(self, run: NodeBackward) -> None:
        run.release()
