"""Functions of PyTorch itself that look at values, or at the driver, where no dispatch mode sees it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

from cotenant.tracing import script_location
from cotenant.tracing.assumptions import booleans
from cotenant.tracing.assumptions.known_values import has_known_values
from cotenant.tracing.operators.host_copies import is_computed
from cotenant.tracing.patches.registry import HookPatch, Patch, PatchContext, Phase

_CUDA_OF_WHEELS, _FIRST_WITH_IT, _CUDA_BEFORE = "13.0", (2, 11), "12.8"
"""CUDA of the wheels of `pip install torch` on Linux, from the release on in which it came."""


def patches(context: PatchContext) -> list[Patch | HookPatch]:
    """Pinned memory, gradient scaling, and imports of the compiler."""
    return [
        Patch(
            target="torch:tensor", phase=Phase.LIBRARIES, replacement=_without_pin_memory, wraps=True,
            reason="`torch.tensor(..., pin_memory=True)` calls the driver where no mode sees it.",
            source="torch/csrc/utils/tensor_new.cpp, `internal_new_from_data`",
        ),
        Patch(
            target="torch.amp.grad_scaler:GradScaler._maybe_opt_step", phase=Phase.LIBRARIES, replacement=_always_step,
            reason="A GradScaler reads from the GPU whether a gradient overflowed, and skips the step if so.",
            source="torch/amp/grad_scaler.py, `GradScaler._maybe_opt_step`",
        ),
        *(
            Patch(
                target=target, phase=Phase.LIBRARIES, replacement=_assuming_close, wraps=True,
                reason="Of computed values a sound program expects that they are close; see `aten::allclose`.",
                source="aten/src/ATen/native/TensorCompare.cpp, `isclose`",
            )
            for target in ("torch:isclose", "torch:Tensor.isclose")
        ),
        Patch(
            target="torch:Tensor.split", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_splitting_all, context),
            reason="Sizes that a script reads from unknown values do not sum up to the size that they divide.",
            source="torch/_tensor.py, `Tensor.split`",
        ),
        HookPatch(
            target="torch.version:cuda", phase=Phase.LIBRARIES, register=_name_cuda_version,
            reason="A CPU build has None, of which scripts take the major version.", source="torch/version.py",
        ),
        HookPatch(
            target="torch.optim.optimizer:Optimizer", phase=Phase.LIBRARIES, register=_unwrap_dynamo_disable,
            reason="Optimizers and checkpoints import the compiler only to switch it off, which takes 0.8 s.",
            source="torch/_compile.py, `_disable_dynamo`",
        ),
    ]  # fmt: skip


def _without_pin_memory(original: Any) -> Any:
    # An lru_cache of torch/utils/_device.py: the functions that a default device applies to, as they are now.
    _device_constructors()

    @functools.wraps(original)
    def tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("pin_memory", None)
        made: torch.Tensor = original(*args, **kwargs)
        return made

    return tensor


def _assuming_close(original: Any) -> Any:
    @functools.wraps(original)
    def isclose(input: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: A002
        result: torch.Tensor = original(input, other, *args, **kwargs)
        if is_computed(input) and is_computed(other) and not has_known_values(result):
            booleans.assume(result, True)
        return result

    return isclose


def _splitting_all(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def split(self: torch.Tensor, split_size: Any, dim: int = 0) -> Any:
        if isinstance(split_size, (list, tuple)) and split_size and context.mode.host_reads.any_exact():
            total, count = self.shape[dim], len(split_size)
            if all(type(size) is int for size in split_size) and sum(split_size) != total:
                context.recorder.warn("a tensor was split evenly where its parts' sizes are not known without a GPU")
                split_size = [total // count + (index < total % count) for index in range(count)]
        return original(self, split_size, dim)

    return split


def _always_step(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


def _name_cuda_version() -> Callable[[], None] | None:
    """Give the user's own files the CUDA version of the wheel for GPUs; libraries would load what a CPU build lacks."""
    version: Any = torch.version
    if version.cuda is not None:
        return None
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

    def missing(name: str) -> str | None:
        if name != "cuda":
            raise AttributeError(f"module 'torch.version' has no attribute '{name}'")
        if not script_location.is_user_file(sys._getframe(1).f_code.co_filename):
            return None
        return _CUDA_OF_WHEELS if release >= _FIRST_WITH_IT else _CUDA_BEFORE

    del version.cuda  # so that Python calls `__getattr__` of the module: PEP 562
    version.__getattr__ = missing

    def undo() -> None:
        del version.__getattr__
        version.cuda = None

    return undo


def _unwrap_dynamo_disable() -> None:
    holders = [sys.modules["torch.optim.optimizer"].Optimizer, sys.modules.get("torch.utils.checkpoint")]
    for holder in holders:
        for value in list(vars(holder).values()) if holder is not None else ():
            plain = getattr(value, "__wrapped__", None)
            if plain is not None and getattr(value, "__code__", None) and "_compile.py" in value.__code__.co_filename:
                plain.__dynamo_disable = plain
