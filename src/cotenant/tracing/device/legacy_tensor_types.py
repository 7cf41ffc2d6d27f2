"""`torch.cuda.FloatTensor` and the other legacy tensor types: as constructors, in `.type()` and as the default.

Those of `torch.cuda.sparse` are constructors only.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes

_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip


class _TensorTypeMeta(type):
    """Makes `isinstance(x, torch.cuda.FloatTensor)` test device and dtype."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def patches(context: PatchContext) -> list[Patch]:
    """The classes, and the ways to name them."""
    classes = {name: _tensor_type(name, dtype) for name, dtype in _DTYPES.items()}
    by_name = {f"torch.cuda.{cls.__name__}": cls for cls in classes.values()}
    plain_new = torch.Tensor.__new__

    def tensor_type(original: Any) -> Any:
        def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
            cls = by_name.get(dtype, dtype) if isinstance(dtype, str) else dtype
            if isinstance(cls, _TensorTypeMeta):
                return self.to("cuda", cls.dtype)
            return original(self, dtype, *args, **kwargs)

        return type_

    def set_default_tensor_type(original: Any) -> Any:
        def set_default(kind: Any) -> None:
            cls = by_name.get(kind, kind) if isinstance(kind, str) else kind
            if isinstance(cls, _TensorTypeMeta):
                torch.set_default_dtype(cls.dtype)
                # `set_default_device` covers factory functions (`_device_constructors` of torch/utils/_device.py),
                # and not `torch.Tensor(...)`: so its `__new__` is replaced as well.
                torch.set_default_device("cuda")
                torch.Tensor.__new__ = _tensor_new(cls)
            else:
                torch.set_default_device(None)
                torch.Tensor.__new__ = plain_new
                original(cls)

        return set_default

    source = "torch/csrc/tensor/python_tensor.cpp, `set_default_tensor_type`"
    reason = "The types of a CPU build raise where they are used; those of a CUDA build allocate on the GPU."
    sparse = {f"{name}Tensor": _sparse_type(name, dtype) for name, dtype in _DTYPES.items() if name != "Bool"}
    return [
        *patch_attributes(
            "torch.cuda.sparse", sparse, phase=Phase.DEVICE, reason=reason, source=source,
        ),
        *patch_attributes(
            "torch.cuda", {cls.__name__: cls for cls in classes.values()},
            phase=Phase.DEVICE, reason=reason, source=source,
        ),
        Patch(
            target="torch:Tensor.type", phase=Phase.DEVICE, replacement=tensor_type, wraps=True,
            reason="It takes the names of those types, too.", source="torch/csrc/autograd/python_variable_methods.cpp",
        ),
        Patch(
            target="torch:set_default_tensor_type", phase=Phase.DEVICE, replacement=set_default_tensor_type, wraps=True,
            reason=reason, source=source,
        ),
    ]  # fmt: skip


def _tensor_type(name: str, dtype: torch.dtype) -> Any:
    return _TensorTypeMeta(f"{name}Tensor", (), {"dtype": dtype, "__new__": _construct, "__module__": "torch.cuda"})


def _sparse_type(name: str, dtype: torch.dtype) -> Any:
    def construct(_: Any, *args: Any, device: Any = None) -> torch.Tensor:
        """(indices, values, size), (indices, values), or the size alone."""
        place = torch.device(device or "cuda")
        if args and isinstance(args[0], torch.Tensor):
            indices, values, *size = args
            return torch.sparse_coo_tensor(indices, values, *size, dtype=dtype, device=place)
        shape = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.sparse_coo_tensor(tuple(shape), dtype=dtype, device=place)

    return type(f"{name}Tensor", (), {"dtype": dtype, "__new__": construct, "__module__": "torch.cuda.sparse"})


def _tensor_new(kind: Any) -> Any:
    """`torch.Tensor(...)` with a CUDA type as the default. The default device alone does not affect this constructor.

    Source: torch/csrc/tensor/python_tensor.cpp, `set_default_tensor_type`; torch/utils/_device.py.
    """
    plain_new: Any = torch._C.TensorBase.__new__

    def new(*args: Any, **kwargs: Any) -> Any:  # `torch._dynamo` inspects its signature on import
        if args[0] is torch.Tensor and torch.device(kwargs.get("device") or "cuda").type == "cuda":
            return _construct(kind, *args[1:], **kwargs)
        return plain_new(*args, **kwargs)

    return new


def _construct(cls: Any, *args: Any, device: Any = None, **_: Any) -> torch.Tensor:
    place = device or "cuda"
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        return torch.as_tensor(args[0], dtype=cls.dtype, device=place)
    shape = tuple(args[0]) if args and isinstance(args[0], torch.Size) else args
    return torch.empty(shape or (0,), dtype=cls.dtype, device=place)
