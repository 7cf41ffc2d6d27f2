"""Workspaces of the job's convolutions from the cuDNN of the job's own environment, queried without a GPU.

The query runs in its own process, which sees no GPU and has time limits (`worker_process`); answers are cached on disk
for each library and model of GPU. Where anything fails there is no answer but the reason, and the estimate continues.

cuDNN queries cublasLt for pointwise convolutions, and NVRTC and the driver for kernels that it compiles. Where these
find no device, it drops the engines: the worker loads the null GPU's first. Where they cannot be built, nothing is
queried: of 3,726 other answers of 9.20 (A100, RTX 3060, T4) 95 differ without them, 80 of 414 in float32 on a T4.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.trace import LibraryCall
from cotenant.core.units import MiB
from cotenant.estimators.cudnn.worker_process import MAX_CPU_S, TIMEOUT_S, run_worker
from cotenant.gpu_specs import GpuSpec
from cotenant.nullgpu.build import build_for_cudnn
from cotenant.nullgpu.device import cudnn_device, device_text
from cotenant.nullgpu.wheels import CUDA_MAJORS, NullGpuError, wheels_in
from cotenant.osutil import atomic
from cotenant.tracing.convolution_backend import runs_on_cudnn

_DTYPES = {"float32", "float16", "bfloat16"}
_ANSWERS = "4: lists of plans, always with the null GPU's libcublasLt, libnvrtc and libcuda"
"""Part of the name of cached answers: those of a query that was put in another way are not used."""
_MIN_VERSION = (9, 8)
_SKIPS_ENGINES = (2, 11)
"""A torch with engines that it skips (`worker._SKIPPED`); earlier ones were not looked at."""
_CACHE_BYTES = 4 * MiB
_WORKER = (sys.executable, "-m", "cotenant.estimators.cudnn.worker")
_GRAPH = "libcudnn_graph.so.9"
_SPATIAL = ("stride", "padding", "dilation")
_TRANSPOSED = {"conv_forward": "conv_dgrad", "conv_dgrad": "conv_forward", "conv_wgrad": "conv_wgrad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnWorkspaces:
    """Workspaces of one cuDNN for one compute capability.

    Called with a `LibraryCall`: bytes of the first plan, or None if unknown. With `cudnn.benchmark` torch runs the
    first one too where all are as fast.

    Attributes:
        version: as `cudnnGetVersion` gives it, such as 91002.
        found: workspaces of the plans of each query.
    """

    version: int
    capability: tuple[int, int]
    found: Mapping[str, Sequence[int]]

    def __call__(self, call: LibraryCall) -> int | None:
        return next(iter(self.plans(call)), None)

    def plans(self, call: LibraryCall) -> Sequence[int]:
        """Workspaces of all plans that torch builds for `call`, in cuDNN's order; empty if unknown."""
        query = query_of(call, self.capability)
        return () if query is None else self.found.get(_key(query), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnQuery:
    """Result of a query.

    Attributes:
        workspaces: what was answered; None: nothing was.
        failure: why calls have no answer, as a part of a sentence; empty: all that can be queried have one.
    """

    workspaces: CudnnWorkspaces | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnLibrary:
    """A cuDNN on this machine.

    Attributes:
        graph: its graph library.
        wheels: folder of NVIDIA's wheels beside it, the package `nvidia`; None: it came in another way.
        cublaslt: the library that it would load; None: unknown.
        skips_engines: whether the torch beside it skips engines for 3-D convolutions.
    """

    graph: Path
    wheels: Path | None = None
    cublaslt: Path | None = None
    skips_engines: bool = False


def version_text(version: int) -> str:
    """For people: `cuDNN 9.10.2` for 91002."""
    return f"cuDNN {version // 10_000}.{version // 100 % 100}.{version % 100}"


def query_of(call: LibraryCall, capability: tuple[int, int]) -> dict[str, Any] | None:
    """The query for `call`; None where torch would not use cuDNN.

    One-dimensional convolutions run with a height of 1, and a transposed one as the gradient of an ordinary one.
    """
    p: dict[str, Any] = dict(call.params)
    if p["dtype"] not in _DTYPES or not runs_on_cudnn(p, capability):
        return None
    x, w, y = (list(p[name]) for name in "xwy")
    spatial = {name: list(p[name]) for name in _SPATIAL}
    # Convolution.cpp, `view4d`: cuDNN has no 1-D convolutions.
    if len(x) == 3:
        x, w, y = ([*shape[:2], 1, shape[2]] for shape in (x, w, y))
        spatial = {name: [int(name != "padding"), *extents] for name, extents in spatial.items()}
    kind = call.kind
    if p.get("transposed"):
        # cudnn/ConvShared.cpp: `cudnn_convolution_transpose` calls the backward pass of an ordinary convolution.
        kind, x, y = _TRANSPOSED[kind], y, x
    return {
        "kind": kind,
        "dtype": p["dtype"],
        "channels_last": bool(p["channels_last"]),
        "tf32": bool(p.get("allow_tf32", True)),
        "deterministic": bool(p.get("deterministic")),
        "x": x,
        "w": w,
        "y": y,
        **spatial,
        **({"benchmark": True} if p.get("benchmark") else {}),
    }


def installed_cudnn(torch_folder: str) -> CudnnLibrary | None:
    """The cuDNN that the torch in `torch_folder` would load, if it can be queried: 9.8 or later, as a shared library.

    Searched where pip's wheels put it: beside torch, and in torch's own `lib`.
    """
    torch, site = Path(torch_folder), Path(torch_folder).parent
    for folder in (site / "nvidia" / "cudnn" / "lib", torch / "lib"):
        graph = folder / _GRAPH
        if graph.is_file():
            known = _header_version(folder.parent / "include")
            if known is not None and known < _MIN_VERSION:
                return None
            found = sorted(site.glob("nvidia/*/lib/libcublasLt.so.*")) or sorted(folder.glob("libcublasLt.so.*"))
            wheels = site / "nvidia" if folder.parents[1] == site / "nvidia" else None
            return CudnnLibrary(
                graph=graph,
                wheels=wheels,
                cublaslt=found[-1] if found else None,
                skips_engines=_torch_version(torch) >= _SKIPS_ENGINES,
            )
    return None


def _torch_version(torch: Path) -> tuple[int, int]:
    """Of the torch in folder `torch`; (0, 0) if its version file cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = re.search(r"__version__ = '(\d+)\.(\d+)", (torch / "version.py").read_text())
        return (int(found[1]), int(found[2])) if found else (0, 0)
    return 0, 0


def _header_version(include: Path) -> tuple[int, int] | None:
    try:
        text = (include / "cudnn_version.h").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    found = [re.search(rf"#define CUDNN_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")]
    return (int(found[0][1]), int(found[1][1])) if found[0] and found[1] else None


def query_cudnn(
    library: CudnnLibrary,
    gpu: GpuSpec,
    calls: Iterable[LibraryCall],
    *,
    folder: Path | None = None,
    libraries: Path | None = None,
    cpu_s: int = MAX_CPU_S,
    timeout_s: float = TIMEOUT_S,
    worker: Sequence[str] = _WORKER,
    preload: Sequence[Path] | None = None,
) -> CudnnQuery:
    """Workspaces of `calls`, as far as the library answers for them. Never raises.

    `folder`: cache of answers; None: no cache. `libraries`: cache of the libraries that are built for the query; None:
    `folder`. `cpu_s`, `timeout_s`: limits on the CPU time and the elapsed time of the query. `worker`: the program that
    loads the library. `preload`: libraries that it loads first; None: those of the null GPU.
    """
    capability = gpu.compute_capability
    queries = {_key(query): query for call in calls if (query := query_of(call, capability)) is not None}
    if not queries:
        return CudnnQuery()
    failure = ""
    try:
        device = _device_of(gpu, library)
        cache = _QueryCache(folder, library, device)
        version, found = cache.read()
        missing = [key for key in queries if key not in found]
        if missing:
            built = libraries or folder
            with _null_gpu(library, built) if preload is None else contextlib.nullcontext(preload) as paths:
                request = {
                    "graph": str(library.graph),
                    "preload": list(map(str, paths)),
                    "device": device,
                    "skips_engines": library.skips_engines,
                    "calls": [queries[key] for key in missing],
                }
                reply = run_worker(worker, request, device_text(gpu), cpu_s=cpu_s, timeout_s=timeout_s)
            fresh = {key: plans for key, plans in zip(missing, reply.plans, strict=True) if plans is not None}
            version, failure, found = reply.version or version, reply.failure, {**found, **fresh}
            if fresh:
                cache.write(version, found, {key: found[key] for key in queries if key in found})
    except (NullGpuError, OSError) as error:
        return CudnnQuery(failure=error.message if isinstance(error, NullGpuError) else str(error))
    answered = {key: found[key] for key in queries if key in found}
    workspaces = CudnnWorkspaces(version=version, capability=capability, found=answered) if answered else None
    return CudnnQuery(workspaces=workspaces, failure=failure)


def _device_of(gpu: GpuSpec, library: CudnnLibrary) -> dict[str, object]:
    """The properties of `gpu` for the worker; raises NullGpuError if the limits of its capability are not known."""
    suffix = "" if library.cublaslt is None else library.cublaslt.name.rsplit(".", 1)[-1]
    return cudnn_device(gpu, cuda_major=int(suffix) if suffix.isdigit() else CUDA_MAJORS[-1])


@contextlib.contextmanager
def _null_gpu(library: CudnnLibrary, folder: Path | None) -> Iterator[tuple[Path, ...]]:
    """Libraries to load before `library`, built in `folder` or for this one query.

    Raises:
        NullGpuError, OSError: they cannot be built.
    """
    if library.wheels is None:
        raise NullGpuError("its CUDA libraries are not in NVIDIA's wheels, from which the null GPU is built")
    with contextlib.ExitStack() as stack:
        wheels = wheels_in([library.wheels], python=str(library.wheels.parent))
        where = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cotenant-cudnn-")))
        yield build_for_cudnn(wheels, where)


def _key(question: Mapping[str, Any]) -> str:
    return json.dumps(question, sort_keys=True, separators=(",", ":"))


class _QueryCache:
    """Answers on disk: a file for each library and model of GPU, started anew above its limit."""

    def __init__(self, folder: Path | None, library: CudnnLibrary, device: Mapping[str, object]) -> None:
        self._path: Path | None = None
        with contextlib.suppress(OSError):
            if folder is not None:
                stat = library.graph.stat()
                which = f"{library.graph.resolve()} {stat.st_size} {stat.st_mtime_ns} {_key(device)} {_ANSWERS}"
                which += f" {library.skips_engines}"
                self._path = folder / f"{hashlib.sha256(which.encode()).hexdigest()[:24]}.json"

    def read(self) -> tuple[int, dict[str, list[int]]]:
        """Version and answers; empty if the file cannot be read, or belongs to another user."""
        try:
            if self._path is None or self._path.stat().st_uid != os.getuid():
                return 0, {}
            held = json.loads(self._path.read_text())
            return int(held["version"]), dict(held["bytes"])
        except (OSError, ValueError, LookupError, TypeError):
            return 0, {}

    def write(self, version: int, found: Mapping[str, list[int]], latest: Mapping[str, list[int]]) -> None:
        """Write all of `found`, or `latest` alone where that is above the limit."""
        texts = (json.dumps({"version": version, "bytes": workspaces}) for workspaces in (found, latest))
        text = next((candidate for candidate in texts if len(candidate) <= _CACHE_BYTES), None)
        if self._path is None or text is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic.write_text(self._path, text)
