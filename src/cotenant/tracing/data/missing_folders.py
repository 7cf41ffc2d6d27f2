"""Data that a script's arguments name and that do not exist. Folders are made empty, in the overlay.

Scripts check that a folder is there before they load from it. Only with `--synthetic-data`. Needs no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cotenant.tracing.sandbox.overlay import Overlay

_DATA_OPTION = re.compile(r"data|root|folder|dir|path|coco|imagenet|images?|train|val|test", re.IGNORECASE)
_VERSION = re.compile(r"\.\d+/*$")
"""At the end of a folder's name, where other names have a suffix: `Market-1501-v15.09.15`."""
_FOLDER_OPTION = re.compile(r"dir|path|root|folder", re.IGNORECASE)
"""Options whose value is a path, also a relative one; that of another, such as `--dataset`, may be a hub's name."""
_DATA_FOLDER_OPTION = re.compile(r"data[_-]?(dir|root|folder)", re.IGNORECASE)
"""Options whose value is a folder of data, also one word: `--instance_data_dir=dog`."""
_OTHER_OPTION = re.compile(
    r"out|save|log|resume|ckpt|check|weight|pretrain|cache|model|token|work|exp|run|conf|name|repo|tmp|hub|vae|clip"
    r"|encoder|unet|adapter|lora|backbone|teacher|processor",
    re.IGNORECASE,
)
"""Options whose folder is written to, or is no folder of data: a hub's name, a checkpoint."""


def make_missing(overlay: Overlay, arguments: Sequence[str]) -> list[str]:
    """Make the folders that are missing; their paths, as the script writes them."""
    made = []
    for path in data_folders(arguments):
        full = overlay.path_of(os.path.expanduser(path))  # noqa: PTH111 - of a text
        if full is not None and overlay.captures_all and not overlay.exists(full):
            Path(overlay.above(full)).mkdir(parents=True, exist_ok=True)
            made.append(path)
    return made


def data_folders(arguments: Sequence[str]) -> Iterator[str]:
    """Arguments that look like a folder of data."""
    for name, value in _values(arguments):
        if Path(value).suffix and not _VERSION.search(value):
            continue
        is_path = _is_path(value) or ("/" in value and _FOLDER_OPTION.search(name)) or _DATA_FOLDER_OPTION.search(name)
        if is_path and (not name or _DATA_OPTION.search(name)):
            yield value


def is_named_file(path: str, arguments: Sequence[str]) -> bool:
    """Whether an argument names this file as data, as in `train.py shakespeare.txt`."""
    return any(path == os.path.expanduser(value) for _, value in _values(arguments))  # noqa: PTH111 - a text


def is_named(path: str, arguments: Sequence[str]) -> bool:
    """Whether an argument names this file, as data or as something else."""
    return any(path in (word, word.partition("=")[2]) for word in arguments)


def _values(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Values of options, with their names, and arguments without one, but for what is no data."""
    option = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if word.startswith("-") and not equals:
            option = word
            continue
        if not equals:
            name, value = option, word
        option = ""
        if value and not _OTHER_OPTION.search(name):
            yield name, value


def is_missing_or_empty(folder: str) -> bool:
    """Whether a folder is absent, or was made here."""
    path = Path(folder)
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def _is_path(value: str) -> bool:
    """Whether a value is a path: absolute, below `.` or `~`, or below a folder whose name begins with `data`."""
    first = value.split("/", maxsplit=1)[0].lower()
    return value.startswith(("/", "./", "../", "~/")) or first.startswith("data")
