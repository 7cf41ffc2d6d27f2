"""What scripts do with a network before they train: log in, fetch lists of a hub, encodings of tiktoken, and fonts.

An encoding that is not on this machine is replaced by one of bytes, with the special tokens and so the number of tokens
of the real one. A text has about four times as many tokens, which matters only where its length is not fixed. A font is
replaced by the one of matplotlib: it is for pictures of a training, which are not on the GPU.
Source: tiktoken_ext/openai_public.py of tiktoken 0.12.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.patches.registry import AbsenceContext, Patch, Phase, patch_attributes

_END, _PREFIX, _MIDDLE, _SUFFIX = "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"
_ENCODINGS: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "gpt2": (50257, {_END: 50256}),
    "r50k_base": (50257, {_END: 50256}),
    "p50k_base": (50281, {_END: 50256}),
    "p50k_edit": (50284, {_END: 50256, _PREFIX: 50281, _MIDDLE: 50282, _SUFFIX: 50283}),
    "cl100k_base": (
        100277,
        {_END: 100257, _PREFIX: 100258, _MIDDLE: 100259, _SUFFIX: 100260, "<|endofprompt|>": 100276},
    ),
    "o200k_base": (200019, {_END: 199999, "<|endofprompt|>": 200018}),
}
"""Number of tokens and special tokens, by name."""
_NAME = "nobody"  # of the hub's users
_BYTES = 256
_FONTS = (".ttf", ".otf")
_FONT = "fonts/ttf/DejaVuSans.ttf"
"""Source: matplotlib/font_manager.py, `FontManager.__init__`."""


def patches(context: AbsenceContext) -> list[Patch]:
    """Functions that download them."""
    return [
        *patch_attributes(
            "huggingface_hub", dict.fromkeys(("login", "notebook_login", "interpreter_login"), lambda *_, **__: None),
            phase=Phase.LIBRARIES, reason="They ask for a token, and a trace has neither a network nor a terminal.",
            source="huggingface_hub/_login.py, `login`",
        ),
        *(
            Patch(
                target=f"{place}{name}", phase=Phase.LIBRARIES, replacement=functools.partial(_pushing, result),
                wraps=True, reason="Trainers that push to the hub make a repository there before they train.",
                source=f"huggingface_hub/hf_api.py, `HfApi.{name}`",
            )
            for place in ("huggingface_hub:", "huggingface_hub.hf_api:HfApi.")
            for name, result in (
                ("create_repo", _made_repository), ("whoami", _nobody), ("upload_folder", _uploaded),
                ("upload_file", _uploaded),
            )
        ),
        *(
            Patch(
                target=f"{place}{name}", phase=Phase.LIBRARIES, wraps=True,
                replacement=functools.partial(_with_cached_files, answer),
                reason="Scripts look up which files a repository has, and a trace has no network.",
                source=f"huggingface_hub/hf_api.py, `HfApi.{name}`",
            )
            for place in ("huggingface_hub:", "huggingface_hub.hf_api:HfApi.")
            for name, answer in (("model_info", _model_of), ("list_repo_files", _same_files))
        ),
        Patch(
            target="tiktoken.registry:get_encoding", phase=Phase.LIBRARIES, wraps=True, also_in="tiktoken",
            replacement=functools.partial(_with_missing_encodings, context.recorder),
            reason="It downloads the merges of an encoding, and a trace has no network.",
            source="tiktoken/registry.py, `get_encoding`",
        ),
        Patch(
            target="torch.hub:list", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_with_empty_list, context.recorder),
            reason="Scripts ask for the models of a repository to list choices of an option.",
            source="torch/hub.py, `list`",
        ),
        Patch(
            target="torch.hub:download_url_to_file", phase=Phase.LIBRARIES, wraps=True, replacement=_with_usual_font,
            reason="YOLO's scripts download a font for pictures of the training.",
            source="torch/hub.py, `download_url_to_file`",
        ),
    ]  # fmt: skip


def _pushing(result: Callable[..., Any], original: Any) -> Any:
    """A function that asks the hub or writes to it: it does neither, with `--allow-network` as well."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return result(*args, **kwargs)

    return call


