"""The user's folder for what can be made again: traces, compiled code, libraries.

A module of its own, since the tracer, the estimators and the null GPU store such files.
Source: XDG Base Directory Specification 0.8, `XDG_CACHE_HOME`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(name: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """`cotenant/NAME` in `$XDG_CACHE_HOME`, or in `~/.cache`; None for a user without a home directory.

    It need not exist. A relative `$XDG_CACHE_HOME` is ignored, as the specification says.
    """
    root = env.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):
        home = env.get("HOME", "")
        if not os.path.isabs(home):
            return None
        root = f"{home}/.cache"
    return Path(root, "cotenant", name)
