"""Compiled optimizer kernels of DeepSpeed and Apex, by what they allocate: nothing but what Python gives them.

Their builders need the CUDA toolkit, and their kernels a GPU. What FusedAdam, FusedLion and FusedLamb hold is made in
Python by `torch.zeros_like`; the kernels update it in place. CPU optimizers work on tensors that are not on a GPU.
Apex's LayerNorm runs as PyTorch's, which saves the same: input, mean and reciprocal deviation.
Source: deepspeed/ops/adam/fused_adam.py, `FusedAdam.step`; csrc/adam/multi_tensor_adam.cu;
csrc/lamb/fused_lamb_cuda.cpp, `lamb`; apex/optimizers/fused_adam.py; csrc/multi_tensor_l2norm_kernel.cu,
`multi_tensor_l2norm_cuda`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from cotenant.tracing.patches.kernel_modules import Functions, KernelModule, provide
from cotenant.tracing.patches.registry import HookPatch, Patch, PatchContext, Phase

_IN_PLACE = (
    "multi_tensor_adam", "multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master",
    "multi_tensor_sgd", "multi_tensor_scale", "multi_tensor_axpby", "multi_tensor_lion", "multi_tensor_lamb",
    "multi_tensor_novograd", "multi_tensor_adagrad", "adam_update", "adam_update_copy", "lion_update",
    "adagrad_update", "create_adam", "destroy_adam", "create_lion", "destroy_lion", "create_adagrad",
    "destroy_adagrad", "adam_rollback", "lion_rollback",
)  # fmt: skip
"""Kernels that allocate nothing."""
_APEX_MODULES = ("amp_C", "apex_C")
_NORMS = ("multi_tensor_l2norm", "multi_tensor_unscale_l2norm")
_MAX_BLOCKS = 320  # Source: csrc/multi_tensor_l2norm_kernel.cu, the size of `output`
_KNOWN_BUILDERS = ("FusedAdamBuilder", "FusedLionBuilder", "FusedLambBuilder", "CPUAdamBuilder", "CPULionBuilder",
                   "CPUAdagradBuilder", "UtilsBuilder")  # fmt: skip


def patches(context: PatchContext) -> list[Patch | HookPatch]:
    """The loader of DeepSpeed's operators, and Apex's compiled modules."""
    return [
        Patch(
            target="deepspeed.ops.op_builder.builder:OpBuilder.load", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_loading_known, context.recorder),
            reason="It compiles CUDA code, which cannot run here.",
            source="deepspeed/ops/op_builder/builder.py, `OpBuilder.load`",
        ),
        HookPatch(
            target="apex", phase=Phase.LIBRARIES,
            register=lambda: provide("apex", dict.fromkeys(_APEX_MODULES, _FUNCTIONS)),
            reason="Its kernels are compiled for CUDA, and Apex imports them by name.",
            source="apex/multi_tensor_apply/__init__.py",
        ),
    ]  # fmt: skip


def _allocating_nothing(*args: Any) -> int:
    """Updates its tensors in place."""
    return 0


def _l2norm(chunk_size: int, overflow: torch.Tensor, tensors: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial sums of each block, and the norm: of all tensors, or of each as well."""
    per_tensor = bool(args and args[-1] is True)
    count = len(tensors[0])
    partial = torch.zeros(_MAX_BLOCKS, dtype=torch.float32, device=overflow.device)
    total = torch.empty((1,), dtype=torch.float32, device=overflow.device)
    norms = torch.empty((count if per_tensor else 0,), dtype=torch.float32, device=overflow.device)
    del partial
    return total, norms


def _lamb(parameter: torch.Tensor, *args: Any) -> torch.Tensor:
    """The coefficient of the step: one number of the parameter's dtype."""
    return torch.empty((1,), dtype=parameter.dtype, device=parameter.device)


def _loading_known(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self).__name__ in _KNOWN_BUILDERS:
            return KernelModule(self.name, _FUNCTIONS)
        recorder.warn(f"DeepSpeed's operator `{self.name}` is compiled: what it allocates is not known")
        return KernelModule(self.name, _FUNCTIONS)

    return load


_FUNCTIONS: Functions = {
    **dict.fromkeys(_IN_PLACE, _allocating_nothing),
    **dict.fromkeys(_NORMS, _l2norm),
    "flatten": _flatten_dense_tensors,
    "unflatten": _unflatten_dense_tensors,
    "lamb": _lamb,
}
