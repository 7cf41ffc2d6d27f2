"""Pretrained weights that are not on this machine, such as torchvision's and timm's: a model keeps its initial ones.

Loading fails unless the shapes are the same, so the memory does not change.
"""

from __future__ import annotations

import collections
import errno
import functools
import io
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from cotenant.tracing import script_location
from cotenant.tracing.data.static_analysis import class_folders
from cotenant.tracing.patches import offline_downloads
from cotenant.tracing.patches.registry import AbsenceContext, Patch, Phase

_MODEL_FETCHERS = ("huggingface_hub", "torch.hub")
"""Modules that download parts of models."""
_DATA_LIBRARIES = ("datasets", "evaluate")
_CHECKPOINT_SUFFIXES = (".pth", ".tar", ".ckpt", ".bin", ".t7")
_TORCH_SUFFIXES = (".pth", ".pth.tar", ".ckpt", ".pt")
_CHECKPOINT_NAME = re.compile(
    r"(?:weight|ckpt|checkpoint|pretrain|model|best|last|state_dict)[^/]*$|(?:pretrained|checkpoint|ckpt)[^/]*/[^/]*$",
    re.IGNORECASE,
)
"""Of a file, or of its folder: `pretrained_models/stylegan2.pt`."""
_SOURCES = ("url", "id", "from_path")
"""Names of what is downloaded or unpacked: gdown takes the `id` of a file in place of its URL."""
_MISSING_PART = "cotenant_missing_part"
"""Attribute of an error."""
_COUNTER = re.compile(r"epoch|iter|step|best|loss|acc|score", re.IGNORECASE)


def mark_missing(error: BaseException, part: str) -> None:
    """Note that an error comes from a part of a model that is not on this machine, whatever its class and message."""
    setattr(error, _MISSING_PART, part)


def missing_part(error: BaseException) -> str:
    """What was noted of an error, or of the one that it comes from; empty if nothing was."""
    causes = (error, error.__cause__, error.__context__)
    return next((getattr(cause, _MISSING_PART) for cause in causes if hasattr(cause, _MISSING_PART)), "")


def is_missing_model(error: BaseException) -> bool:
    """Whether an error comes from a part of a model that could not be downloaded, judged by the calls in its traceback.

    Only calls below the script's innermost line count. Missing data are not meant: they can be synthetic.
    """
    called: list[tuple[str, str]] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if script_location.is_user_file(frame.f_code.co_filename):
            called.clear()
        else:
            called.append((frame.f_globals.get("__name__", ""), frame.f_code.co_name))
    if any(_is_of(module, _DATA_LIBRARIES) for module, _ in called):
        return False
    if isinstance(error, ValueError):  # huggingface_hub refuses a missing path as a name of a repository
        return bool(called) and _is_of(called[-1][0], _MODEL_FETCHERS)
    fetches = any(name == "from_pretrained" or _is_of(module, _MODEL_FETCHERS) for module, name in called)
    return fetches and (isinstance(error, OSError) or isinstance(error.__cause__, OSError))


