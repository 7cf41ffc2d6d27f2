"""Weights that are fetched, such as torchvision's and timm's, and that are not on this machine: a model keeps its own.

They are of the shapes that the model has, or loading them would fail, so nothing changes on the GPU.
"""

from __future__ import annotations

import collections
import functools
import traceback
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.patches.import_hooks import when_imported

_MODEL_FETCHERS = ("huggingface_hub", "torch.hub")
"""Modules that fetch parts of models."""
_DATA_LIBRARIES = ("datasets", "evaluate")


def is_missing_model(error: BaseException) -> bool:
    """Whether an error is of a model's part that could not be fetched, as far as the calls that raised it tell.

    Those are what a script's innermost line called. Data that are not here are another thing: they can be made up.
    """
    called: list[tuple[str, str]] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if script_location.is_user_file(frame.f_code.co_filename):
            called.clear()
        else:
            called.append((frame.f_globals.get("__name__", ""), frame.f_code.co_name))
    if any(_is_of(module, _DATA_LIBRARIES) for module, _ in called):
        return False
    if isinstance(error, ValueError):  # a path that is not here is no name for the hub either
        return bool(called) and _is_of(called[-1][0], _MODEL_FETCHERS)
    fetches = any(name == "from_pretrained" or _is_of(module, _MODEL_FETCHERS) for module, name in called)
    return fetches and (isinstance(error, OSError) or isinstance(error.__cause__, OSError))


def _is_of(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in packages)


class MissingStateDict(collections.OrderedDict[str, Any]):
    """Stands for a state that could not be fetched; a script may take names out of it, and finds none."""


def install(recorder: Any) -> None:
    """Answer where weights are out of reach."""
    fetch, load = torch.hub.load_state_dict_from_url, torch.nn.Module.load_state_dict

    @functools.wraps(fetch)
    def fetched(url: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return fetch(url, *args, **kwargs)
        except OSError:
            _warn_missing(recorder, url.rpartition("/")[2])
            return MissingStateDict()

    @functools.wraps(load)
    def loaded(self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return load(
            self, self.state_dict() if isinstance(state_dict, MissingStateDict) else state_dict, *args, **kwargs
        )

    def put(module: Any) -> None:
        module.load_state_dict_from_url = fetched

    put(torch.hub)
    torch.nn.Module.load_state_dict = loaded
    for name in ("torchvision._internally_replaced_utils", "torchvision.models._api"):
        when_imported(name, put)
    when_imported("timm.models._builder", lambda module: _patch_timm(module, recorder))


def _patch_timm(module: Any, recorder: Any) -> None:
    """Timm renames what it loads in ways of each model, so nothing of it is asked for."""
    load = module.load_pretrained

    @functools.wraps(load)
    def loaded(model: torch.nn.Module, pretrained_cfg: Any = None, *args: Any, **kwargs: Any) -> None:
        try:
            load(model, pretrained_cfg, *args, **kwargs)
        except OSError:
            known = pretrained_cfg or getattr(model, "pretrained_cfg", None) or {}
            _warn_missing(recorder, known.get("hf_hub_id") or known.get("architecture") or type(model).__name__)

    module.load_pretrained = loaded


def _warn_missing(recorder: Any, name: str) -> None:
    recorder.warn(f"the weights `{name}` are not on this machine: the model keeps those it was made with")
