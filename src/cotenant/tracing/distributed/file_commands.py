"""Commands that only make files: `mkdir`, `touch`, `cp` and `cat ... > file`, done by Python's functions.

A program of its own writes no file of the trace: the script would not find what `cat a.txt b.txt > list.txt` wrote.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotenant.tracing.patches.terminal import command_words
from cotenant.tracing.sandbox.overlay import MAX_COPIED_BYTES

_EXPANDED = re.compile(r"[$`{}\n]")
"""What a shell replaces or separates, and this module does not."""
_PATTERN = re.compile(r"[*?\[]")
_OPERATORS = re.compile(r"[()<>|&;]+")
_FLAGS = {
    "mkdir": re.compile(r"-[pv]+|--parents"),
    "touch": re.compile(r"-[acm]+"),
    "cp": re.compile(r"-[aRrfvpdL]+|--recursive|--force"),
    "cat": re.compile(r"(?!)"),
}
"""Options that do not change what is made."""


def run_file_command(args: Any, cwd: Any) -> int | None:
    """Do what a command does to files; its exit code, or None for one that this module does not know.

    `args` and `cwd` are as `subprocess` takes them. Missing parents of a folder are made, as with `mkdir -p`.
    """
    folder = Path(os.fsdecode(cwd) if cwd is not None else "")
    words, target, mode = _redirected(args)
    name, *others = words or [""]
    if name not in _FLAGS or (target is not None) != (name == "cat"):
        return None
    flags = [word for word in others if word.startswith("-")]
    paths = [folder / path for word in others if word not in flags for path in _paths(word, folder, args)]
    if len(paths) < (2 if name == "cp" else 1) or not all(_FLAGS[name].fullmatch(flag) for flag in flags):
        return None
    if name in ("cp", "cat") and sum(_sizes(paths)) > MAX_COPIED_BYTES:
        return None
    try:
        if name == "mkdir":
            for path in paths:
                path.mkdir(parents=True, exist_ok=True)
        elif name == "touch":
            for path in paths:
                path.touch()
        elif name == "cp":
            _copy(paths[:-1], paths[-1])
        elif target is not None:
            content = b"".join(path.read_bytes() for path in paths)
            with (folder / target).open(mode) as file:
                file.write(content)
    except OSError:
        return 0 if name == "mkdir" else 1  # of a folder that is there, few scripts read the status
    return 0


def _redirected(args: Any) -> tuple[list[str], str | None, str]:
    """The words of a command, the file that its output goes to, and how that is opened; no words of a longer one."""
    if not isinstance(args, (str, bytes)):
        return command_words(args), None, ""
    text = os.fsdecode(args)
    if _EXPANDED.search(text):
        return [], None, ""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return [], None, ""
    operators = [index for index, word in enumerate(words) if _OPERATORS.fullmatch(word)]
    if not operators:
        return words, None, ""
    if operators != [len(words) - 2] or words[-2] not in (">", ">>"):
        return [], None, ""
    return words[:-2], os.path.expanduser(words[-1]), "ab" if words[-2] == ">>" else "wb"  # noqa: PTH111 - of a text


def _paths(word: str, folder: Path, args: Any) -> list[str]:
    """The paths that a word of a command stands for: a shell replaces patterns."""
    path = os.path.expanduser(word)  # noqa: PTH111 - of a text
    is_pattern = isinstance(args, (str, bytes)) and _PATTERN.search(path)
    return sorted(glob.glob(path, root_dir=folder)) or [path] if is_pattern else [path]  # noqa: PTH207 - of a text


def _sizes(paths: list[Path]) -> Iterator[int]:
    for path in paths:
        files = (Path(top, name) for top, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
        yield from (file.stat().st_size for file in files if file.is_file())


def _copy(sources: list[Path], target: Path) -> None:
    for source in sources:
        place = target / source.name if target.is_dir() else target
        if source.is_dir():
            shutil.copytree(source, place, dirs_exist_ok=True)
        else:
            shutil.copy(source, place)
