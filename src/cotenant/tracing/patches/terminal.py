"""Questions to a terminal, which a traced script does not have: its size is 80 x 24, as `shutil` assumes.

Scripts ask `os.get_terminal_size` or the program `stty`, to draw a bar of progress.
"""

from __future__ import annotations

import functools
import os
import shlex
from typing import Any

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_COLUMNS, _LINES = 80, 24
"""Source: Lib/shutil.py, `get_terminal_size`."""


def patches(context: PatchContext) -> list[Patch]:
    """The function, and the start of the program."""
    reason = "A traced script has no terminal."
    return [
        Patch(
            target="os:get_terminal_size", phase=Phase.LIBRARIES, replacement=_with_usual_size, wraps=True,
            reason=reason, source="Modules/posixmodule.c, `os_get_terminal_size_impl`",
        ),
        Patch(
            target="subprocess:Popen.__init__", phase=Phase.LIBRARIES, replacement=_answering_stty, wraps=True,
            reason=reason, source="Lib/subprocess.py, `Popen.__init__`", stacks=True,
        ),
    ]  # fmt: skip


def _with_usual_size(original: Any) -> Any:
    @functools.wraps(original)
    def get_terminal_size(*args: Any) -> os.terminal_size:
        try:
            size: os.terminal_size = original(*args)
        except OSError:
            return os.terminal_size((_COLUMNS, _LINES))
        return size

    return get_terminal_size


def _answering_stty(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, args: Any, *more: Any, **kwargs: Any) -> None:
        if command_words(args)[:2] == ["stty", "size"]:
            text = f"{_LINES} {_COLUMNS}"
            args = f"echo {text}" if isinstance(args, (str, bytes)) else ["echo", text]
        original(self, args, *more, **kwargs)

    return init


def command_words(args: Any) -> list[str]:
    """The words of a command as `subprocess` takes it; none where they cannot be split."""
    try:
        if isinstance(args, (str, bytes)):
            return shlex.split(os.fsdecode(args))
        if isinstance(args, os.PathLike):
            return [os.fsdecode(args)]
        return [os.fsdecode(word) for word in args]
    except (ValueError, TypeError):
        return []
