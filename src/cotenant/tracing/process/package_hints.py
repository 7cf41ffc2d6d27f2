"""What to do about errors of packages: one that the script's own folders have, or of another version, or without GPUs.

A module of its own: WHY it failed follows from the environment, not from the script's traceback.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import traceback
import types
from pathlib import Path

from cotenant.tracing.process import simulator_hints

_REQUESTED_GPUS = re.compile(r"requested gpu: \[(\d+(?:, ?\d+)*)\]")
"""Source: lightning/fabric/utilities/device_parser.py, `_sanitize_gpu_ids`."""
_ABSENT_GPU = re.compile(r"invalid device (?:id|ordinal)", re.IGNORECASE)
"""Source: torch/cuda/__init__.py, `get_device_properties`; CUDA's text for `cudaErrorInvalidDevice`."""
_UNKNOWN_ARGUMENT = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '\w+'")
_COMPILED = frozenset((".pyx", ".c", ".cc", ".cpp", ".cu", ".rs"))
_OUTER_FOLDERS = 3  # in which a script's own package may lie


def hint_for(error: BaseException) -> str | None:
    """The hint; None for an error of another kind."""
    if isinstance(error, ModuleNotFoundError):
        if hint := _submodule_hint(error.name or ""):
            return hint
        own = _own_package(error.name or "")
        return own and f"`{own}` has it: install that (`pip install -e`), or set `PYTHONPATH` to its folder"
    if isinstance(error, (ImportError, AttributeError)):
        return _version_hint(error)
    if isinstance(error, TypeError) and (found := _UNKNOWN_ARGUMENT.search(str(error))):
        return _argument_hint(error, found[1])
    if hint := simulator_hints.hint_for(error):
        return hint
    if found := _REQUESTED_GPUS.search(str(error)):
        count = 1 + max(map(int, found[1].split(",")))
        return f"the script wants {count} GPUs: give it so many with `--gpus {count}`"
    if _ABSENT_GPU.search(str(error)):
        return "the script names a GPU that it does not have: give it as many as it wants with `--gpus N`"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "a process that the script started has ended: `--show-output` shows its error"
    return None


def _submodule_hint(name: str) -> str | None:
    """About a module that its package lacks; None where the package itself is missing."""
    package, _, last = name.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", None) if package else None
    if folders is None:
        return None
    source = next((path for folder in folders for path in Path(folder).glob(f"{last}.*")), None)
    if source is not None and source.suffix in _COMPILED:
        return (
            f"`{source}` is not compiled: build it as its repository says, often `python setup.py build_ext --inplace`"
        )
    return (
        f"`{package}` is there without it: is it made by a build, or is the script for another version of `{package}`?"
    )


def _own_package(name: str) -> str | None:
    """The folder or file in the working folder, or around it, that a missing module is; None without one."""
    first = name.partition(".")[0]
    folder = Path.cwd()
    for place in (folder, *list(folder.parents)[:_OUTER_FOLDERS]):
        for path in (Path(place, first), Path(place, "src", first), Path(place, f"{first}.py")):
            if first and (path.is_file() if path.suffix == ".py" else any(path.glob("*.py"))):
                return str(path)
    return None


def _version_hint(error: ImportError | AttributeError) -> str | None:
    """Which version of the package that lacks a name is installed; None where no installed package lacks one."""
    module = error.name if isinstance(error, ImportError) else getattr(error.obj, "__name__", None)
    package = (module or "").partition(".")[0]
    is_module = isinstance(error, ImportError) or isinstance(error.obj, types.ModuleType)
    return _installed(package) if package and is_module else None


def _argument_hint(error: TypeError, function: str) -> str | None:
    """Which version of a package is installed whose function lacks an argument; None for a function of the script.

    `function`: its qualified name; the innermost frame is the one that calls it.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    owner = function.partition(".")[0]
    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
        named = value.__mro__ if isinstance(value, type) else (value,) if isinstance(value, types.FunctionType) else ()
        found = next((item for item in named if item.__name__ == owner), None)
        if found is not None:
            return _installed(str(found.__module__).partition(".")[0])
    return None


def _installed(package: str) -> str | None:
    """The hint that names the installed version of a package; None where it is not one."""
    names = importlib.metadata.packages_distributions().get(package, [])
    if not names:
        return None
    version = importlib.metadata.version(names[0])
    return f"{names[0]} {version} is installed: is the script for another version? `--python PATH` names the job's own"
