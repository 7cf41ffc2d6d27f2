"""An interpreter and a path with which other users of this machine run cotenant: for the soak and its attackers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys


def public_python() -> str | None:
    """As root, an interpreter that other users can run; None if there is none, or without root."""
    if os.geteuid() != 0:
        return None
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [python, "-c", "import cotenant.simserver.fake_job"]
        env = {"PATH": os.defpath, "PYTHONPATH": python_path()}
        with contextlib.suppress(OSError):
            other = {"user": "nobody", "group": "nogroup", "cwd": "/", "env": env}
            if subprocess.run(command, capture_output=True, check=False, **other).returncode == 0:
                return python
    return None


def python_path() -> str:
    """PYTHONPATH on which the jobs find cotenant and its dependencies."""
    return os.pathsep.join(path for path in sys.path if path.endswith(("site-packages", "src")))
