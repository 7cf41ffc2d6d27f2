"""What to do about errors of packages: one that the script's own folders have, that is not built, or that finds no GPU.

A module of its own: WHY it failed follows from the environment, not from the script's traceback.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cotenant.tracing.patches import null_packages
from cotenant.tracing.process import script_traceback, simulator_hints, version_hints

_REQUESTED_GPUS = re.compile(r"requested gpu: \[(\d+(?:, ?\d+)*)\]")
"""Source: lightning/fabric/utilities/device_parser.py, `_sanitize_gpu_ids`."""
_ABSENT_GPU = re.compile(r"invalid device (?:id|ordinal)", re.IGNORECASE)
"""Source: torch/cuda/__init__.py, `get_device_properties`; CUDA's text for `cudaErrorInvalidDevice`."""
_REAL_KERNEL = re.compile(r"found no nvidia driver|torch not compiled with cuda", re.IGNORECASE)
"""Source: torch/cuda/__init__.py, `_lazy_init`; c10/cuda/CUDAFunctions.cpp, `device_count_ensure_non_zero`."""
_COMPILED = frozenset((".pyx", ".c", ".cc", ".cpp", ".cu", ".rs"))
_OUTER_FOLDERS = 3  # in which a script's own package may lie


def environment_hint(error: BaseException) -> str | None:
    """The hint about an error, or about the cause that it announces; of packages, or of how the script was started."""
    for raised in (error, script_traceback.announced_cause(error)):
        if hint := hint_for(raised) or script_traceback.hint_for(raised):
            return hint
    return None


def hint_for(error: BaseException) -> str | None:
    """The hint; None for an error of another kind."""
    if isinstance(error, ModuleNotFoundError):
        if hint := _submodule_hint(error.name or ""):
            return hint
        if own := _own_package(error.name or ""):
            return f"`{own}` has it: install that (`pip install -e`), or set `PYTHONPATH` to its folder"
        return version_hints.hint_for(error)
    if isinstance(error, ImportError) and (hint := _first_import_hint(error) or _namespace_hint(error)):
        return hint
    if "Null" in str(error) and (absent := null_packages.provided()):
        names = ", ".join(f"`{name}`" for name in absent)
        return (
            f"{names}: not installed, and the script computes with what it gives: install it, or name the job's Python"
        )
    if hint := version_hints.hint_for(error):
        return hint
    if hint := simulator_hints.hint_for(error):
        return hint
    if found := _REQUESTED_GPUS.search(str(error)):
        count = 1 + max(map(int, found[1].split(",")))
        return f"the script wants {count} GPUs: give it so many with `--gpus {count}`"
    if _ABSENT_GPU.search(str(error)):
        return "the script names a GPU that it does not have: give it as many as it wants with `--gpus N`"
    if _REAL_KERNEL.search(str(error)):
        return (
            "an operator there is not modeled, such as one of sparse CSR tensors, and looked for a real GPU: report it "
            "to the authors of cotenant"
        )
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "a process that the script started has ended: `--show-output` shows its error"
    return None


def _submodule_hint(name: str) -> str | None:
    """About a module that its package lacks; None where the package itself is missing."""
    package, _, last = name.rpartition(".")
    folders = _folders_of(package)
    if not folders:
        return None
    source = next((path for folder in folders for path in Path(folder).glob(f"{last}.*")), None)
    if source is not None and source.suffix in _COMPILED:
        return (
            f"`{source}` is not compiled: build it as its repository says, often `python setup.py build_ext --inplace`"
        )
    return (
        f"`{package}` is there without it: is it made by a build, or is the script for another version of `{package}`?"
    )


def _folders_of(package: str) -> list[str]:
    """The folders of a package; none of one that is missing.

    A package that failed while it was imported, since one of its own modules is missing, is loaded no longer.
    """
    if not package:
        return []
    loaded = getattr(sys.modules.get(package), "__path__", None)
    parts = package.split(".")
    found = [str(path) for entry in sys.path if (path := Path(entry or ".", *parts, "__init__.py")).is_file()]
    return list(loaded) if loaded is not None else [str(Path(path).parent) for path in found[:1]]


def _first_import_hint(error: ImportError) -> str | None:
    """About an import that a script tries in a second way, such as a relative one, after the first has failed."""
    first = error.__context__
    if error.__cause__ is not None or not isinstance(first, ModuleNotFoundError) or not first.name:
        return None
    hint = hint_for(first) or "is it built, or installed, for this Python?"
    return f"the import before failed for `{first.name}`, which is missing: {hint}"


def _namespace_hint(error: ImportError) -> str | None:
    """About a folder that is imported as if it were the package that is built from it."""
    found = sys.modules.get(error.name or "")
    if found is None or getattr(found, "__file__", None) is not None or not hasattr(found, "__path__"):
        return None
    folder = next((path for path in map(Path, found.__path__) if any(path.glob("setup.*"))), None)
    return (
        None
        if folder is None
        else f"`{folder}` is not the package, which is built from it: install that (`pip install {folder}`)"
    )


def _own_package(name: str) -> str | None:
    """The folder or file in the working folder, or around it, that a missing module is; None without one."""
    first = name.partition(".")[0]
    folder = Path.cwd()
    for place in (folder, *list(folder.parents)[:_OUTER_FOLDERS]):
        for path in (Path(place, first), Path(place, "src", first), Path(place, f"{first}.py")):
            if first and path != folder and (path.is_file() if path.suffix == ".py" else any(path.glob("*.py"))):
                return str(path)
    return None
