"""The layers of an `nn.Module`, from one forward pass on the `meta` device. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.estimators.layer_kinds import LayerKind, layer_kind
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.model_summaries.summary import Summary
from cotenant.learn.model_summaries.values import Shape

_WHOLE = ("MultiheadAttention",)
"""Classes that use their submodules' weights without calling them: each is one layer with all of its content."""


def summarize_module(module: Any, inputs: Sequence[Any], *, batch_at: int = 0) -> Summary:
    """Every layer of `module` that is called for `inputs`, in order; shared weights count at their first use.

    `inputs` are tensors of a whole batch, on any device; `batch_at` is the dimension of the samples. The module is not
    changed, and no memory is allocated: parameters and inputs are replaced by `meta` tensors. Operations outside of
    modules (the addition of a residual block) are not layers. A module's own weights follow its submodules.

    Raises:
        UsageError: it cannot run on these shapes, or on `meta` tensors.
    """
    import torch

    recorder = _Recorder(batch_at)
    hooks = [submodule.register_forward_hook(recorder.note) for submodule in module.modules()]
    state = {name: tensor.to("meta") for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    moved = tuple(tensor.to("meta") if isinstance(tensor, torch.Tensor) else tensor for tensor in inputs)
    try:
        with torch.no_grad():
            torch.func.functional_call(module, state, moved, strict=False)
    except RuntimeError as error:
        raise UsageError(
            f"`{type(module).__name__}` cannot be summarized for these inputs: {_first_line(error)}",
            hint="if it reads values of tensors, estimate its training script instead",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    batch = int(inputs[0].shape[batch_at]) if inputs else None
    return Summary(format="module", layers=tuple(recorder.layers), batch=batch)


class _Recorder:
    """Records the layers that hooks report. `_counted`: ids of weights, since a tied weight has two names."""

    def __init__(self, batch_at: int) -> None:
        self.layers: list[Layer] = []
        self._batch_at = batch_at
        self._counted: set[int] = set()

    def note(self, module: Any, _args: Any, output: Any) -> None:
        name = type(module).__name__
        is_whole = name in _WHOLE
        has_children = next(module.children(), None) is not None
        parameters = sum(
            parameter.numel() for parameter in module.parameters(recurse=is_whole) if self._is_new(parameter)
        )
        if has_children and not is_whole:
            if not parameters:
                return
            kind: LayerKind = "attention" if layer_kind(name) == "attention" else "other"
            self.layers.append(Layer(kind=kind, output_shape=(), parameters=parameters, name=name))
            return
        shape = _shape_of(output, self._batch_at)
        self.layers.append(Layer(kind=layer_kind(name), output_shape=shape, parameters=parameters, name=name))

    def _is_new(self, parameter: Any) -> bool:
        if id(parameter) in self._counted:
            return False
        self._counted.add(id(parameter))
        return True


def _shape_of(output: Any, batch_at: int) -> Shape:
    """Shape of the first tensor of an output, without the batch."""
    first = output
    while isinstance(first, (tuple, list)) and first:
        first = first[0]
    if isinstance(first, dict):
        first = next(iter(first.values()), None)
    extents = [int(extent) for extent in getattr(first, "shape", ())]
    del extents[batch_at : batch_at + 1]
    return tuple(extents)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0][:200]
