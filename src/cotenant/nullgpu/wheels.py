"""The CUDA libraries that torch's wheel brought along, found without importing torch."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import CotenantError

CUDA_MAJORS = (12, 13)
MIN_CUDNN = (9, 8, 0)
"""From here on heuristics take the properties of a device in place of one (cuDNN 9.8 release notes)."""

STOOD_IN_FOR = ("cudart", "cublas", "cublasLt", "cudnn")
"""Libraries of the wheels that ours are loaded in place of, by their names without `lib`."""
OPTIONAL = ("cufft", "cusolver", "cusparse", "nvrtc")
"""Others of which ours are made where a wheel has them."""

_FIND = """
import importlib.util as util, json
def folder(name):
    found = util.find_spec(name)
    return list(found.submodule_search_locations or ()) if found else []
print(json.dumps({"torch": folder("torch"), "nvidia": folder("nvidia")}))
"""


class NullGpuError(CotenantError):
    """The null GPU cannot be used with this environment; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaWheels:
    """CUDA libraries of one Python environment.

    Attributes:
        python: its interpreter.
        cuda_major: 12 or 13.
        cudnn: version, e.g. (9, 20, 0).
        libraries: path by name, e.g. `cudart`; those of `STOOD_IN_FOR`, and of `OPTIONAL` those that are there.
        includes: folders with the headers of these versions.
    """

    python: str
    cuda_major: int
    cudnn: tuple[int, int, int]
    libraries: Mapping[str, Path]
    includes: tuple[Path, ...]


def find_wheels(python: str) -> CudaWheels:
    """The CUDA wheels of the environment of `python`.

    Raises:
        NullGpuError: it has no torch, no CUDA build of it, an unknown CUDA major or a cuDNN older than 9.8; or this is
            not Linux on x86-64, for which the stubs are written.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NullGpuError(f"the null GPU needs Linux on x86-64, found {platform.system()} on {platform.machine()}")
    done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise NullGpuError(f"`{python}` does not run: {done.stderr.strip() or f'exit code {done.returncode}'}")
    found = json.loads(done.stdout)
    if not found["torch"]:
        raise NullGpuError(f"`{python}` has no torch", hint="name the Python that the job runs in")
    return wheels_in([Path(folder) for folder in found["nvidia"]], python=python)


def wheels_in(folders: Sequence[Path], *, python: str) -> CudaWheels:
    """The CUDA wheels in `folders`, those of the package `nvidia` of the environment of `python`.

    Raises:
        NullGpuError: as `find_wheels`.
    """
    names = (*STOOD_IN_FOR, *OPTIONAL)
    libraries = {name: path for name in names if (path := _library(folders, name)) is not None}
    missing = [name for name in STOOD_IN_FOR if name not in libraries]
    if missing:
        absent = ", ".join(f"lib{name}" for name in missing)
        raise NullGpuError(
            f"torch of `{python}` has no CUDA libraries in wheels beside it: no {absent}",
            hint="install a CUDA build of torch 2.8 or newer by pip",
        )
    # `libcudart.so.13`, and `libcudart.so.11.0` in the wheels of CUDA 11.
    major = int(libraries["cudart"].name.partition(".so.")[2].partition(".")[0])
    if major not in CUDA_MAJORS:
        raise NullGpuError(f"torch of `{python}` is built for CUDA {major}, wanted one of {list(CUDA_MAJORS)}")
    includes = tuple(sorted({path for folder in folders for path in folder.glob("*/include")}))
    cudnn = _cudnn_version(includes)
    if cudnn < MIN_CUDNN:
        text = ".".join(map(str, cudnn))
        raise NullGpuError(
            f"cuDNN {text} cannot be queried without a GPU, wanted 9.8 or newer", hint="torch 2.8 brings it"
        )
    return CudaWheels(python=python, cuda_major=major, cudnn=cudnn, libraries=libraries, includes=includes)


def _library(folders: Sequence[Path], name: str) -> Path | None:
    found = [path for folder in folders for path in folder.glob(f"*/lib/lib{name}.so.*") if path.suffix[1:].isdigit()]
    return min(found, default=None)


def _cudnn_version(includes: tuple[Path, ...]) -> tuple[int, int, int]:
    """From `cudnn_version.h`, since a wheel's own number has a fourth part and may be repackaged."""
    for folder in includes:
        header = folder / "cudnn_version.h"
        if header.exists():
            found = dict(re.findall(r"#define CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+(\d+)", header.read_text()))
            return int(found["MAJOR"]), int(found["MINOR"]), int(found["PATCHLEVEL"])
    raise NullGpuError("cuDNN's wheel has no header `cudnn_version.h`", hint="reinstall the nvidia-cudnn wheel")
