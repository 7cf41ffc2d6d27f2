"""PyTorch's own fake tensors: they leave CUDA uninitialized, and threads of the script enter the dispatch mode.

One file for each part of PyTorch, or library, that is patched.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from cotenant.tracing.patches.registry import Entry, HookPatch, Patch, PatchContext, Phase, patch_attributes


def patches(context: PatchContext) -> list[Entry]:
    """Initialization of CUDA, copies to the GPU inside of constructors, and new threads."""
    mode, source = context.mode, "torch/_subclasses/fake_tensor.py, `FakeTensor.__new__`"
    reason = "A fake CUDA tensor initializes CUDA, which a CPU build refuses."

    def entering_mode(original: Any) -> Any:
        def bootstrap(thread: threading.Thread) -> None:
            with mode:
                original(thread)

        return bootstrap

    return [
        Patch(
            target="torch._subclasses.fake_tensor:FakeTensorMode.avoid_device_init", phase=Phase.DEVICE,
            replacement=property(lambda self: True), reason=reason, source=source, create=True,
        ),
        *patch_attributes(
            "torch._subclasses.fake_tensor",
            dict.fromkeys(("init_gpu_context", "init_cuda_context"), lambda *_: None),
            phase=Phase.DEVICE, reason=reason, source=source,
            missing="each version has one of the two: `init_cuda_context` until 2.7",
        ),
        HookPatch(
            target="torch._C:_set_only_lift_cpu_tensors", phase=Phase.DEVICE, register=_lift_cpu_tensors_only,
            reason="`torch.tensor(..., device='cuda')` copies to the GPU inside of its constructor.",
            source="torch/csrc/utils/tensor_new.cpp, `only_lift_cpu_tensors`",
        ),
        Patch(
            target="threading:Thread._bootstrap_inner", phase=Phase.DEVICE, replacement=entering_mode, wraps=True,
            reason="A dispatch mode holds for one thread only; threads of the script must see the same GPU.",
            source="torch/utils/_python_dispatch.py, `TorchDispatchMode.__enter__`",
        ),
    ]  # fmt: skip


def _lift_cpu_tensors_only() -> Any:
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    return lambda: torch._C._set_only_lift_cpu_tensors(before)
