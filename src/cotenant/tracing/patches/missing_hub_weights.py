"""Weights that scripts and small libraries take from the hub by themselves, and that are not on this machine.

As `model.load_state_dict(load_file(hf_hub_download(name, "model.safetensors")))`, or one tensor after another from
`safe_open`: the model keeps its initial weights. The libraries that make a model from its configuration alone have
patches of their own, and see the hub's error.
A module of its own: two libraries and their files, apart from `torch.load` and `torch.hub` in `missing_weights`.
Source: huggingface_hub/file_download.py, `hf_hub_download`; safetensors/torch.py, `load_file`.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.patches.missing_weights import MissingStateDict, mark_missing, warn_missing
from cotenant.tracing.patches.registry import AbsenceContext, Patch, Phase

_WEIGHTS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar", ".t7")
_OTHER_BINARIES = ("tokenizer", "vocab", "spiece", "_args")
"""Parts of the names of files with such a suffix that are no weights: `training_args.bin`."""
_HAVE_CONFIGURATIONS = (
    "huggingface_hub", "transformers", "diffusers", "datasets", "tokenizers", "peft", "timm", "sentence_transformers",
    "open_clip",
)  # fmt: skip
"""Libraries that go on without the weights by themselves, or by a patch of their own."""
_NORMALIZES = "segmentation_models_pytorch"
"""It fetches a configuration, too: for the hub's statistics, and for the mean and deviation of the pixels that weights
were trained with. Source: encoders/__init__.py, `get_encoder`, `get_preprocessing_params`."""
_PIXELS = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}  # of ImageNet


def patches(context: AbsenceContext) -> list[Patch]:
    """What fetches such files, and what reads them."""
    common: dict[str, Any] = {"phase": Phase.LIBRARIES, "wraps": True}
    return [
        Patch(
            target="huggingface_hub.file_download:hf_hub_download", also_in="huggingface_hub",
            replacement=functools.partial(_fetching, context.recorder),
            reason="It downloads a file, and a trace has no network.",
            source="huggingface_hub/file_download.py, `hf_hub_download`", **common,
        ),
        Patch(
            target="safetensors.torch:load_file", replacement=functools.partial(_reading, _without_entries),
            reason="Weights that were not downloaded are missing.", source="safetensors/torch.py, `load_file`",
            also_in="safetensors", **common,
        ),
        Patch(
            target="safetensors:safe_open", replacement=functools.partial(_reading, _NoTensors),
            reason="Weights that were not downloaded are missing.", source="safetensors/torch.py, `safe_open`",
            also_in="safetensors", **common,
        ),
    ]  # fmt: skip


class _NoTensors:
    """An open file of tensors that has none. `path`: its own."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> _NoTensors:
        return self

    def __exit__(self, *args: object) -> None:
        return

    def keys(self) -> list[str]:
        """Names of its tensors."""
        return []

    def get_tensor(self, name: str) -> Any:
        """A tensor by its name.

        Raises:
            FileNotFoundError: always; its shape is not known.
        """
        error = FileNotFoundError(errno.ENOENT, f"no tensor `{name}`", self._path)
        mark_missing(error, f"the file of weights `{Path(self._path).name}`")
        raise error

    def metadata(self) -> dict[str, str]:
        """As of a file without any."""
        return {}


def _without_entries(path: str) -> MissingStateDict:
    return MissingStateDict()


def _fetching(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def hf_hub_download(repo_id: str, filename: str = "", *args: Any, **kwargs: Any) -> Any:
        caller = str(script_location.calling_frame().f_globals.get("__name__", "")).partition(".")[0]
        try:
            return original(repo_id, filename, *args, **kwargs)
        except OSError:
            name = Path(filename).name
            is_weights = name.endswith(_WEIGHTS) and not any(part in name for part in _OTHER_BINARIES)
            if caller in _HAVE_CONFIGURATIONS or not (is_weights or caller == _NORMALIZES):
                raise
            if not is_weights:
                found = Path(tempfile.mkdtemp(), name)
                found.write_text(json.dumps(_PIXELS))
                return str(found)
        absent = os.path.realpath(Path(tempfile.gettempdir(), "not-downloaded", repo_id, filename))
        MissingStateDict.files.add(absent)
        warn_missing(recorder, f"{repo_id}/{filename}")
        return absent

    return hf_hub_download


def _reading(make: Callable[[str], Any], original: Any) -> Any:
    @functools.wraps(original)
    def read(filename: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(filename, (str, os.PathLike)) and os.path.realpath(filename) in MissingStateDict.files:
            return make(os.fspath(filename))
        return original(filename, *args, **kwargs)

    return read
