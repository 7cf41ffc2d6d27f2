"""Kernels that a script brings along: Triton's, those of `torch.cuda._compile_kernel`, and those of the kernel hub.

A Triton kernel allocates nothing: it writes to tensors that Python made. Its autotuner clears the GPU's L2 cache
between runs with a tensor of 256 MiB, once for each kernel and kind of arguments; the first configuration wins here,
which libraries ask for (`best_config`). FlashAttention from the hub is known, see
`flash_attention`. Any other kernel of the hub is named in an error.
Source: triton/runtime/jit.py, `JITFunction.run`; triton/runtime/autotuner.py, `Autotuner.run`, `Autotuner._bench`;
triton/backends/nvidia/driver.py, `get_empty_cache_for_benchmark`; torch/cuda/__init__.py,
`_compile_kernel`; kernels/utils.py, `get_kernel`.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from cotenant.tracing.assumptions.known_values import KnownValues
from cotenant.tracing.errors import Untraceable
from cotenant.tracing.patches import flash_attention
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_WARNING = "the script's own Triton kernels were not run: they allocate nothing, and what they compute is not known"
_CLEARED_CACHE_BYTES = 256 << 20
_ATTENTION = "flash"  # in the name of a repository of the kernel hub


def patches(context: PatchContext) -> list[Patch]:
    """Where kernels are launched, compiled and fetched."""
    common: dict[str, Any] = {"phase": Phase.LIBRARIES, "reason": "No kernel can run here."}
    launch = functools.partial(_launch_nothing, context.recorder, context.mode.known_values)
    return [
        *(
            Patch(
                target=f"triton.runtime.{target}.run", replacement=launch,
                source=f"triton/runtime/{target.partition(':')[0]}.py", **common,
            )
            for target in ("jit:JITFunction", "autotuner:Heuristics")
        ),
        Patch(
            target="triton.runtime.autotuner:Autotuner._bench", replacement=_bench,
            source="triton/runtime/autotuner.py", **common,
        ),
        Patch(
            target="triton.runtime.autotuner:Autotuner.run", wraps=True,
            replacement=functools.partial(_autotune, launch), source="triton/runtime/autotuner.py", **common,
        ),
        Patch(
            target="triton.backends.nvidia.driver:CudaUtils", replacement=_driver_utilities,
            source="triton/backends/nvidia/driver.py, `CudaUtils`", **common,
        ),
        Patch(
            target="torch.cuda:_compile_kernel", replacement=lambda *args, **kwargs: launch, missing="before 2.9",
            source="torch/cuda/__init__.py, `_compile_kernel`", **common,
        ),
        *(
            # TRL's fused output layer: torch operators in its kernels' place, for devices without Triton.
            Patch(
                target=f"trl.kernels.chunked_logprob:{name}", replacement=launch,
                source="trl/kernels/chunked_logprob.py, `_use_triton`", **common,
            )
            for name in ("_forward_tile", "_backward_tile")
        ),
        *(
            Patch(
                target=f"{module}:get_kernel", replacement=functools.partial(_named_kernel, context.recorder),
                source="kernels/utils.py, `get_kernel`", **common,
            )
            for module in ("kernels", "kernels.utils")
        ),
    ]  # fmt: skip


def _launch_nothing(recorder: Any, values: KnownValues, *args: Any, **kwargs: Any) -> None:
    recorder.warn(_WARNING)
    for value in (*args, *kwargs.values()):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                values.forget(tensor)  # the kernel may have written to it


def _driver_utilities() -> Any:
    """What Triton asks the driver for: the GPU's properties. Libraries ask for the current GPU when they are imported.

    Source of the names: triton/backends/nvidia/driver.c, `getDeviceProperties`.
    """
    gpu = torch.cuda.get_device_properties(0)
    properties = {
        "max_shared_mem": gpu.shared_memory_per_block_optin,
        "max_num_regs": gpu.regs_per_multiprocessor,
        "multiprocessor_count": gpu.multi_processor_count,
        "warpSize": gpu.warp_size,
        "sm_clock_rate": gpu.clock_rate,
        "mem_clock_rate": gpu.memory_clock_rate,
        "mem_bus_width": gpu.memory_bus_width,
    }
    return types.SimpleNamespace(get_device_properties=lambda device: dict(properties))


def _bench(self: Any, *args: Any, config: Any, **kwargs: Any) -> list[float]:
    """What one measurement of a configuration allocates; the time is the same for all."""
    tensors = {name: value for name, value in {**self.nargs, **kwargs}.items() if isinstance(value, torch.Tensor)}
    device = next((tensor.device for tensor in tensors.values()), torch.device("cuda"))
    saved = [tensors[name].clone() for name in getattr(self, "restore_value", ()) if name in tensors]
    _cleared = torch.empty(_CLEARED_CACHE_BYTES, dtype=torch.uint8, device=device)
    del saved
    return [1.0, 1.0, 1.0]


def _autotune(launch: Any, original: Any) -> Any:
    """Triton's own choice among configurations; where that needs the driver, the first one."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except RuntimeError:
            self.best_config = self.configs[0]
            return launch(*args, **kwargs)

    return run


def _named_kernel(recorder: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    if _ATTENTION not in name:
        raise Untraceable(
            f"the kernel `{name}` of the hub is compiled, and its memory is not known; estimate with "
            "`--backend null-gpu`, or let the script use PyTorch's own"
        )
    recorder.warn(f"the kernel `{name}` is traced as FlashAttention 3 by what that allocates")
    module = types.ModuleType(name)
    functions = {
        "flash_attn_func": flash_attention.attention,
        "flash_attn_varlen_func": flash_attention.varlen_attention,
    }
    vars(module).update(functions)
    vars(module)["flash_attn_interface"] = types.SimpleNamespace(**functions)
    return module
