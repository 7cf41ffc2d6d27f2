"""Models of diffusers whose weights are not on this machine: built from their configuration, which decides all sizes.

Pipelines load their parts by the same method, so they need nothing else. Schedulers are configurations alone.
Source: diffusers/models/modeling_utils.py, `ModelMixin.from_pretrained` (0.30 to 0.39). One file for each library.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from cotenant.tracing.patches.registry import AbsenceContext, Patch, Phase

_CONFIG_SOURCE_OPTIONS = ("cache_dir", "revision", "token", "subfolder", "local_files_only", "user_agent")


def patches(context: AbsenceContext) -> list[Patch]:
    """The method that loads a model by name."""
    return [
        Patch(
            target="diffusers.models.modeling_utils:ModelMixin.from_pretrained", phase=Phase.LIBRARIES,
            replacement=functools.partial(_with_missing_weights, context.recorder), wraps=True,
            reason="It downloads weights, and a trace has no network.",
            source="diffusers/models/modeling_utils.py, `ModelMixin.from_pretrained`",
        )
    ]  # fmt: skip


def _with_missing_weights(recorder: Any, bound: Any) -> Any:
    original = bound.__func__

    def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(cls, name, *args, **kwargs)
        except OSError:
            model = _from_config(cls, name, kwargs)
            if model is None:
                raise
        recorder.warn(f"the weights of `{name}` are not here: the model was made from its configuration")
        return (model, {}) if kwargs.get("output_loading_info") else model

    return classmethod(from_pretrained)


def _from_config(cls: Any, name: Any, kwargs: dict[str, Any]) -> Any:
    """The model in evaluation mode, as a loaded one is; None if there is no configuration either."""
    where = {key: kwargs[key] for key in _CONFIG_SOURCE_OPTIONS if key in kwargs}
    known = {key: value for key, value in kwargs.items() if key in cls._get_init_keys(cls)}
    try:
        config = cls.load_config(name, **where)
    except OSError:
        return None
    model = cls.from_config({**config, **known}).eval()
    dtype = kwargs.get("torch_dtype")
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model
