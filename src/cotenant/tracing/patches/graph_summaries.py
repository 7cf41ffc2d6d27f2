"""Summaries of a model that record its graph by `torch.jit.trace`: the forward pass runs, and the graph is empty.

The tracer of TorchScript hides operators from a dispatch mode, or waits forever for one. `torchinfo`, `thop` and
`FlopCounterMode` need nothing: they hook modules or operators.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase


def patches(context: PatchContext) -> list[Patch]:
    """TensorBoard's graph, and the counters of fvcore."""
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
            target="fvcore.nn.jit_analysis:JitModelAnalysis._analyze", replacement=_empty_statistics, wraps=True,
            source="fvcore/nn/jit_analysis.py, `_get_scoped_trace_graph`", **common,
        ),
    ]  # fmt: skip


def run_once(model: Callable[..., Any], inputs: Any) -> None:
    """Call `model` as `torch.jit.trace` does, with a tensor or a tuple of inputs."""
    if isinstance(inputs, (torch.Tensor, dict)):
        inputs = (inputs,)
    model(*inputs)


def _add_graph(self: Any, model: torch.nn.Module, input_to_model: Any = None, *_: object, **options: object) -> None:
    if input_to_model is not None:
        run_once(model, input_to_model)


def _empty_statistics(original: Any) -> Any:
    """Counts of 0 for every module."""

    @functools.wraps(original)
    def analyze(self: Any) -> Any:
        if self._stats is None:
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
