"""The provenance of a trace: the source files that the script imported, and the settings in force at its end."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from cotenant.core.trace import TraceHeader
from cotenant.tracing.loaded_modules import loaded_later, note_loaded

SETTINGS = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "TORCH_CUBLAS_WORKSPACE_CACHE",
    "CUDA_MODULE_LOADING",
)
"""Environment variables that decide how a trace is replayed, not what is in it. A script may set them itself."""

_SITE_NAMES = ("site-packages", "dist-packages")
_preloaded: dict[str, str] = {}  # the source files of the modules when `note_preloaded` was called, by module


def with_provenance(header: TraceHeader) -> TraceHeader:
    """The header with `sources`, `site_folders` and `settings`.

    Sources are imported files that are neither of Python, nor of an installed package, nor ours.
    """
    sites = site_folders(sys.path)
    return replace(
        header,
        sources=tuple((path, file_digest(Path(path))) for path in _imported(sites)),
        site_folders=tuple(sites),
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
    )


def site_folders(path: Iterable[str]) -> list[str]:
    """The folders of installed packages among the entries of `sys.path`."""
    return sorted({entry for entry in path if Path(entry).name in _SITE_NAMES and Path(entry).is_dir()})


def file_digest(path: Path) -> str | None:
    """Identifies the content of a file; None if it cannot be read.

    SHA-256 of a Python file or notebook; size and modification time of any other, since extension modules may be large.
    """
    try:
        if path.suffix in (".py", ".ipynb"):
            return hashlib.sha256(path.read_bytes()).hexdigest()
        stat = path.stat()
    except OSError:
        return None
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def note_preloaded() -> None:
    """Remember the sources among the modules that are loaded now: a look at each in a fork would copy its page."""
    global _preloaded
    _preloaded = _sources(list(sys.modules), site_folders(sys.path))
    note_loaded()


def _imported(sites: list[str]) -> list[str]:
    found = _sources(loaded_later(), sites)
    return sorted({*found.values(), *(path for name, path in _preloaded.items() if name in sys.modules)})


def _sources(names: Collection[str], sites: list[str]) -> dict[str, str]:
    """The source files of those of these modules that are neither of Python, nor of an installed package, nor ours."""
    installed = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *sites]
    installed.append(str(Path(__file__).resolve().parents[2]))
    roots = tuple(folder.rstrip(os.sep) + os.sep for folder in installed)
    found = {}
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        # Nearly all of some thousand modules are installed: no path of theirs is taken apart.
        if isinstance(file, str) and file and not (file.startswith(roots) and os.pardir not in file):
            path = os.path.abspath(file)  # noqa: PTH100 - `resolve` would follow links out of an installed package
            if not path.startswith(roots) and Path(path).is_file():
                found[name] = path
    return found
