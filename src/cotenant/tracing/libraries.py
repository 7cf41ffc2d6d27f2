"""Small mends of libraries around torch, so that ordinary scripts import and run while traced."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_keep: list[Any] = []


def install() -> None:
    """Apply them; none imports a library that the script does not."""
    sys.meta_path.insert(0, _BeforeImport("torchvision", _declare_torchvision))
    for name, mend in (("transformers.utils.import_utils", _believe_tensors), ("safetensors.torch", _save_nothing)):
        if name in sys.modules:
            mend(sys.modules[name])
        else:
            sys.meta_path.insert(0, _AfterImport(name, mend))
    _let_scaler_step()
    _leave_compiler_out()


class _BeforeImport(importlib.abc.MetaPathFinder):
    """Calls a function when a module is about to be imported for the first time."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == self._name:
            sys.meta_path.remove(self)
            self._call()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after it was imported for the first time."""

    def __init__(self, name: str, call: Callable[[Any], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._call(module)

        loader.exec_module = exec_module
        return spec


def _believe_tensors(module: Any) -> None:
    """Transformers does not look at the values of a mask that is fake; here they are known (see `values`)."""
    module.is_fake_tensor = lambda x: False


def _save_nothing(module: Any) -> None:
    """A checkpoint of fake tensors has nothing to write."""
    for name in ("save_file", "save_model"):
        setattr(module, name, lambda *args, **kwargs: None)


def _declare_torchvision() -> None:
    """Declare torchvision's compiled operators where its library cannot load.

    A CUDA build of torchvision beside a CPU build of torch fails at import, when it adds shape functions to
    operators that nobody declared.
    """
    spec = importlib.util.find_spec("torchvision")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    for file in folder.glob("_C*.so") if folder else ():
        try:
            torch.ops.load_library(str(file))
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not _declared(f"torchvision::{name}"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _keep.append(library)


def _declared(name: str) -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(name))


def _let_scaler_step() -> None:
    """A GradScaler asks the GPU whether a gradient overflowed: none did."""

    def step(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    torch.amp.grad_scaler.GradScaler._maybe_opt_step = step


def _leave_compiler_out() -> None:
    """Keep optimizers and checkpoints from importing the compiler only to tell it to stay away (0.8 s)."""
    holders = [sys.modules["torch.optim.optimizer"].Optimizer, sys.modules.get("torch.utils.checkpoint")]
    for holder in holders:
        for value in list(vars(holder).values()) if holder is not None else ():
            plain = getattr(value, "__wrapped__", None)
            if plain is not None and getattr(value, "__code__", None) and "_compile.py" in value.__code__.co_filename:
                plain.__dynamo_disable = plain
