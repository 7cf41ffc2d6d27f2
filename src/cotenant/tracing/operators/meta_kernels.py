"""PyTorch's own ways to a result without values: its meta kernels, and FakeTensorMode around them."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def make_fake_mode() -> FakeTensorMode:
    """A FakeTensorMode, without the compiler that its constructor imports for two of its settings (0.8 s)."""
    if "torch._dynamo" in sys.modules:
        return FakeTensorMode(allow_non_fake_inputs=True)
    config: Any = types.ModuleType("torch._dynamo.config")
    config.fake_tensor_cache_enabled = False
    config.fake_tensor_cache_crosscheck_enabled = False
    package: Any = types.ModuleType("torch._dynamo")
    package.__path__, package.config = [], config
    sys.modules.update({"torch._dynamo": package, "torch._dynamo.config": config})
    try:
        return FakeTensorMode(allow_non_fake_inputs=True)
    finally:
        del sys.modules["torch._dynamo"], sys.modules["torch._dynamo.config"]


def run_meta_kernel(fake: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
    """What the meta kernel of `func` gives for fake tensors: meta tensors.

    Source: torch/_subclasses/fake_tensor.py, `in_kernel_invocation_manager`; being a generator, that takes longer than
    most kernels.
    """
    with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
        before, fake.in_kernel_invocation = fake.in_kernel_invocation, True
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            return func(*args, **kwargs)
        finally:
            fake.in_kernel_invocation = before
