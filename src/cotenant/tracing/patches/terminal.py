"""Questions to a terminal, a screen and another machine's limits, which a traced script does not have.

The terminal is 80 x 24, as `shutil` assumes: scripts ask `os.get_terminal_size` or the program `stty`, to draw a bar of
progress. OpenCV shows nothing, and no key is pressed. A limit above the highest one of this machine, such as that of
open files, is not set.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from typing import Any

from cotenant.tracing.patches.registry import AbsenceContext, Entry, Patch, Phase, patch_attributes

_COLUMNS, _LINES = 80, 24
"""Source: Lib/shutil.py, `get_terminal_size`."""


_NO_KEY = -1
_OF_WINDOWS = {
    **dict.fromkeys(("imshow", "namedWindow", "resizeWindow", "moveWindow", "destroyWindow", "destroyAllWindows")),
    **dict.fromkeys(("waitKey", "waitKeyEx", "pollKey"), _NO_KEY),
}


def patches(context: AbsenceContext) -> list[Entry]:
    """The function, the start of the program, and windows."""
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
        Patch(
            target="resource:setrlimit", phase=Phase.LIBRARIES, replacement=_up_to_the_hard_limit, wraps=True,
            reason="The machine of the job has limits of its own.",
            source="Modules/resource.c, `resource_setrlimit_impl`",
        ),
        *patch_attributes(
            "cv2", {name: functools.partial(_nothing, answer) for name, answer in _OF_WINDOWS.items()},
            phase=Phase.LIBRARIES, reason="A build without a screen raises.",
            source="opencv/modules/highgui/src/window.cpp",
        ),
    ]  # fmt: skip


def _nothing(answer: Any, *args: Any, **kwargs: Any) -> Any:
    return answer


def _with_usual_size(original: Any) -> Any:
    @functools.wraps(original)
    def get_terminal_size(*args: Any) -> os.terminal_size:
        try:
            size: os.terminal_size = original(*args)
        except OSError:
            return os.terminal_size((_COLUMNS, _LINES))
        return size

    return get_terminal_size


def _up_to_the_hard_limit(original: Any) -> Any:
    @functools.wraps(original)
    def setrlimit(*args: Any) -> None:
        with contextlib.suppress(ValueError, OSError):
            original(*args)

    return setrlimit


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
