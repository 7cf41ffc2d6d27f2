"""Files that a script unpacks as it loads them: `images, labels = torch.load("train.pt")`.

Each name gets a tensor of the file's sample, and one of labels a class for each of its first dimension.

A module of its own: readers of several libraries ask the script's code the same.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import replace

import torch

from cotenant.tracing import script_location
from cotenant.tracing.data.class_folders import parsed_source
from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.format_nodes import called_name, spans
from cotenant.tracing.data.synthetic_torchvision import synthetic_tensor

_LABELS = re.compile(r"(?:.*_)?(?:labels?|targets?|class(?:es)?|y)(?:_.*)?", re.IGNORECASE)


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
