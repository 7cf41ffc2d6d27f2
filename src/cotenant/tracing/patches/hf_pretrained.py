"""Hugging Face models whose weights are not on this machine: built from their configuration, which decides all sizes.

Only where `from_pretrained` finds a configuration and no weights. The library itself quantizes layers that it quantizes
while it loads, from weights whose values do not matter; so also for checkpoints stored in 4 or 8 bits. Not modeled:
`device_map="auto"` over several GPUs; all of the model goes to the first.
Source: transformers/modeling_utils.py, `PreTrainedModel.from_pretrained` (4.56 to 5).
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.patches.registry import AbsenceContext, Patch, Phase

_CONFIG_SOURCE_OPTIONS = ("cache_dir", "revision", "token", "subfolder", "trust_remote_code")
_QUANTIZATION_OPTIONS = ("quantization_config", "load_in_4bit", "load_in_8bit")


def patches(context: AbsenceContext) -> list[Patch]:
    """The method that loads a model by name."""
    return [
        Patch(
            target="transformers.modeling_utils:PreTrainedModel.from_pretrained", phase=Phase.LIBRARIES,
            replacement=functools.partial(_with_missing_weights, context.recorder), wraps=True,
            reason="It downloads weights, and a trace has no network.",
            source="transformers/modeling_utils.py, `PreTrainedModel.from_pretrained`",
        ),
        *(
            Patch(
                target=f"transformers.utils.hub:{name}", phase=Phase.LIBRARIES, wraps=True, also_in="transformers",
                replacement=_from_usual_cache, missing="transformers before 4.50",
                reason="A script may name a cache of its own, filled at its first run, and a trace has no network.",
                source=f"transformers/utils/hub.py, `{name}`",
            )
            for name in ("cached_files", "cached_file")
        ),
    ]  # fmt: skip


def _from_usual_cache(original: Any) -> Any:
    @functools.wraps(original)
    def cached_files(path_or_repo_id: Any, wanted: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Files of a model from the hub's cache of this machine where the given cache lacks them."""
        cache_dir = kwargs.pop("cache_dir", args[0] if args else None)

        def look(where: Any) -> Any:
            names = () if wanted is None else (wanted,)  # `filenames`, or `filename`, may be a keyword
            if len(args) > 1:
                return original(path_or_repo_id, *names, where, *args[1:], **kwargs)
            return original(path_or_repo_id, *names, cache_dir=where, **kwargs)

        try:
            found = look(cache_dir)
        except OSError:
            if cache_dir is None:
                raise
            found = None
        return look(None) if found is None and cache_dir is not None else found

    return cached_files


def _with_missing_weights(recorder: Any, bound: Any) -> Any:
    original = bound.__func__

    def from_pretrained(cls: Any, /, name: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        try:
            return original(cls, name, *args, config=config, **kwargs)
        except (OSError, AttributeError):
            # transformers 4.56 raises an `AttributeError` where the hub's cache has a configuration without weights:
            # `_get_resolved_checkpoint_files` gives [None], of which `from_pretrained` reads the suffix.
            if name is None:
                raise
            model = _from_config(functools.partial(original, cls), cls, name, args, config, kwargs)
            if model is None:
                raise
        recorder.warn(f"the weights of `{name}` are not here: the model was made from its configuration")
        return (model, {}) if kwargs.get("output_loading_info") else model

    return classmethod(from_pretrained)


def _from_config(load: Callable[..., Any], cls: Any, name: Any, args: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    """The model in evaluation mode, as a loaded one is; None if there is no configuration either."""
    own = dict(kwargs)
    if config is None or isinstance(config, str):
        where = {key: kwargs[key] for key in _CONFIG_SOURCE_OPTIONS if key in kwargs}
        try:
            config, own = cls.config_class.from_pretrained(
                config or name, return_unused_kwargs=True, **{**own, **where}
            )
        except OSError:
            return None
    quantized = any(kwargs.get(key) for key in _QUANTIZATION_OPTIONS)
    stored = getattr(config, "quantization_config", None)
    if stored is not None:
        if not _can_quantize(stored):
            return None
        config = copy.deepcopy(config)
        del config.quantization_config
    options = {"torch_dtype": torch.float16 if quantized and _no_dtype(kwargs) else _dtype(config, kwargs)}
    if "attn_implementation" in kwargs:
        options["attn_implementation"] = kwargs["attn_implementation"]
    known = inspect.signature(cls.__init__).parameters
    own = {key: value for key, value in own.items() if key in known and key != "config"}
    config.name_or_path = str(name)
    model = cls._from_config(config, *args, **options, **own).eval()
    if stored is not None and not quantized:
        kwargs = {**kwargs, "quantization_config": stored}
    if stored is not None or quantized:
        return _load_from(load, model, name, args, config, kwargs)
    device = _device(kwargs.get("device_map"))
    return model if device is None else model.to(device)


def _can_quantize(stored: Any) -> bool:
    """Whether the library quantizes plain weights to this format while it loads them."""
    get = stored.get if isinstance(stored, dict) else functools.partial(getattr, stored)
    return "bitsandbytes" in str(get("quant_method", ""))


def _load_from(load: Callable[..., Any], source: Any, name: Any, args: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    """A model loaded from the weights of another, as from a checkpoint."""
    skipped = {*_CONFIG_SOURCE_OPTIONS, "output_loading_info"}
    if isinstance(kwargs.get("quantization_config"), dict):
        from transformers.quantizers.auto import AutoQuantizationConfig

        parsed = AutoQuantizationConfig.from_dict(dict(kwargs["quantization_config"]))
        kwargs = {**kwargs, "quantization_config": parsed}
    options = {key: value for key, value in kwargs.items() if key not in skipped}
    model = load(None, *args, config=config, state_dict=source.state_dict(), **options)
    model.name_or_path = model.config.name_or_path = str(name)
    return model


def _no_dtype(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("dtype") is None and kwargs.get("torch_dtype") is None


def _dtype(config: Any, kwargs: dict[str, Any]) -> torch.dtype:
    """The requested dtype, else the default: PyTorch's until transformers 4, the checkpoint's own from 5 on."""
    import transformers

    of_checkpoint = "auto" if int(transformers.__version__.split(".")[0]) >= 5 else torch.get_default_dtype()
    wanted = kwargs.get("dtype") or kwargs.get("torch_dtype") or of_checkpoint
    if wanted == "auto":
        wanted = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.get_default_dtype()
    return getattr(torch, wanted) if isinstance(wanted, str) else wanted


def _device(device_map: Any) -> Any:
    if isinstance(device_map, dict):
        device_map = next(iter(device_map.values()), None)
    if device_map in ("auto", "balanced", "balanced_low_0", "sequential"):
        return "cuda"
    return device_map
