"""Workload keys: jobs with equal keys, derived from their commands, run the same workload.

Two runs of one script with the same settings use the same memory and load a GPU the same way. The key omits options
without effect on that: seeds, paths, run names, the learning rate and similar. The path of the script is part of the
key, so `train.py` of two projects are two workloads.
"""

from __future__ import annotations

import re
import shlex
from functools import lru_cache

from cotenant.core.job import JobSpec

_IGNORED_OPTION = re.compile(
    r"-{1,2}(?:[a-z]+[-_.])?(?:seed|random[-_]state|lr|learning[-_]rate|weight[-_]decay|wd|momentum|warmup(?:[-_]steps)?"
    r"|out|output|output[-_]dir|out[-_]dir|log|log[-_]dir|logdir|save|save[-_]dir|checkpoint[-_]dir|ckpt[-_]dir|run[-_]name"
    r"|exp[-_]name|name|tag|wandb[-_]\w+|port|master[-_]port)",
    re.IGNORECASE,
)
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_LAUNCHER = re.compile(r"(?:.*/)?(?:accelerate|deepspeed|torchrun)")
SAVING_LAUNCHER = ["-m", "cotenant.checkpoint"]
"""Runs the command behind it: `cotenant/checkpoint/__main__.py`."""
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")


def workload_key(spec: JobSpec) -> str:
    """The workload key of `spec`; independent of GPUs, users and limits."""
    return _key(spec.command, spec.workdir)


@lru_cache(maxsize=4096)
def _key(command: tuple[str, ...], workdir: str) -> str:
    words = _unwrapped(command)
    parts: list[str] = []
    script = False
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif index == 0 and _LAUNCHER.fullmatch(word):  # behind `cotenant.checkpoint` it has no folder
            parts.append(word.rpartition("/")[2])
        elif index == 0 and _PYTHON.fullmatch(word):
            parts.append("python")
        elif not script and word.endswith(".py"):
            script = True
            parts.append(_absolute(word, workdir))
        elif index > 0 and _IGNORED_OPTION.fullmatch(word.partition("=")[0]):
            following = words[index + 1] if index + 1 < len(words) else "-"
            skip = "=" not in word and not _is_option(following)
        else:
            parts.append(_without_folder(word, first=index == 0))
    return shlex.join(parts) if script else f"{shlex.join(parts)} in {workdir}"


def _unwrapped(command: tuple[str, ...]) -> list[str]:
    """The words of the command inside `sh -c "..."` and behind `python -m cotenant.checkpoint`.

    Leading assignments of environment variables are left out.
    """
    words = list(command)
    if len(words) >= 3 and _SHELL.fullmatch(words[0]) and words[1].startswith("-") and words[1].endswith("c"):
        try:
            words = shlex.split(words[2])
        except ValueError:  # unbalanced quote: use the text as it is
            return words
    while words and _SETTING.match(words[0]):
        del words[0]
    while len(words) > 3 and _PYTHON.fullmatch(words[0]) and words[1:3] == SAVING_LAUNCHER:
        del words[:3]  # a job that can be moved is the same work
    return words


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[0-9.].*", word)


def _absolute(path: str, workdir: str) -> str:
    return path if path.startswith("/") else f"{workdir.rstrip('/')}/{path.removeprefix('./')}"


def _without_folder(word: str, *, first: bool) -> str:
    """`word` with a path reduced to its last part: `/scratch/ann/imagenet` and `/data/imagenet` are the same data."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if "/" in value and not first and "://" not in value:
        value = value.rstrip("/").rpartition("/")[2]
    return f"{option}{equals}{value}"