def _made_repository(*args: Any, **kwargs: Any) -> Any:
    """The address of a repository that is named by the first text among the arguments."""
    name = str(kwargs.get("repo_id") or next((arg for arg in args if isinstance(arg, str)), "model"))
    owner = "" if "/" in name else f"{_NAME}/"
    return importlib.import_module("huggingface_hub").RepoUrl(f"https://huggingface.co/{owner}{name}")


def _nobody(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"name": _NAME, "fullname": _NAME, "orgs": [], "type": "user"}


def _uploaded(*args: Any, run_as_future: bool = False, **kwargs: Any) -> Future[None] | None:
    """Nothing; with `run_as_future` a future that is done, as `Trainer` waits for its uploads after the training."""
    if not run_as_future:
        return None
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _with_cached_files(answer: Callable[[str, list[str]], Any], original: Any) -> Any:
    """The files of a repository that are in the cache of the hub. Libraries go on without a list by themselves."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except OSError:
            name = str(kwargs.get("repo_id") or next((arg for arg in args if isinstance(arg, str)), ""))
            is_wanted = name and script_location.is_called_by_user()
            files = _cached_files(name, kwargs.get("revision") or "main") if is_wanted else []
            if not files:
                raise
        return answer(name, files)

    return call


def _cached_files(name: str, revision: str) -> list[str]:
    """Paths in the newest fetched snapshot of the model's repository.

    Source: huggingface_hub/file_download.py, `try_to_load_from_cache`.
    """
    constants = importlib.import_module("huggingface_hub.constants")
    folder = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
    reference = folder / "refs" / revision
    snapshot = folder / "snapshots" / (reference.read_text().strip() if reference.is_file() else revision)
    return sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())


def _model_of(name: str, files: list[str]) -> Any:
    siblings = [{"rfilename": file} for file in files]
    details = dict.fromkeys(("private", "disabled", "downloads", "likes"), 0)
    return importlib.import_module("huggingface_hub.hf_api").ModelInfo(id=name, siblings=siblings, tags=[], **details)


def _same_files(_name: str, files: list[str]) -> list[str]:
    return files


def _with_missing_encodings(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def get_encoding(encoding_name: str) -> Any:
        try:
            return original(encoding_name)
        except OSError:  # `requests` has its own subclass
            if encoding_name not in _ENCODINGS:
                raise
        recorder.warn(f"the encoding `{encoding_name}` is not on this machine: bytes are its tokens")
        size, special = _ENCODINGS[encoding_name]
        # Bytes are merged two by two, so no text has these tokens; a script may decode any.
        others = {b"\xff" + index.to_bytes(4, "big"): index for index in range(_BYTES, size)}
        return importlib.import_module("tiktoken.core").Encoding(
            name=encoding_name,
            pat_str=r"\S+|\s+",
            mergeable_ranks={bytes([value]): value for value in range(_BYTES)}
            | {token: index for token, index in others.items() if index not in special.values()},
            special_tokens=dict(special),
        )

    return get_encoding


def _with_empty_list(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def list_(github: str, *args: Any, **kwargs: Any) -> list[str]:
        try:
            found: list[str] = original(github, *args, **kwargs)
            return found
        except OSError:
            recorder.warn(f"the models of `{github}` are not listed: it is not on this machine")
            return []

    return list_


def _with_usual_font(original: Any) -> Any:
    @functools.wraps(original)
    def download_url_to_file(url: str, dst: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(url, dst, *args, **kwargs)
        except OSError:
            if not url.lower().endswith(_FONTS):
                raise
            with contextlib.suppress(ImportError, OSError):
                font = Path(importlib.import_module("matplotlib").get_data_path(), _FONT).read_bytes()
                Path(dst).write_bytes(font)

    return download_url_to_file
