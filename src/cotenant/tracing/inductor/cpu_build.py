"""What Inductor lacks in a build without CUDA and Triton: kernels that do nothing, and C++ functions on fake tensors.

Inductor decides what to fuse, to recompute and to reuse from shapes alone. It needs a GPU to run kernels and to tune
them, and Triton to compile them; neither decides what is allocated.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cotenant.tracing.patches.registry import Entry, HookPatch, Patch, PatchContext, Phase, patch_attributes

INDUCTOR_SETTINGS: dict[str, Any] = {
    # Generated code is cheap, and a cache would skip the checks of `compiled_calls`.
    "fx_graph_cache": False,
    "compile_threads": 1,
    # Addresses of fake tensors cannot be read.
    "size_asserts": False,
    "alignment_asserts": False,
    "nan_asserts": False,
    # Nothing can be measured.
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "shape_padding": False,
    "cpp_wrapper": False,
}
"""Settings of `torch._inductor.config`, over those of the script."""


class _Kernel:
    """A kernel of Triton that does nothing."""

    def run(self, *args: object, **kwargs: object) -> None:
        """Its outputs were allocated before."""


class _OnCpu(TorchDispatchMode):
    """Makes on the CPU what is requested on a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in (kwargs or {}).items()})


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def patches(context: PatchContext) -> list[Entry]:
    """Functions of the compiler that need a GPU; none where compiled code is traced eagerly."""
    if context.options.compiled_code == "eager":
        return []
    common: dict[str, Any] = {"phase": Phase.TRAINING, "missing": "other versions than the tried ones"}
    return [
        HookPatch(
            target="torch._dynamo.device_interface", register=_bind_again,
            reason="Its classes bind functions of `torch.cuda` at import, which a fork server does before the patches.",
            source="torch/_dynamo/device_interface.py, `CudaInterface`", **common,
        ),
        Patch(
            target="torch._inductor.scheduler:has_triton", replacement=lambda: True,
            reason="Without Triton it refuses to write kernels for a GPU.",
            source="torch/_inductor/scheduler.py, `create_backend`", **common,
        ),
        Patch(
            target="torch._inductor.async_compile:AsyncCompile.triton", replacement=lambda *_, **__: _Kernel(),
            reason="It compiles a kernel.", source="torch/_inductor/async_compile.py, `AsyncCompile.triton`", **common,
        ),
        Patch(
            target="torch._inductor.async_compile:AsyncCompile.wakeup", replacement=staticmethod(lambda: None),
            reason="It starts processes that compile.",
            source="torch/_inductor/async_compile.py, `AsyncCompile.wakeup`", **common,
        ),
        Patch(
            target="torch.utils._triton:triton_hash_with_backend", replacement=lambda: "",
            reason="It imports Triton.", source="torch/utils/_triton.py, `triton_hash_with_backend`", **common,
        ),
        Patch(
            target="torch._inductor.codecache:PyCodeCache.load_by_key_path", replacement=_loading, wraps=True,
            reason="Every generated module imports Triton, also where it calls no function of it.",
            source="torch/_inductor/codegen/wrapper.py, `write_triton_header_once`", **common,
        ),
        Patch(
            target="torch._inductor.codegen.triton_split_scan:TritonSplitScanKernel.scan", replacement=_with_triton,
            wraps=True, reason="It imports Triton while it writes a kernel.",
            source="torch/_inductor/codegen/triton_split_scan.py, `TritonSplitScanKernel.scan`", **common,
        ),
        *_folding_patches(common),
        *patch_attributes(
            "torch._C._dynamo.guards",
            {
                "_empty_strided_cuda": _empty_strided,
                "_reinterpret_tensor": _reinterpret_tensor,
                "copy_if_misaligned": lambda tensor: tensor,
            },
            reason="Generated code allocates in C++, past every dispatch mode, and reads addresses.",
            source="torch/csrc/dynamo/guards.cpp", **common,
        ),
    ]  # fmt: skip


def _folding_patches(common: dict[str, Any]) -> list[Patch]:
    """Constants, which the compiler computes on the device of the graph."""
    folder = "torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder"
    return [
        Patch(
            target=f"{folder}._deduce_value", replacement=_folding_on_cpu, wraps=True,
            reason="It computes constants of one element on the GPU, without any mode.",
            source="torch/_inductor/fx_passes/joint_graph.py, `constant_fold_uniform_value`", **common,
        ),
        Patch(
            target=f"{folder}._add_peephole_patterns", replacement=_adding_on_cpu, wraps=True,
            reason="It makes the results of products with zero on the GPU.",
            source="torch/_inductor/fx_passes/joint_graph.py, `_add_peephole_patterns`", **common,
        ),
        Patch(
            target="torch.fx.experimental.proxy_tensor:unset_fake_temporarily", replacement=_computing_on_cpu,
            wraps=True, reason="It computes constants on the GPU, such as `torch.tensor(0.5, device='cuda')`.",
            source="torch/fx/experimental/proxy_tensor.py, `proxy_call`", **common,
        ),
    ]  # fmt: skip


def _bind_again() -> None:
    module = sys.modules.get("torch._dynamo.device_interface")
    if module is not None:
        importlib.reload(module)


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _reinterpret_tensor(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    """A view by offset from the view's own beginning. Source: torch/csrc/inductor/inductor_ops.cpp."""
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _folding_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def deduce(self: Any, node: Any) -> Any:
        try:
            with _OnCpu():
                return original(self, node)
        except (RuntimeError, NotImplementedError, TypeError):
            return self.unknown_value  # a constant fake tensor: it stays in the graph

    return deduce


def _computing_on_cpu(original: Callable[[], Any]) -> Callable[[], Any]:
    @contextlib.contextmanager
    def unset() -> Iterator[Any]:
        with original() as before, _OnCpu():
            yield before

    return unset


def _adding_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add(self: Any) -> None:
        with _OnCpu():
            original(self)

    return add


def _with_triton(original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _importable_triton():
            return original(*args, **kwargs)

    return call


def _loading(original: Any) -> Any:
    """Loads generated programs; the kernel of a template, as of `flex_attention`, is a file that never runs."""
    load = _with_triton(original)

    @functools.wraps(original)
    def load_program(key: str, path: str, *args: Any, **kwargs: Any) -> Any:
        if "AsyncCompile" in Path(path).read_text(encoding="utf-8"):
            return load(key, path, *args, **kwargs)
        module: Any = types.ModuleType(f"kernel_{key}")
        module.__file__, module.key = path, key
        return module

    return load_program


def _number_type(name: str) -> Any:
    """A type such as `triton.language.int64`, of which the code for scans reads the width."""
    bits = name.lstrip("abcdefghijklmnopqrstuvwxyz")
    if not bits.isdecimal():
        raise AttributeError(name)
    return types.SimpleNamespace(primitive_bitwidth=int(bits))


@contextlib.contextmanager
def _importable_triton() -> Iterator[None]:
    """Has `import triton` succeed for a moment: a script that checks whether it is installed finds it."""
    if "triton" in sys.modules:
        yield
        return
    package: Any = types.ModuleType("triton")
    package.language = types.ModuleType("triton.language")
    package.language.__getattr__ = _number_type
    sys.modules.update({"triton": package, "triton.language": package.language})
    try:
        yield
    finally:
        del sys.modules["triton"], sys.modules["triton.language"]
