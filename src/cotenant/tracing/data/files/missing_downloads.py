"""Downloads of data that a script makes before it reads them, and archives that it unpacks: nothing is fetched.

What the script then reads is missing, and is made like any other missing file. A text, or rows of JSON, that `requests`
fetches, and a list of classes of the Hugging Face hub, are synthetic at once.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import CLASSES, SyntheticSample, first_image, first_text
from cotenant.tracing.data.sample_paths import MISSING_FILE
from cotenant.tracing.data.text import text_contents
from cotenant.tracing.patches import missing_weights
from cotenant.tracing.patches.registry import Patch, Phase

_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_CLASS_LIST = "id2label.json"
_FUNCTIONS = (
    ("urllib.request:urlretrieve", "Lib/urllib/request.py, `urlretrieve`"),
    ("torch.hub:download_url_to_file", "torch/hub.py, `download_url_to_file`"),
    *(
        (f"torchvision.datasets.utils:{name}", f"torchvision/datasets/utils.py, `{name}`")
        for name in ("download_url", "download_and_extract_archive", "extract_archive")
    ),
    ("gdown:download", "gdown/download.py, `download`"),
    ("wget:download", "wget.py, `download`"),
)


def patches(samples: Sequence[SyntheticSample], warn: Callable[[str], None]) -> list[Patch]:
    """What downloads and unpacks."""
    common: dict[str, Any] = {
        "phase": Phase.DATA, "wraps": True, "stacks": True, "reason": "A trace has no network.",
    }  # fmt: skip
    text = first_text(samples)
    texts = [
        Patch(
            target="requests:get", replacement=functools.partial(_getting, text, warn),
            source="requests/api.py, `get`", **common,
        )
    ] if text is not None else []  # fmt: skip
    classes = (first_image(samples) or samples[0]).classes if samples else CLASSES
    return [
        *texts,
        Patch(
            target="huggingface_hub.file_download:hf_hub_download", also_in="huggingface_hub",
            replacement=functools.partial(_naming_classes, classes, warn),
            source="huggingface_hub/file_download.py, `hf_hub_download`", **common,
        ),
        *(
            Patch(target=target, replacement=functools.partial(_fetching, warn), source=source, **common)
            for target, source in _FUNCTIONS
        ),
        Patch(
            target="tarfile:open", replacement=_opening_archive, source="Lib/tarfile.py, `TarFile.open`", **common
        ),
    ]  # fmt: skip


def _fetching(warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except OSError:
            if not script_location.is_called_by_user():
                raise
            url, targets = missing_weights.source_and_targets(args, kwargs)
            warn(f"`{getattr(url, 'full_url', url)}`")
            return missing_weights.download_result(original, targets[0]) if targets else None

    return fetch


class _EmptyArchive:
    """An archive that was not fetched: it has no members."""

    def __enter__(self) -> _EmptyArchive:
        return self

    def __exit__(self, *args: object) -> None:
        return

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: []


def _opening_archive(original: Any) -> Any:
    @functools.wraps(original)
    def open_(name: Any = None, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        try:
            return original(name, mode, *args, **kwargs)
        except MISSING_FILE:
            is_archive = isinstance(name, (str, os.PathLike)) and Path(name).suffix.lower() in _ARCHIVES
            if not is_archive or not mode.startswith("r"):
                raise
            return _EmptyArchive()

    return open_


def _naming_classes(classes: int, warn: Callable[[str], None], original: Any) -> Any:
    """`hf_hub_download`; as many numbers as the sample has classes for the list of a data set's classes.

    Such a list, `id2label.json` in a data set or `ade20k-id2label.json` in `huggingface/label-files`, maps numbers to
    names.
    """

    @functools.wraps(original)
    def hf_hub_download(repo_id: str, filename: str = "", *args: Any, **kwargs: Any) -> Any:
        try:
            return original(repo_id, filename, *args, **kwargs)
        except OSError:
            is_list = kwargs.get("repo_type") == "dataset" and filename.endswith(_CLASS_LIST)
            if not is_list or not script_location.is_called_by_user():
                raise
        warn(f"`{repo_id}/{filename}`")
        path = Path(tempfile.mkdtemp(), Path(filename).name)
        path.write_text(json.dumps({str(number): str(number) for number in range(classes)}))
        return str(path)

    return hf_hub_download


def _getting(text: SyntheticSample, warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def get(url: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(url, *args, **kwargs)
        except OSError:
            # A library fetches parts of a model: a vocabulary is not any text.
            is_wanted = script_location.is_called_by_user() and "vocab" not in str(url)
            reader = script_location.calling_frame()
            content = text_contents.fetched(str(url), text.classes, reader) if is_wanted else None
            if content is None:
                raise
        warn(f"`{url}`")
        response = importlib.import_module("requests.models").Response()
        response.status_code, response._content, response.encoding = 200, content, "utf-8"
        response._content_consumed = True  # else `iter_content` reads from a connection
        return response

    return get
