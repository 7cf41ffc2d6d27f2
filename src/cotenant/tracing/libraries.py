"""Small mends of libraries around torch, so that ordinary scripts import and run while traced."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing import vision
from cotenant.tracing.after_import import when_imported


def install() -> None:
    """Apply them; none imports a library that the script does not."""
    sys.meta_path.insert(0, _BeforeImport("torchvision", _prepare_torchvision))
    when_imported("transformers.utils.import_utils", _believe_tensors)
    when_imported("safetensors.torch", _save_nothing)
    _let_scaler_step()
    _believe_samples()
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


def _believe_tensors(module: Any) -> None:
    """Transformers does not look at the values of a mask that is fake; here they are known (see `values`)."""
    module.is_fake_tensor = lambda x: False


def _save_nothing(module: Any) -> None:
    """A checkpoint of fake tensors has nothing to write."""
    for name in ("save_file", "save_model"):
        setattr(module, name, lambda *args, **kwargs: None)


def _prepare_torchvision() -> None:
    """See `vision`."""
    spec = importlib.util.find_spec("torchvision")
    if vision.load_or_declare(Path(spec.origin).parent if spec is not None and spec.origin else None):
        when_imported("torchvision.extension", vision.believe_operators)


def _let_scaler_step() -> None:
    """A GradScaler asks the GPU whether a gradient overflowed: none did."""

    def step(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    torch.amp.grad_scaler.GradScaler._maybe_opt_step = step


def _believe_samples() -> None:
    """A distribution checks whether a sample could be its own, which a fake one cannot show."""
    kind: Any = torch.distributions.Distribution
    check = kind._validate_sample

    def check_as_far_as_known(self: Any, value: Any) -> None:
        try:
            check(self, value)
        except ValueError as error:
            if not isinstance(value, FakeTensor) or "within the support" not in str(error):
                raise

    kind._validate_sample = check_as_far_as_known


def _leave_compiler_out() -> None:
    """Keep optimizers and checkpoints from importing the compiler only to tell it to stay away (0.8 s)."""
    holders = [sys.modules["torch.optim.optimizer"].Optimizer, sys.modules.get("torch.utils.checkpoint")]
    for holder in holders:
        for value in list(vars(holder).values()) if holder is not None else ():
            plain = getattr(value, "__wrapped__", None)
            if plain is not None and getattr(value, "__code__", None) and "_compile.py" in value.__code__.co_filename:
                plain.__dynamo_disable = plain
