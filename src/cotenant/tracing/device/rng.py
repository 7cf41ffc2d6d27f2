"""`torch.Generator(device="cuda")` without CUDA: a CPU generator whose `device` is the GPU.

Those of `torch.cuda` draw nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_Base: Any = torch._C.Generator
_BaseMeta: Any = type(_Base)


def gpu_state() -> torch.Tensor:
    """The state of a GPU's own generator: the seed and the offset of Philox.

    Source: ATen/cuda/CUDAGeneratorImpl.cpp, `get_state`.
    """
    return torch.zeros(16, dtype=torch.uint8)


class _GeneratorMeta(_BaseMeta):
    """Makes generators that PyTorch created instances of the replaced class."""

    # PyTorch's own generators, such as `torch.default_generator`, were made before the class was replaced.
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

    def set_state(self, new_state: torch.Tensor) -> Any:
        """Of the CPU generator; a state of `torch.cuda.get_rng_state` is ignored.

        DeepSpeed sets those on the default generators: runtime/activation_checkpointing/checkpointing.py.
        """
        is_gpu_state = self._device.type == "cuda" and new_state.shape == gpu_state().shape
        return self if is_gpu_state else super().set_state(new_state)

    def get_offset(self) -> int:
        """Of CUDA's Philox generator; always 0."""
        return 0

    def set_offset(self, offset: int) -> None:
        """Ignored."""


def patches(context: PatchContext) -> list[Patch]:
    """The class, and a default generator for each GPU."""
    return [
        Patch(
            target="torch:Generator", phase=Phase.DEVICE, replacement=CpuBackedGenerator,
            reason="A CPU build refuses `torch.Generator(device='cuda')`.",
            source="torch/csrc/Generator.cpp, `THPGenerator_pynew`",
        ),
        Patch(
            target="torch.cuda:default_generators", phase=Phase.DEVICE,
            replacement=tuple(CpuBackedGenerator(f"cuda:{index}") for index in range(context.gpu.count)),
            reason="The tuple is empty until CUDA is initialized, and scripts index it by GPU.",
            source="torch/cuda/__init__.py, `_lazy_init`",
        ),
    ]  # fmt: skip
