"""What scripts ask the CUDA libraries below `torch.cuda`: versions, handles, settings, plan caches, raw memory.

A CPU build has none of these functions. Settings are stored and nothing else; a handle is a number that no library
gets. Not answered, so that the script's call fails: pluggable allocators, kernels compiled from text.
"""

from __future__ import annotations

import enum
import functools
import itertools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from cotenant.tracing.operators import attention
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes

_COMPILED_VERSION = 13000  # `CUDA_VERSION` of the wheels for torch 2.13
_HANDLE = 0x7F0000000000  # of cuBLAS or cuSOLVER: an address
_FIRST_ADDRESS = 0x7E0000000000
_FFT_PLANS = 4096  # ATen/native/cuda/CuFFTPlanCache.h, `CUFFT_DEFAULT_CACHE_SIZE`
_TUNING = {
    "filename": "tunableop_results.csv",
    "max_tuning_duration": 30,
    "max_tuning_iterations": 100,
    "rotating_buffer_size": -1,
}
"""Settings of `torch.cuda.tunable` and their defaults. Source: aten/src/ATen/cuda/tunable/Tunable.h."""
_SWITCHES = ("tunableop_enable", "tunableop_tuning_enable", "record_untuned_enable")
_MISSING = "some versions: functions come and go between PyTorch 2.4 and 2.13"


class _CudaError(enum.IntEnum):
    """`cudaError_t`, as far as `torch.cuda.cudart` has names for it."""

    success = 0


def patches(context: PatchContext) -> list[Patch]:
    """Functions of the C module, of the CUDA runtime and of `torch.backends`."""
    no_driver: dict[str, Any] = {"phase": Phase.DEVICE, "reason": "It calls the driver; the simulated GPU answers."}
    return [
        *patch_attributes(
            "torch._C", {**_settings(), **_handles(), **_raw_memory(context)}, create=True,
            source="torch/csrc/cuda/Module.cpp", missing="builds without CUDA", **no_driver,
        ),
        Patch(
            target="torch.cuda:_cudart", replacement=_runtime(), create=True,
            source="torch/csrc/cuda/shared/cudart.cpp", **no_driver,
        ),
        *patch_attributes(
            "torch.backends.cudnn",
            {
                "version": lambda: context.options.cudnn_version,
                "is_available": lambda: True,
                "is_acceptable": _suits_cudnn,
            },
            source="torch/backends/cudnn/__init__.py, `version`", **no_driver,
        ),
        Patch(
            target="torch.backends.cuda:cuFFTPlanCache", replacement=_PlanCache,
            source="torch/backends/cuda/__init__.py, `cuFFTPlanCache`", **no_driver,
        ),
        *patch_attributes(
            "torch.backends.cuda",
            {f"can_use_{name}_attention": _can_use(name, context) for name in ("flash", "efficient", "cudnn")},
            source="aten/src/ATen/native/transformers/cuda/sdp_utils.cpp", missing=_MISSING, **no_driver,
        ),
    ]  # fmt: skip


def _suits_cudnn(tensor: torch.Tensor) -> bool:
    cudnn: Any = torch.backends.cudnn
    return bool(cudnn.enabled) and tensor.device.type == "cuda" and tensor.dtype in cudnn.CUDNN_TENSOR_DTYPES


def _settings() -> dict[str, Any]:
    """Pairs of functions that store a number and return it."""
    values: dict[str, Any] = {"sync_debug_mode": 0, **_TUNING, **dict.fromkeys(_SWITCHES, False)}

    def reads(name: str) -> Callable[..., Any]:
        return lambda *_: values[name]

    def writes(name: str) -> Callable[..., None]:
        return lambda value, *_: values.__setitem__(name, value)

    found: dict[str, Any] = {
        "_cuda_get_sync_debug_mode": reads("sync_debug_mode"),
        "_cuda_set_sync_debug_mode": writes("sync_debug_mode"),
        "_cuda_tunableop_get_results": lambda: (),
        "_cuda_tunableop_get_validators": lambda: (),
        "_cuda_tunableop_read_file": lambda *_: False,
        "_cuda_tunableop_set_numerical_check_tolerances": lambda *_: None,
    }
    for name in _TUNING:
        found[f"_cuda_tunableop_get_{name}"] = reads(name)
        found[f"_cuda_tunableop_set_{name}"] = writes(name)
    for name in _SWITCHES:
        found[f"_cuda_{name}"] = writes(name)
        found[f"_cuda_{name.removesuffix('enable')}is_enabled"] = reads(name)
    return found


