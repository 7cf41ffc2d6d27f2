"""Summaries and exports of a model that record its graph: the forward pass runs, and the graph is empty.

The tracer of TorchScript hides operators from a dispatch mode, or waits forever for one. `torchinfo`, `thop` and
`FlopCounterMode` need nothing: they hook modules or operators.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.sandbox.overlay import Overlay


def patches(context: PatchContext) -> list[Patch]:
    """TensorBoard's graph, the counters of fvcore, and ONNX."""
    common: dict[str, Any] = {
        "phase": Phase.LIBRARIES,
        "reason": "TorchScript's tracer hides operators from a dispatch mode.",
    }
    return [
        *(
            Patch(
                target=f"{module}:SummaryWriter.add_graph", replacement=_add_graph, missing="without TensorBoard",
                source="torch/utils/tensorboard/_pytorch_graph.py, `graph`", **common,
            )
            for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer")
        ),
        Patch(
            target="fvcore.nn.jit_analysis:JitModelAnalysis._analyze",
            replacement=functools.partial(_empty_statistics, context.recorder), wraps=True,
            source="fvcore/nn/jit_analysis.py, `_get_scoped_trace_graph`", **common,
        ),
        Patch(
            target="torch.onnx:export", replacement=functools.partial(_exporting, context.overlay), wraps=True,
            source="torch/onnx/_internal/torchscript_exporter/utils.py, `_trace_and_get_graph_from_model`", **common,
        ),
    ]  # fmt: skip


_EMPTY_ONNX = b"\x08\x08\x3a\x03\x12\x01g\x42\x02\x10\x11"
"""A model of ONNX: IR version 8, a graph named `g`, operator set 17. Source: onnx.proto, `ModelProto`."""


def run_once(model: Callable[..., Any], inputs: Any) -> None:
    """Call `model` as `torch.jit.trace` does, with a tensor or a tuple of inputs."""
    if isinstance(inputs, (torch.Tensor, dict)):
        inputs = (inputs,)
    model(*inputs)


class _Program:
    """In place of `torch.onnx.ONNXProgram`."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def save(self, destination: Any, *_: object, **__: object) -> None:
        """Write the empty model."""
        if isinstance(destination, (str, os.PathLike)):
            self._overlay.write(destination, _EMPTY_ONNX)
        else:
            destination.write(_EMPTY_ONNX)

    def optimize(self) -> None:
        """Nothing to optimize."""


def _exporting(overlay: Overlay, original: Any) -> Any:
    uses_tracer = inspect.signature(original).parameters.get("dynamo")
    default = uses_tracer is not None and uses_tracer.default is True

    @functools.wraps(original)
    def export(model: Any, args: Any = (), f: Any = None, *more: Any, **options: Any) -> Any:
        program = _Program(overlay)
        by_compiler = bool(options.get("dynamo", default))
        if not by_compiler and callable(model):  # the compiler reads a model on fake tensors, on a GPU as well
            _run_for_export(model, args, options.get("kwargs") or {})
        if f is not None:
            program.save(f)
        return program if by_compiler else None

    return export


def _run_for_export(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
    inputs = args if isinstance(args, (tuple, list)) else (args,)
    if inputs and isinstance(inputs[-1], dict):  # keyword arguments: torch/onnx/__init__.py, `export`
        inputs, kwargs = inputs[:-1], {**inputs[-1], **kwargs}
    was_training = getattr(model, "training", False)
    if was_training:
        model.eval()
    try:
        model(*inputs, **kwargs)
    finally:
        if was_training:
            model.train()


def _add_graph(self: Any, model: torch.nn.Module, input_to_model: Any = None, *_: object, **options: object) -> None:
    if input_to_model is not None:
        run_once(model, input_to_model)


def _empty_statistics(recorder: TraceRecorder, original: Any) -> Any:
    """Counts of 0 for every module.

    The graph of the meta device has no shapes: PyTorch's functions for it, in Python, fail under TorchScript's tracer.
    """

    @functools.wraps(original)
    def analyze(self: Any) -> Any:
        if self._stats is None:
            recorder.warn("fvcore's counts of operations and activations are 0 in a trace")
            run_once(self._model, self._inputs)
            names = set(self._aliases.values())
            module = original.__globals__
            self._stats = module["Statistics"](
                counts={name: Counter() for name in names},
                unsupported_ops={name: Counter() for name in names},
                uncalled_mods=set(),
            )
        return self._stats

    return analyze
