"""`torch.Generator(device="cuda")` without CUDA: a CPU generator that says it is on the GPU."""

from __future__ import annotations

from typing import Any

import torch

_Base: Any = torch._C.Generator
_BaseMeta: Any = type(_Base)


class _GeneratorMeta(_BaseMeta):
    """Lets generators that torch itself made pass for ours."""

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, _Base)


class CpuBackedGenerator(_Base, metaclass=_GeneratorMeta):
    """Stands in for `torch.Generator`."""

    def __new__(cls, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        made = _Base.__new__(cls, "cpu" if wanted.type == "cuda" else wanted)
        made._device = torch.device("cuda", wanted.index or 0) if wanted.type == "cuda" else wanted
        return made

    @property
    def device(self) -> torch.device:
        """Where its numbers are for."""
        return self._device

    def get_offset(self) -> int:
        """Numbers drawn so far; never counted."""
        return 0

    def set_offset(self, offset: int) -> None:
        """Nothing to move."""


def install(count: int) -> None:
    """Replace the class, and give each GPU its default generator."""
    torch.Generator = CpuBackedGenerator
    torch.cuda.default_generators = tuple(CpuBackedGenerator(f"cuda:{index}") for index in range(count))
