"""`torch.cuda.FloatTensor` and the other legacy tensor types: as constructors, in `.type()` and as the default."""

from __future__ import annotations

from typing import Any

import torch

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


def install() -> None:
    """Replace the classes, `Tensor.type` and `set_default_tensor_type`."""
    kinds: dict[str, Any] = {}
    for name, dtype in _DTYPES.items():
        kind = _TensorTypeMeta(f"{name}Tensor", (), {"dtype": dtype, "__new__": _construct, "__module__": "torch.cuda"})
        setattr(torch.cuda, f"{name}Tensor", kind)
        kinds[f"torch.cuda.{name}Tensor"] = kind
    original, set_default = torch.Tensor.type, torch.set_default_tensor_type
    plain_new = torch.Tensor.__new__

    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        kind = kinds.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(kind, _TensorTypeMeta):
            return self.to("cuda", kind.dtype)
        return original(self, dtype, *args, **kwargs)

    def set_default_(kind: Any) -> None:
        kind = kinds.get(kind, kind) if isinstance(kind, str) else kind
        if isinstance(kind, _TensorTypeMeta):
            torch.set_default_dtype(kind.dtype)
            torch.set_default_device("cuda")
            torch.Tensor.__new__ = _tensor_new(kind)
        else:
            torch.set_default_device(None)
            torch.Tensor.__new__ = plain_new
            set_default(kind)

    torch.Tensor.type = type_
    torch.set_default_tensor_type = set_default_


def _tensor_new(kind: Any) -> Any:
    """`torch.Tensor(...)` with a CUDA type as the default. The default device alone does not affect this constructor.

    Source: torch/csrc/tensor/python_tensor.cpp, `set_default_tensor_type`; torch/utils/_device.py.
    """
    plain_new: Any = torch._C.TensorBase.__new__

    def new(*args: Any, **kwargs: Any) -> Any:  # `torch._dynamo` inspects its signature on import
        if args[0] is torch.Tensor and not kwargs:
            return _construct(kind, *args[1:])
        return plain_new(*args, **kwargs)

    return new


def _construct(cls: Any, *args: Any, **_: Any) -> torch.Tensor:
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
    shape = tuple(args[0]) if args and isinstance(args[0], torch.Size) else args
    return torch.empty(shape or (0,), dtype=cls.dtype, device="cuda")
