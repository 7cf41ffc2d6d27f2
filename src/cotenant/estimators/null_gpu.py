"""Runs a script on its own CUDA build of torch, on a null GPU, in place of a trace (experimental).

What a trace runs eagerly or skips runs for real: code of `torch.compile`, Triton kernels, CUDA extensions. PyTorch's
memory history becomes the trace, so the estimate, its breakdown and the reports are made as of any other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.ports import EstimateRequest, TraceOptions
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import GiB, format_bytes
from cotenant.gpu_specs import GpuSpec
from cotenant.nullgpu import (
    NullGpuError,
    NullGpuLibraries,
    build_libraries,
    check_compiler,
    environment_of,
    find_wheels,
)
from cotenant.osutil.cache_folder import cache_folder
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.trace_script import trace_script
from cotenant.tracing.sandbox.restrictions import has_landlock

TIMEOUT_S = 900.0
"""Default time limit: the first compilation of a model takes minutes."""

_UNLIMITED_BYTES = 1024 * GiB
_TOLERANCE = 0.005
_WHY = {"compiled": "runs compiled code", "extension": "builds a CUDA extension"}
_NO_LANDLOCK = "this kernel has no Landlock, without which compilers could write anywhere"
_NOEXEC_HINT = "set `XDG_CACHE_HOME` to a folder on a file system that is mounted without `noexec`"
_LANDLOCK_HINT = (
    "use Linux 5.13 or newer, and in a container a seccomp profile that allows it, or `--no-sandbox`, which lets the "
    "script change files"
)
EXPERIMENTAL = (
    "experimental: PyTorch's CUDA build ran on a null GPU, and the bound was calibrated on traces, not on such runs"
)


class NullGpuRunner:
    """Runs programs on the null GPU; built libraries and compiled code are cached in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def libraries_for(self, python: str, *, sandbox: bool = True) -> NullGpuLibraries:
        """The libraries for the environment of an interpreter, built if they are not cached.

        Raises:
            TraceError: of kind `unsupported`: the null GPU cannot be used there.
        """
        try:
            libraries = build_libraries(find_wheels(python), self._folder)
        except NullGpuError as error:
            raise TraceError("unsupported", f"no null GPU: {error.message}", hint=error.hint) from error
        except OSError as error:
            text = f"no null GPU: its libraries cannot be written to `{self._folder}`: {error.strerror or error}"
            raise TraceError("unsupported", text, hint="set `XDG_CACHE_HOME` to a folder with some free MiB") from error
        if sandbox and not has_landlock():
            raise TraceError("unsupported", f"no null GPU: {_NO_LANDLOCK}", hint=_LANDLOCK_HINT)
        if _cannot_be_loaded_from(self._folder):
            text = f"no null GPU: libraries in `{self._folder}` cannot be loaded: its file system is mounted `noexec`"
            raise TraceError("unsupported", text, hint=_NOEXEC_HINT)
        return libraries

    def run(
        self,
        program: Program,
        libraries: NullGpuLibraries,
        request: EstimateRequest,
        spec: GpuSpec,
        *,
        fake_gpu: Mapping[str, Any],
        options: TraceOptions,
        env: Mapping[str, str],
        show_output: bool = False,
    ) -> MemoryTrace:
        """The memory history of `program` on the null GPU `spec` as a trace.

        A script that runs out of memory runs again without a limit, so that the answer says what it needs.

        Raises:
            TraceError: see its kinds.
            UsageError: the request is for several GPUs of one process.
        """
        if request.gpus > 1 and not program.launcher:
            raise UsageError(
                f"the null GPU is one GPU, and the script is to see {request.gpus}",
                hint="use `--backend trace`, or start one process per GPU: `-- torchrun --nproc-per-node N train.py`",
            )
        ends_s = time.monotonic() + request.timeout_s
        began_at_s = time.time() - 1.0  # clocks of file systems tick more coarsely

        def run_once(limit_bytes: int | None) -> MemoryTrace:
            own = environment_of(libraries, spec, env=env, limit_bytes=limit_bytes)
            null_gpu = {**self._caches(libraries), **own}
            left_s = ends_s - time.monotonic()
            return trace_script(
                program, gpu=fake_gpu, workdir=request.workdir, env=env, timeout_s=max(1.0, left_s),
                show_output=show_output, options=options, null_gpu=null_gpu,
            )  # fmt: skip

        try:
            return run_once(None)
        except TraceError as error:
            if error.kind != "out-of-memory":
                self._unlock_extensions(libraries, began_at_s)
                raise
        recorded = run_once(_UNLIMITED_BYTES)
        again = "the script ran out of memory, so that it ran again on a GPU of the same model without a limit"
        return replace(recorded, warnings=(*recorded.warnings, again))

    def _unlock_extensions(self, libraries: NullGpuLibraries, since_s: float) -> None:
        """Remove locks of extensions whose build ended with the run: later runs would wait for them without end.

        Source: torch/utils/file_baton.py. A build of another run that began since then loses its lock, too.
        """
        for lock in Path(self._caches(libraries)["TORCH_EXTENSIONS_DIR"]).rglob("lock"):
            with suppress(OSError):
                if lock.stat().st_mtime >= since_s:
                    lock.unlink()

    def _caches(self, libraries: NullGpuLibraries) -> dict[str, str]:
        """Folders for compiled code and extensions, so that a second estimate need not compile.

        Not the user's own: there no choice of a kernel by its speed may come from a GPU that runs nothing, and no
        extension for the architecture of another GPU.
        """
        folder = self._folder / f"compiled-{libraries.preload[0].parent.name}"
        made = {
            "TORCHINDUCTOR_CACHE_DIR": folder / "inductor",
            "TRITON_CACHE_DIR": folder / "triton",
            "TORCH_EXTENSIONS_DIR": folder / "extensions",
        }
        for path in made.values():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return {name: str(path) for name, path in made.items()}


