"""A `MemoryTrace` of a training job without its script: no torch, milliseconds.

It models the published jobs: fp32, Adam (foreach), cross entropy, the forward pass of a model summary before training,
two full batches, the smaller last batch of the epoch, and a full one again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotenant.core.trace import MemoryTrace, TraceHeader
from cotenant.learn.synthetic_traces import operations as op
from cotenant.learn.synthetic_traces.tape import Parameter, Tape, Tensor

Forward = Callable[[Tape, Tensor, int], Tensor]
"""One forward pass of an input with so many samples; the caller owns input and result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticJob:
    """A training job, from which `trace_of` makes a trace.

    Attributes:
        load: parameters and buffers in the order they are moved to the GPU; buffers as bytes.
        order: parameters in the order of the optimizer.
        sample_bytes: of one input.
        last_batch: samples of the last batch of an epoch; 0: a full one.
        example, trials: samples of the forward passes before training, and their number.
        holds_example: their input is never freed.
    """

    forward: Forward
    load: Sequence[Parameter | int]
    order: Sequence[Parameter]
    sample_bytes: int
    batch: int
    last_batch: int = 0
    example: int = 2
    trials: int = 1
    holds_example: bool = False


def trace_of(job: SyntheticJob, *, torch: str = "2.4.1") -> MemoryTrace:
    """The trace of `job`; `torch`: version for its header, which selects the rules of a replay."""
    tape = Tape()
    for item in job.load:
        if isinstance(item, Parameter):
            tape.allocate(item.bytes, "parameter")
        else:
            tape.allocate(item, "buffer")
    tape.enter_phase("forward")
    example = tape.allocate(job.example * job.sample_bytes, "input")
    for _ in range(job.trials):
        out = job.forward(tape, example, job.example)
        tape.free_graph()
        if not job.holds_example:
            tape.release(example)
        tape.release(out)
    batches = [job.batch, job.batch, job.batch, job.batch]
    if job.last_batch:
        batches[2] = job.last_batch
    _train(tape, job, batches)
    return tape.trace(TraceHeader(torch_version=torch, steps=len(batches), gpus=1, capability=(8, 0)))


def _train(tape: Tape, job: SyntheticJob, batches: Sequence[int]) -> None:
    held: list[Tensor] = []
    out: Tensor | None = None
    loss: Tensor | None = None
    for samples in batches:
        for tensor in held:
            tape.release(tensor)
        held = [tape.allocate(samples * job.sample_bytes, "input"), tape.allocate(8 * samples, "input")]
        for parameter in job.order:
            tape.release(parameter.grad)
            parameter.grad = None
        logits = job.forward(tape, held[0], samples)
        tape.release(out)
        out = logits
        found = op.cross_entropy(tape, out)
        tape.release(loss)
        loss = found
        tape.backward(loss)
        _adam(tape, job.order)


def _adam(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """A foreach step: two states per parameter, allocated in the first step, and a temporary copy of everything."""
    tape.enter_phase("step")
    for parameter in parameters:
        if not parameter.has_state:
            parameter.has_state = True
            tape.allocate(parameter.bytes, "optimizer state")
            tape.allocate(parameter.bytes, "optimizer state")
    copies = [tape.allocate(parameter.bytes) for parameter in parameters]
    for copy in reversed(copies):
        tape.release(copy)
    tape.enter_phase("forward")