def _handles() -> dict[str, Any]:
    """Handles of libraries, streams by their numbers, and what the build was made for."""

    def as_numbers(stream: Any) -> tuple[int, int, int]:
        return stream.stream_id, stream.device_index, stream.device_type

    return {
        "_cuda_getAllocatorBackend": _allocator_backend,
        "_cuda_getArchFlags": lambda: " ".join(torch.cuda.get_arch_list()),
        "_cuda_getCompiledVersion": lambda: _COMPILED_VERSION,
        "_cuda_getCurrentBlasHandle": lambda: _HANDLE,
        "_cuda_getCurrentSolverHandle": lambda: _HANDLE,
        "_cuda_getCurrentStream": lambda device: as_numbers(torch.cuda.current_stream(device)),
        "_cuda_getDefaultStream": lambda device: as_numbers(torch.cuda.default_stream(device)),
        "_cuda_hasPrimaryContext": lambda device: True,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_init": lambda: None,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_sleep": lambda cycles: None,
        "_cuda_synchronize": lambda: None,
        "_host_emptyCache": lambda: None,
    }


def _allocator_backend() -> str:
    conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF", "")
    return "cudaMallocAsync" if "backend:cudaMallocAsync" in conf.replace(" ", "") else "native"


def _raw_memory(context: PatchContext) -> dict[str, Any]:
    """Memory without a tensor, from the caching allocator, by its address."""
    blocks: dict[int, torch.Tensor] = {}
    addresses = itertools.count(_FIRST_ADDRESS, 1 << 40)  # farther apart than a GPU has bytes
    enabled = [True]

    def alloc(nbytes: int, stream: int) -> int:
        address = next(addresses)
        blocks[address] = context.mode.scratch(nbytes, torch.device("cuda", torch.cuda.current_device()))
        return address

    def delete(address: int) -> None:
        blocks.pop(address, None)

    return {
        "_cuda_cudaCachingAllocator_raw_alloc": alloc,
        "_cuda_cudaCachingAllocator_raw_delete": delete,
        "_cuda_cudaCachingAllocator_enable": lambda value: enabled.__setitem__(0, bool(value)),
        "_cuda_cudaCachingAllocator_is_enabled": lambda: enabled[0],
    }


def _runtime() -> SimpleNamespace:
    """`torch.cuda.cudart()`, whose calls succeed."""

    def succeed(*_: object) -> _CudaError:
        return _CudaError.success

    def memory_info(device: int) -> tuple[int, int]:
        return torch.cuda.mem_get_info(device)  # as it is when the script calls

    calls = ("HostRegister", "HostUnregister", "ProfilerStart", "ProfilerStop", "StreamCreate", "StreamDestroy")
    return SimpleNamespace(
        cudaError=_CudaError,
        cudaGetErrorString=lambda error: "no error",
        cudaMemGetInfo=memory_info,
        **{f"cuda{name}": succeed for name in calls},
    )


class _PlanCache:
    """The plans of cuFFT on one GPU: none is made."""

    def __init__(self, device_index: int) -> None:
        self.device_index = device_index
        self.max_size = _FFT_PLANS

    @property
    def size(self) -> int:
        """Plans that are kept."""
        return 0

    def clear(self) -> None:
        """Nothing to clear."""


def _can_use(name: str, context: PatchContext) -> Callable[..., bool]:
    """Whether one kernel of `scaled_dot_product_attention` takes the operands, whatever comes first."""

    @functools.wraps(getattr(torch.backends.cuda, f"can_use_{name}_attention", _can_use))
    def can_use(params: Any, debug: bool = False) -> bool:
        kernels = attention.usable(
            params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal,
            params.enable_gqa, capability=context.gpu.capability, cudnn=context.options.cudnn_version,
        )  # fmt: skip
        return kernels[name]

    return can_use
