"""An interpreter and a path with which other users of this machine run cotenant: for attackers and second users."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

NOBODY_UID = NOGROUP_GID = 65534
"""Debian, Red Hat and systemd agree on it."""


def public_python() -> str | None:
    """As root, an interpreter that other users can run with `python_path`; None if there is none, or without root."""
    if os.geteuid() != 0:
        return None
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            done = subprocess.run(
                [python, "-c", "import cotenant.cli.main, cotenant.simserver.fake_job, uvicorn"],
                env={"PATH": os.defpath, "PYTHONPATH": python_path()},
                cwd="/",
                user=NOBODY_UID,
                group=NOGROUP_GID,
                extra_groups=[],
                capture_output=True,
                check=False,
            )
            if done.returncode == 0:
                return python
    return None


def python_path() -> str:
    """PYTHONPATH on which that interpreter finds cotenant and its dependencies."""
    return os.pathsep.join(path for path in sys.path if path.endswith(("site-packages", "src")))
