"""The environment of a Python process that must not get this one's: a variable may hold a secret.

A module of its own, because the daemon and the web page start such processes and share no other code.
"""

from __future__ import annotations

import os

PYTHON_VARIABLES = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONHOME", "PYTHONPATH", "TZ", "VIRTUAL_ENV")
"""Variables that Python needs to find itself and its packages, and to read and print texts and times."""


def python_environment() -> dict[str, str]:
    """Those of `PYTHON_VARIABLES` that this process has."""
    return {name: os.environ[name] for name in PYTHON_VARIABLES if name in os.environ}
