"""Compiled modules of libraries, replaced by what their functions allocate.

A library's Python code decides what a step saves for backward; its compiled module adds outputs and scratch memory. So
the Python code runs as it is, and only the compiled module is replaced, whether it is built here or not: libraries such
as flash-attn install without it (`FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE`). A library that is not installed stays so,
since scripts choose their way by that.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import re
import sys
import types
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from typing import Any

from cotenant.tracing.errors import Untraceable

_PIP = "pip install --no-deps --no-build-isolation"
_INSTALL = {
    "flash_attn": f"FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE {_PIP} flash-attn",
    "causal_conv1d": f"CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE {_PIP} causal-conv1d",
    "mamba_ssm": f"MAMBA_SKIP_CUDA_BUILD=TRUE {_PIP} mamba-ssm",
    "xformers": "pip install --no-deps xformers",
    "triton": "pip install triton",
}
"""How to install packages without their compiled part. Source: the `setup.py` of each."""
_CUDA_LIBRARY = re.compile(r"lib(cu\w+|c10_cuda|torch_cuda\w*|nv\w+|nccl)\.so[\d.]*: cannot open shared object file")

Functions = Mapping[str, Callable[..., Any]]
"""What replaces the functions of a compiled module, by name."""


class KernelModule(types.ModuleType):
    """A module of compiled functions: known ones do what they do to memory, others raise an error that names them."""

    def __init__(self, name: str, functions: Functions) -> None:
        super().__init__(name)
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._functions.get(name) or functools.partial(_refuse, f"{self.__name__}.{name}")


def _refuse(function: str, *args: Any, **kwargs: Any) -> Any:
    raise Untraceable(
        f"`{function}` is a compiled kernel whose memory is not known; estimate with `--backend null-gpu`, "
        "or let the script use PyTorch's own"
    )


class _KernelFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `modules` before anybody else, where the package that they belong to is installed."""

    def __init__(self, package: str, modules: Mapping[str, Functions]) -> None:
        self._package = package
        self._modules = modules

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname not in self._modules or not self._has_package():
            return None
        return ModuleSpec(fullname, self)

    def _has_package(self) -> bool:
        return self._package in sys.modules or importlib.util.find_spec(self._package) is not None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return KernelModule(spec.name, self._modules[spec.name])

    def exec_module(self, module: types.ModuleType) -> None:
        return


def provide(package: str, modules: Mapping[str, Functions]) -> Callable[[], None]:
    """Replace compiled modules of a package, by name, from now on; gives a function that takes this back."""
    finder = _KernelFinder(package, modules)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder)


def hint_for(error: BaseException) -> str | None:
    """What to do about a compiled module that is missing, does not load, or reads a tensor's memory; else None."""
    if isinstance(error, ModuleNotFoundError):
        return _install_hint((error.name or "").partition(".")[0])
    if isinstance(error, ImportError) and "installed" in str(error):  # transformers, of a package that a model names
        return next(filter(None, (_install_hint(name) for name in _INSTALL if name in str(error))), None)
    if isinstance(error, ImportError) and _CUDA_LIBRARY.match(str(error)):
        return "it is compiled for a CUDA build of torch: name a Python that has one with `--python PATH`"
    # From c10/core/StorageImpl.cpp, `throwNullDataPtrError` and `throw_data_ptr_access_error`.
    if isinstance(error, RuntimeError) and "data pointer" in str(error):
        return "a compiled extension read a tensor's memory, and a trace has none: estimate with `--backend null-gpu`"
    return None


def _install_hint(package: str) -> str | None:
    command = _INSTALL.get(package)
    return f"its Python part is enough: `{command}`; or name the job's Python with `--python PATH`" if command else None
