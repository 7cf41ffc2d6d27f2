"""First file of the tracing process: makes `cotenant` importable for the job's own Python, then hands over.

The job's environment need not have cotenant installed. Only this package is added, nothing beside it: the folder
that holds it may be full of other packages of another Python. Run as `python bootstrap.py REQUEST ANSWER`, or, to wait
for scripts with torch loaded, as `python bootstrap.py --serve FD`.
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


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "cotenant":
            return None
        return importlib.util.spec_from_file_location(
            name, str(_PACKAGE / "__init__.py"), submodule_search_locations=[str(_PACKAGE)]
        )


def _end_with_parent() -> None:
    """Ask the kernel to end this process when the one that wants the answer ends, however that happens."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(4)


if __name__ == "__main__":
    if sys.version_info < (3, 10):
        sys.stderr.write("tracing needs Python 3.10 or newer, this is %d.%d\n" % sys.version_info[:2])
        sys.exit(3)
    _end_with_parent()
    sys.path.pop(0)
    sys.meta_path.insert(0, _Finder())
    if sys.argv[1] == "--serve":
        from cotenant.tracing.process.forkserver import serve

        serve(int(sys.argv[2]))
    from cotenant.tracing.process.session import main

    main(sys.argv[1], sys.argv[2])
