"""Files that a script unpacks: `images, labels = torch.load("train.pt")`, or `torch.load("train.pt")["samples"]`.

Each name gets a tensor of the file's sample, and one of labels a class for each of its first dimension. Of a file that
is read by keys the sample is one of many: each key gets so many of them, and one of labels their classes.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from dataclasses import replace
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.images.synthetic_torchvision import synthetic_tensor
from cotenant.tracing.data.static_analysis.source_tree import called_name, parsed_source, spans

_LABELS = re.compile(r"(?:.*_)?(?:labels?|targets?|class(?:es)?|y)(?:_.*)?", re.IGNORECASE)
_ROWS, _MIN_ROWS, _NUMBERS = 2000, 128, 2**26
"""Samples of a file that is read by keys; fewer where they would have more numbers than that."""


class KeyedTensor(torch.Tensor):
    """What a file has that the script loads without saying what it expects: a tensor, and tensors by name."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # what it computes is a plain tensor
    sample: SyntheticSample

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        rows = max(_MIN_ROWS, min(_ROWS, _NUMBERS // math.prod(self.sample.shape)))
        if _LABELS.fullmatch(key):
            return synthetic_tensor(replace(self.sample, shape=(rows,), dtype="int64"))
        return synthetic_tensor(replace(self.sample, shape=(rows, *self.sample.shape)))


def loaded_tensors(sample: SyntheticSample) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """As `unpacked_tensors`; a tensor has others by name, too."""
    made = unpacked_tensors(sample)
    if isinstance(made, tuple):
        return made
    keyed = made.as_subclass(KeyedTensor)
    keyed.sample = sample
    return keyed


def unpacked_tensors(sample: SyntheticSample) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """What the user's line that loads a file now expects: a tensor, or one for each name that it unpacks into."""
    names = _names(*script_location.calling_line())
    if not names:
        return synthetic_tensor(sample)
    labels = replace(sample, shape=sample.shape[:1], dtype="int64")
    return tuple(synthetic_tensor(labels if _LABELS.fullmatch(name) else sample) for name in names)


@functools.cache
def _names(path: str, line: int) -> tuple[str, ...]:
    """Names that the call of `load` at a line is unpacked into; none where it is not."""
    for node in ast.walk(parsed_source(path)):
        if isinstance(node, ast.Assign) and spans(node, line) and called_name(node.value) == "load":
            target = node.targets[0]
            if isinstance(target, (ast.Tuple, ast.List)):
                parts = (getattr(part, "attr", getattr(part, "id", "")) for part in target.elts)
                return tuple(parts)
    return ()
