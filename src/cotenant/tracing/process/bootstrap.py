"""First file of the tracing process: makes `cotenant` importable for the job's own Python, then starts the session.

The job's environment need not have cotenant installed. A finder makes only this package importable: the folder that
contains it may be the site-packages of another Python. Run as `python bootstrap.py REQUEST ANSWER`, or as
`python bootstrap.py --serve FD` to become a fork server.

A file of its own: the job's Python runs it by its path, before anything of this package can be imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.abc
import importlib.util
import os
import pathlib
import signal
import sys
from importlib.machinery import ModuleSpec

_PACKAGE = pathlib.Path(__file__).resolve().parents[2]


class _CotenantFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "cotenant":
            return None
        return importlib.util.spec_from_file_location(
            name, str(_PACKAGE / "__init__.py"), submodule_search_locations=[str(_PACKAGE)]
        )


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Source: prctl(2), PR_SET_PDEATHSIG."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(4)


def _spare_other_processes() -> None:
    """Have the kernel end this process before others where memory runs short. Source: proc_pid_oom_score_adj(5)."""
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/oom_score_adj").write_text("800\n")


if __name__ == "__main__":
    if sys.version_info < (3, 10):
        sys.stderr.write("tracing needs Python 3.10 or newer, this is %d.%d\n" % sys.version_info[:2])
        sys.exit(3)
    _end_with_parent()
    _spare_other_processes()
    sys.path.pop(0)
    sys.meta_path.insert(0, _CotenantFinder())
    from cotenant.tracing.process.garbage_collection import collect_rarely

    collect_rarely()
    if sys.argv[1] == "--serve":
        from cotenant.tracing.process.forkserver import serve

        serve(int(sys.argv[2]))
    from cotenant.tracing.process.session import main

    main(sys.argv[1], sys.argv[2])
