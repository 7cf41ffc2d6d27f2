"""Weights that scripts and small libraries fetch from the Hugging Face hub by themselves, where they are not here.

The libraries that make a model from its configuration alone have patches of their own, and see the hub's error.
"""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.patches.missing_weights import MissingStateDict, warn_missing
from cotenant.tracing.patches.registry import AbsenceContext, Patch, Phase

_WEIGHTS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar", ".t7")
_OTHER_BINARIES = ("tokenizer", "vocab", "spiece", "_args")
"""Parts of the names of files with such a suffix that are no weights: `training_args.bin`."""
_HAVE_CONFIGURATIONS = (
    "huggingface_hub", "transformers", "diffusers", "datasets", "tokenizers", "peft", "timm", "sentence_transformers",
    "open_clip",
)  # fmt: skip
"""Libraries that go on without the weights by themselves, or by a patch of their own."""
_COUNT_DOWNLOADS = "segmentation_models_pytorch"
"""It fetches a configuration, too, for the hub's statistics alone: encoders/__init__.py, `get_encoder`."""


def patches(context: AbsenceContext) -> list[Patch]:
    """The function that fetches one file, and the one that reads weights from it; `torch.load` is patched already."""
    return [
        Patch(
            target="huggingface_hub.file_download:hf_hub_download", phase=Phase.LIBRARIES, wraps=True,
            also_in="huggingface_hub", replacement=functools.partial(_with_missing_file, context.recorder),
            reason="It downloads weights, and a trace has no network.",
            source="huggingface_hub/file_download.py, `hf_hub_download`",
        ),
        Patch(
            target="safetensors.torch:load_file", phase=Phase.LIBRARIES, wraps=True, replacement=_loading_missing,
            reason="Weights that were not downloaded are missing.", source="safetensors/torch.py, `load_file`",
        ),
    ]  # fmt: skip


def _with_missing_file(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def hf_hub_download(repo_id: str, filename: str = "", *args: Any, **kwargs: Any) -> Any:
        caller = str(script_location.calling_frame().f_globals.get("__name__", "")).partition(".")[0]
        try:
            return original(repo_id, filename, *args, **kwargs)
        except OSError:
            name = Path(filename).name
            is_weights = name.endswith(_WEIGHTS) and not any(part in name for part in _OTHER_BINARIES)
            if caller in _HAVE_CONFIGURATIONS or not (is_weights or caller == _COUNT_DOWNLOADS):
                raise
        absent = os.path.realpath(Path(tempfile.gettempdir(), "not-downloaded", repo_id, filename))
        if is_weights:
            MissingStateDict.files.add(absent)
            warn_missing(recorder, f"{repo_id}/{filename}")
        return absent

    return hf_hub_download


def _loading_missing(original: Any) -> Any:
    @functools.wraps(original)
    def load_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(filename, *args, **kwargs)
        except OSError:
            if os.path.realpath(filename) not in MissingStateDict.files:
                raise
            return MissingStateDict()

    return load_file
