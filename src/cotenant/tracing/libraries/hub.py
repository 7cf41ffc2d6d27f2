"""Weights that `torch.hub` would fetch, such as torchvision's, and that are not on this machine: a model keeps its own.

They are of the shapes that the model has, or loading them would fail, so nothing changes on the GPU.
"""

from __future__ import annotations

import collections
import functools
from typing import Any

import torch

from cotenant.tracing.libraries.after_import import when_imported


class Absent(collections.OrderedDict[str, Any]):
    """Stands for a state that could not be fetched; a script may take names out of it, and finds none."""


def install(recorder: Any) -> None:
    """Answer where weights are out of reach."""
    fetch, load = torch.hub.load_state_dict_from_url, torch.nn.Module.load_state_dict

    @functools.wraps(fetch)
    def fetched(url: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return fetch(url, *args, **kwargs)
        except OSError:
            name = url.rpartition("/")[2]
            recorder.warn(f"the weights `{name}` are not on this machine: the model keeps those it was made with")
            return Absent()

    @functools.wraps(load)
    def loaded(self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return load(self, self.state_dict() if isinstance(state_dict, Absent) else state_dict, *args, **kwargs)

    def put(module: Any) -> None:
        module.load_state_dict_from_url = fetched

    put(torch.hub)
    torch.nn.Module.load_state_dict = loaded
    for name in ("torchvision._internally_replaced_utils", "torchvision.models._api"):
        when_imported(name, put)
