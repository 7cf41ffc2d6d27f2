"""Configurations of models that are on this machine, for tokenizers and processors that are not.

A pipeline of diffusers has a folder for each part: that of a tokenizer may be missing, and its text encoder's is there.
Source: transformers/models/auto/configuration_auto.py; diffusers/pipelines/pipeline_loading_utils.py,
`load_sub_model`, which gives the folder of the whole pipeline where a part has none.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

_WHERE = ("cache_dir", "revision", "token", "trust_remote_code")


def find_config(name: Any, cls: type, options: dict[str, Any]) -> Any:
    """The model's configuration, if it is here; of a part of a pipeline, that of its text encoder.

    `cls`, `options`: as of `from_pretrained`.
    """
    auto = importlib.import_module("transformers.models.auto.configuration_auto").AutoConfig
    where = {key: options[key] for key in _WHERE if key in options}
    subfolder = options.get("subfolder")
    places = [""] if subfolder is None else [str(subfolder).replace("tokenizer", "text_encoder"), ""]
    for place in places:
        at = {**where, **({"subfolder": place} if place else {})}
        try:
            return auto.from_pretrained(name, **at)
        except ValueError:  # a part of a model that this version has no class of configurations for
            if found := _plain_config(name, at):
                return found
        except OSError:
            continue
    return _of_pipeline(Path(str(name)), cls)


def _of_pipeline(folder: Path, cls: type) -> Any:
    """That of the text encoder in a pipeline's folder, or beside the part `folder` of one.

    Of several, the one of that part, or that whose kind the class is named after, such as `CLIPTokenizer`.
    """
    encoders = sorted(folder.glob("text_encoder*"))
    if not (folder / "model_index.json").is_file():
        encoders = [folder.parent / folder.name.replace("tokenizer", "text_encoder")]
        if not (folder.parent / "model_index.json").is_file() or encoders[0] == folder:
            return None
    configs = (_plain_config(str(path), {}) for path in encoders)
    kinds = ((config, str(config.model_type).partition("_")[0]) for config in configs if config is not None)
    return next((config for config, kind in kinds if kind and kind in cls.__name__.lower()), None)


def _plain_config(name: Any, where: dict[str, Any]) -> Any:
    """A configuration as it is in the file."""
    base = importlib.import_module("transformers.configuration_utils").PretrainedConfig
    try:
        values, _ = base.get_config_dict(name, **where)
    except (OSError, ValueError):
        return None
    return base.from_dict(values) if values else None
