"""Modules that only some of the simulator needs."""

from __future__ import annotations

import importlib
from typing import Any

from cotenant.core.errors import CotenantError


def optional_module(module: str, what_needs: str) -> Any:
    """`module` of numpy or scipy; `what_needs` begins the sentence told without it, as in `such bounds need`.

    Raises:
        CotenantError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CotenantError(f"{what_needs} numpy and scipy", hint="pip install 'cotenant[sim]'") from error
