"""Which jobs do the same work: a key that is equal for them, made from the command.

Two runs of one script with the same settings take the same memory and act the same on a GPU. What tells them apart
without making a difference there is left out: seeds, places on disk, names of runs, the learning rate and its like.
The script itself counts with its place, so that `train.py` of two projects are two workloads.
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
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")


def workload_key(spec: JobSpec) -> str:
    """The key of what `spec` runs; says nothing of GPUs, users or limits."""
    return _key(spec.command, spec.workdir)


@lru_cache(maxsize=4096)
def _key(command: tuple[str, ...], workdir: str) -> str:
    words = _unwrapped(command)
    kept: list[str] = []
    script = False
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif index == 0 and _PYTHON.fullmatch(word):
            kept.append("python")
        elif not script and word.endswith(".py"):
            script = True
            kept.append(_absolute(word, workdir))
        elif index > 0 and _IGNORED_OPTION.fullmatch(word.partition("=")[0]):
            following = words[index + 1] if index + 1 < len(words) else "-"
            skip = "=" not in word and not _is_option(following)
        else:
            kept.append(_without_place(word, first=index == 0))
    if not script:
        kept.append(f"in {workdir}")
    return shlex.join(kept)


def _unwrapped(command: tuple[str, ...]) -> list[str]:
    """The words that matter of `sh -c "..."`, without settings of the environment in front."""
    words = list(command)
    if len(words) >= 3 and _SHELL.fullmatch(words[0]) and words[1].startswith("-") and words[1].endswith("c"):
        try:
            words = shlex.split(words[2])
        except ValueError:  # an open quote: the text as it is
            return words
    while words and _SETTING.match(words[0]):
        del words[0]
    return words


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[0-9.].*", word)


def _absolute(path: str, workdir: str) -> str:
    return path if path.startswith("/") else f"{workdir.rstrip('/')}/{path.removeprefix('./')}"


def _without_place(word: str, *, first: bool) -> str:
    """A path counts by its last part: the data set `/scratch/ann/imagenet` is the one of `/data/imagenet`."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if "/" in value and not first and "://" not in value:
        value = value.rstrip("/").rpartition("/")[2]
    return f"{option}{equals}{value}"
