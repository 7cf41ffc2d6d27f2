"""Liveness over the graph of a model, after DNNMem."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.allocator import parse_options, replay, rules_for
from cotenant.core.trace import MemoryEvent, MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec


class DnnMemEstimator(TraceBasedEstimator):
    """Weights, outputs and gradients of a static graph in the order of one training step, through an allocator.

    Source: Gao et al., Estimating GPU Memory Consumption of Deep Learning Models, ESEC/FSE 2020: tensors with their
    lifetimes on the computation graph, the context, and the allocator's cache. DNNMem is closed source; this is a new
    implementation from its description, with our allocator.

    The trace gives only the graph: the outputs of each layer, in order, and the parameters. Lifetimes are the graph's:
    an output lives until the layer's own backward, though PyTorch frees what no gradient needs. Gradients of weights
    are allocated in that backward, evenly over the layers; the states of the optimizer in the first step.
    Limits: no workspaces of cuDNN and cuBLAS, no temporaries of operators and optimizer, no recomputation.
    """

    name = "dnnmem"
    leaves_out = "temporaries, workspaces; keeps outputs that no gradient needs"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:
        version = recorded.header.torch_version
        result = replay(graph_events(features), options=parse_options("", version), rules=rules_for(version))
        return RawEstimate(
            reserved_bytes=max(result.peak_reserved_bytes, 2 * MiB),
            allocated_bytes=result.peak_allocated_bytes,
            context_bytes=gpu.context.typical_bytes,
            breakdown_bytes=dict(result.breakdown_bytes),
        )


def graph_events(features: Features) -> tuple[MemoryEvent, ...]:
    """Two training steps of the graph; in the second the optimizer states of the first are live."""
    return tuple(_Graph(features).steps(2))


class _Graph:
    def __init__(self, features: Features) -> None:
        self.features = features
        self._next = 0

    def steps(self, count: int) -> Iterator[MemoryEvent]:
        """Load, then forward, backward and update, `count` times; gradients are freed when the next step begins."""
        features = self.features
        for size in features.parameter_bytes:
            yield self._alloc(size, "parameter", "load")
        if features.buffer_bytes:
            yield self._alloc(features.buffer_bytes, "buffer", "load")
        gradients: list[MemoryEvent] = []
        for step in range(count):
            yield from (_free(gradient, "forward") for gradient in gradients)
            gradients = []
            yield from self._step(gradients)
            if step == 0:
                for size in features.state_bytes:
                    yield self._alloc(size, "optimizer state", "step")

    def _step(self, gradients: list[MemoryEvent]) -> Iterator[MemoryEvent]:
        features = self.features
        outputs: list[list[MemoryEvent]] = []
        batch = [self._alloc(features.input_bytes, "input", "forward")] if features.input_bytes else []
        yield from batch
        for layer in features.layers:
            outputs.append([self._alloc(size, "activation", "forward") for size in layer.saved_bytes])
            yield from outputs[-1]
        due = list(features.gradient_bytes)
        above: MemoryEvent | None = None
        for left in range(len(outputs), 0, -1):
            layer_outputs = outputs.pop()
            largest = max(layer_output.bytes for layer_output in layer_outputs)
            below = self._alloc(largest, "temporary", "backward")
            yield below
            for _ in range(-(-len(due) // left)):
                gradients.append(self._alloc(due.pop(0), "gradient", "backward"))
                yield gradients[-1]
            yield from (_free(layer_output, "backward") for layer_output in layer_outputs)
            if above is not None:
                yield _free(above, "backward")
            above = below
        if above is not None:
            yield _free(above, "backward")
        yield from (_free(sample, "backward") for sample in batch)

    def _alloc(self, nbytes: int, category: str, phase: str) -> MemoryEvent:
        self._next += 1
        return MemoryEvent("alloc", self._next, nbytes, category, phase, "", 0, 0)


def _free(made: MemoryEvent, phase: str) -> MemoryEvent:
    return MemoryEvent("free", made.storage_id, 0, "", phase, "", 0, 0)