def _is_of(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


class MissingStateDict(collections.OrderedDict[str, Any]):
    """In place of a checkpoint that is not on this machine; a script may remove names, and finds none.

    A part that a script reads by name is missing, too; counters such as `epoch` are 0.
    """

    made = False  # whether there has been one in this process
    files: ClassVar[set[str]] = set()  # that the script downloaded, or would have
    path = ""  # of its file, where that is known

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        MissingStateDict.made = True

    @classmethod
    def at(cls, path: str) -> MissingStateDict:
        """The one of a file."""
        made = cls()
        made.path = path
        return made

    def __missing__(self, name: str) -> Any:
        return 0 if _COUNTER.search(str(name)) else MissingStateDict.at(self.path)

    def __getattr__(self, name: str) -> Any:
        what = f"`{self.path}`" if self.path else "the checkpoint"
        error = AttributeError(
            f"{what} is not on this machine, and the script reads `{name}` of the object saved in it"
        )
        if not name.startswith("__"):  # of which `copy` and others ask any object
            mark_missing(error, what)
        raise error

    def state_dict(self) -> MissingStateDict:
        """Of a whole model that was saved."""
        return self


class MissingCheckpointFile(io.BytesIO):
    """In place of a checkpoint that a script opens by itself before `torch.load` reads it.

    For whatever else reads it, such as `pickle.load` of a stream of samples, the file is missing.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.name = path

    def read(self, _size: int | None = -1, /) -> bytes:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)

    def readline(self, _size: int | None = -1, /) -> bytes:
        return self.read()

    def readinto(self, _buffer: Any, /) -> int:
        return len(self.read())


def is_checkpoint_file(path: str, mode: str) -> bool:
    """Whether a file that a script opens is a checkpoint: one that it reads as bytes, by its suffix."""
    return "r" in mode and "b" in mode and "+" not in mode and path.endswith(_TORCH_SUFFIXES)


def is_checkpoint(path: str) -> bool:
    """Whether a file that `torch.load` reads holds weights rather than data, by its name."""
    return path.endswith(_CHECKPOINT_SUFFIXES) or bool(_CHECKPOINT_NAME.search(path))


def patches(context: AbsenceContext) -> list[Patch]:
    """Functions that download weights, and the one that loads them."""
    recorder = context.recorder
    return [
        *offline_downloads.patches(context),
        *(
            Patch(
                target=f"{module}:load_state_dict_from_url", phase=Phase.LIBRARIES,
                replacement=functools.partial(_with_missing_download, recorder), wraps=True,
                reason="It downloads weights, and a trace has no network.",
                source="torch/hub.py, `load_state_dict_from_url`", missing="versions that import it elsewhere",
            )
            for module in ("torch.hub", "torchvision._internally_replaced_utils", "torchvision.models._api")
        ),
        *(
            Patch(
                target=target, phase=Phase.LIBRARIES, replacement=functools.partial(_with_missing_file, recorder),
                wraps=True, stacks=True, reason="Scripts download weights by it, and a trace has no network.",
                source=source,
            )
            for target, source in (
                ("urllib.request:urlretrieve", "Lib/urllib/request.py, `urlretrieve`"),
                ("torch.hub:download_url_to_file", "torch/hub.py, `download_url_to_file`"),
                ("gdown:download", "gdown/download.py, `download`"),
                ("wget:download", "wget.py, `download`"),
            )
        ),
        *(
            Patch(
                target=target, phase=Phase.LIBRARIES, replacement=functools.partial(_asking_for_weights, recorder),
                wraps=True, stacks=True, reason="Scripts download weights that are not there in ways of their own.",
                source=source,
            )
            for target, source in (
                *((f"os.path:{name}", "Lib/genericpath.py") for name in ("exists", "isfile")),
                *((f"pathlib:Path.{name}", "Lib/pathlib.py") for name in ("exists", "is_file")),
            )
        ),
        Patch(
            target="torch:load", phase=Phase.LIBRARIES, replacement=_loading_downloads, wraps=True, stacks=True,
            reason="Weights that were not downloaded are missing.", source="torch/serialization.py, `load`",
        ),
        Patch(
            target="torch.nn:Module.load_state_dict", phase=Phase.LIBRARIES, replacement=_keeping_initial_weights,
            wraps=True, reason="Weights that were not downloaded are replaced by the model's own.",
            source="torch/nn/modules/module.py, `Module.load_state_dict`",
        ),
        *(
            Patch(
                target=f"{target}.load_state_dict", phase=Phase.LIBRARIES, replacement=_keeping_initial_state,
                wraps=True, reason="A missing checkpoint has no state of it.", source=f"{source}, `load_state_dict`",
            )
            for target, source in (
                ("torch.optim.optimizer:Optimizer", "torch/optim/optimizer.py"),
                ("torch.amp.grad_scaler:GradScaler", "torch/amp/grad_scaler.py"),
            )
        ),
        Patch(
            target="timm.models._builder:load_pretrained", phase=Phase.LIBRARIES,
            replacement=functools.partial(_with_missing_timm_weights, recorder), wraps=True,
            reason="It downloads weights and renames their entries per model.",
            source="timm/models/_builder.py, `load_pretrained`",
        ),
    ]  # fmt: skip


def _with_missing_download(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(url, *args, **kwargs)
        except OSError:
            warn_missing(recorder, url.rpartition("/")[2])
            return MissingStateDict()

    return load_state_dict_from_url


def _with_missing_file(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except OSError:
            _, targets = source_and_targets(args, kwargs)
            files = [os.path.realpath(path) for path in targets if path.endswith(_TORCH_SUFFIXES)]
            if not files:
                raise
        MissingStateDict.files.update(files)
        warn_missing(recorder, os.path.basename(files[0]))  # noqa: PTH119 - of a text
        return download_result(original, files[0])

    return fetch


def source_and_targets(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """What a function is to download or unpack, and the paths that it was given to write to."""
    source = args[0] if args else next((kwargs[name] for name in _SOURCES if name in kwargs), "")
    others = (*args[1:], *(value for name, value in kwargs.items() if name not in _SOURCES))
    return source, [os.fspath(value) for value in others if isinstance(value, (str, os.PathLike))]


def download_result(function: Any, path: str) -> Any:
    """What a function returns that has downloaded to `path`: `urlretrieve` also the headers of the answer."""
    return (path, None) if function.__name__ == "urlretrieve" else path


def _asking_for_weights(recorder: Any, original: Any) -> Any:
    """Weights are said to be there where the script would download them, by any function, and read them then."""

    @functools.wraps(original)
    def exists(path: Any, *args: Any, **kwargs: Any) -> bool:
        if original(path, *args, **kwargs):
            return True
        is_file = isinstance(path, (str, os.PathLike)) and os.fspath(path).endswith(_TORCH_SUFFIXES)
        if not is_file or not script_location.is_called_by_user():
            return False
        if not class_folders.caller_downloads_what_is_absent():
            return False
        MissingStateDict.files.add(os.path.realpath(path))
        warn_missing(recorder, os.path.basename(path))  # noqa: PTH119 - of a text
        return True

    return exists


def _loading_downloads(original: Any) -> Any:
    @functools.wraps(original)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(file, *args, **kwargs)
        except FileNotFoundError:
            is_path = isinstance(file, (str, os.PathLike))
            if not is_path or os.path.realpath(file) not in MissingStateDict.files:
                raise
            return MissingStateDict.at(os.fspath(file))

    return load


def _keeping_initial_weights(original: Any) -> Any:
    @functools.wraps(original)
    def load_state_dict(self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_missing(state_dict):
            state_dict = self.state_dict()
        elif MissingStateDict.made and isinstance(state_dict, Mapping):
            state_dict = _without_missing(self, state_dict)
        return original(self, state_dict, *args, **kwargs)

    return load_state_dict


def _keeping_initial_state(original: Any) -> Any:
    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return None if _is_missing(state_dict) else original(self, state_dict, *args, **kwargs)

    return load_state_dict


def _without_missing(module: torch.nn.Module, state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries, of which those that a script copied one by one from a missing checkpoint are the module's own."""
    missing = [name for name, value in state_dict.items() if isinstance(value, MissingStateDict)]
    if not missing:
        return state_dict
    own = module.state_dict()
    return {**state_dict, **{name: own[name] for name in missing if name in own}}


def _is_missing(state_dict: Any) -> bool:
    """Whether it is a missing one, or what a script made of it by renaming its entries."""
    is_empty = isinstance(state_dict, Mapping) and not state_dict
    return isinstance(state_dict, MissingStateDict) or (is_empty and MissingStateDict.made)


def _with_missing_timm_weights(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def load_pretrained(model: torch.nn.Module, pretrained_cfg: Any = None, *args: Any, **kwargs: Any) -> None:
        try:
            original(model, pretrained_cfg, *args, **kwargs)
        except OSError:
            known = pretrained_cfg or getattr(model, "pretrained_cfg", None) or {}
            warn_missing(recorder, known.get("hf_hub_id") or known.get("architecture") or type(model).__name__)

    return load_pretrained


def warn_missing(recorder: Any, name: str) -> None:
    """Say that a model is without its weights."""
    recorder.warn(f"the weights `{name}` are not on this machine: the model keeps its initial ones")