def default_cache() -> Path:
    """`null-gpu` in the user's cache folder.

    Raises:
        TraceError: of kind `unsupported`: the user has no home directory.
    """
    folder = cache_folder("null-gpu")
    if folder is None:
        text = "no null GPU: its libraries need a folder, and there is no home directory"
        raise TraceError("unsupported", text, hint="set `XDG_CACHE_HOME` to a folder with some free MiB")
    return folder


def why_unavailable(python: str) -> tuple[str, str, str]:
    """Why the null GPU cannot be used in the environment of `python`, and what to do; empty texts if it can be.

    The third text says what it would use. Builds nothing.
    """
    try:
        wheels = find_wheels(python)
        check_compiler()
    except NullGpuError as error:
        return error.message, error.hint or "", ""
    if not has_landlock():
        return _NO_LANDLOCK, _LANDLOCK_HINT, ""
    cache = cache_folder("null-gpu")
    if cache is not None and _cannot_be_loaded_from(cache):
        return f"`{cache}` is on a file system that is mounted `noexec`", _NOEXEC_HINT, ""
    cudnn = ".".join(map(str, wheels.cudnn))
    return "", "", f"CUDA {wheels.cuda_major}, cuDNN {cudnn}: `estimate --backend null-gpu` is possible (experimental)"


def _cannot_be_loaded_from(folder: Path) -> bool:
    """Whether the file system of a folder, which need not be there yet, is mounted `noexec`."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return bool(os.statvfs(there).f_flag & os.ST_NOEXEC)


def why_not_traced(recorded: MemoryTrace) -> str:
    """What the script does that a trace does not run, as in `runs compiled code`; empty if there is nothing."""
    return " and ".join(_WHY[kind] for kind in recorded.header.runs_otherwise)


def warnings_of(recorded: MemoryTrace, reserved_bytes: int) -> tuple[str, ...]:
    """Warnings of a trace from the null GPU whose replay reserves `reserved_bytes`; none of other traces."""
    if recorded.header.backend != "null-gpu":
        return ()
    counted = recorded.header.counted_reserved_bytes
    if counted is None or recorded.header.oom_raised or abs(reserved_bytes - counted) <= _TOLERANCE * counted:
        return (EXPERIMENTAL,)
    differs = f"PyTorch's own allocator reserved {format_bytes(counted)}, the replay {format_bytes(reserved_bytes)}"
    return (EXPERIMENTAL, differs)
