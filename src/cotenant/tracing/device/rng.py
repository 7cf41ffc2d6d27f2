"""`torch.Generator(device="cuda")` without CUDA: a CPU generator whose `device` is the GPU."""

from __future__ import annotations

from typing import Any

import torch

_Base: Any = torch._C.Generator
_BaseMeta: Any = type(_Base)


class _GeneratorMeta(_BaseMeta):
    """Makes generators that PyTorch created instances of the replaced class."""

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, _Base)


class CpuBackedGenerator(_Base, metaclass=_GeneratorMeta):
    """Replaces `torch.Generator`."""

    def __new__(cls, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        made = _Base.__new__(cls, "cpu" if wanted.type == "cuda" else wanted)
        made._device = torch.device("cuda", wanted.index or 0) if wanted.type == "cuda" else wanted
        return made

    @property
    def device(self) -> torch.device:
        """The requested device."""
        return self._device

    def get_offset(self) -> int:
        """Of CUDA's Philox generator; always 0."""
        return 0

    def set_offset(self, offset: int) -> None:
        """Ignored."""


def install(count: int) -> None:
    """Replace the class, and create the default generator of each GPU."""
    torch.Generator = CpuBackedGenerator
    torch.cuda.default_generators = tuple(CpuBackedGenerator(f"cuda:{index}") for index in range(count))
