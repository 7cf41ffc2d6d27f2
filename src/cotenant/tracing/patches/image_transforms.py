"""torchvision's transforms of images run without the dispatch mode: no operator of theirs meets a GPU.

`ToTensor` and `Normalize` call 13 operators for an image, and the way of each through the mode takes as long as its
work on a small image. A script that reads a data set of 60,000 images took 30 s for that.

A module of its own: the one place where operators pass the mode by.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_MODULE = "torchvision.transforms.transforms"
_ON_CPU = frozenset({
    "CenterCrop", "ColorJitter", "ConvertImageDtype", "GaussianBlur", "Grayscale", "Normalize", "Pad", "PILToTensor",
    "RandomAffine", "RandomCrop", "RandomGrayscale", "RandomHorizontalFlip", "RandomPerspective", "RandomResizedCrop",
    "RandomRotation", "RandomVerticalFlip", "Resize", "ToPILImage", "ToTensor",
})  # fmt: skip
"""Transforms that call nothing of the script, and fill no large tensor, which the mode would leave empty."""


def patches(context: PatchContext) -> list[Patch]:
    """The call of several transforms in a row."""
    return [
        Patch(
            target=f"{_MODULE}:Compose.__call__", phase=Phase.LIBRARIES, wraps=True, replacement=_without_mode,
            reason="Each operator for a CPU image takes its way through Python, which is most of the time of reading "
            "a data set of small images.",
            source="torchvision/transforms/transforms.py, `Compose.__call__`",
        )
    ]  # fmt: skip


def _without_mode(original: Any) -> Any:
    """`Compose.__call__`, which calls each transform in turn; those of the script as before."""

    @functools.wraps(original)
    def call(self: Any, img: Any) -> Any:
        if not _makes_cpu_tensors():
            return original(self, img)
        for transform in self.transforms:
            if _is_plain(transform) and _is_on_cpu(img):
                with torch._C._DisableTorchDispatch():
                    img = transform(img)
            else:
                img = transform(img)
        return img

    return call


def _is_on_cpu(image: Any) -> bool:
    if type(image) is torch.Tensor:
        return image.device.type == "cpu"
    return type(image).__module__.startswith("PIL.")


def _makes_cpu_tensors() -> bool:
    """Whether no default device of the script's, and no mode beside the tracer's, changes what operators do."""
    return torch._C._len_torch_function_stack() == 0 and torch._C._len_torch_dispatch_stack() == 1


def _is_plain(transform: Any) -> bool:
    """Whether it is torchvision's own, with numbers as its mean and deviation, and not tensors of a GPU."""
    kind = type(transform)
    if kind.__name__ not in _ON_CPU or getattr(sys.modules[_MODULE], kind.__name__) is not kind:
        return False
    values = [vars(transform).get(name, ()) for name in ("mean", "std")]
    return all(isinstance(value, (tuple, list)) and not any(map(torch.is_tensor, value)) for value in values)
