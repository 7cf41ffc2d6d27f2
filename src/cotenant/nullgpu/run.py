"""Runs a training script on the null GPU and reads what PyTorch's own allocator counted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.gpu_specs import GpuSpec
from cotenant.nullgpu.build import NullGpuLibraries
from cotenant.nullgpu.device import device_text
from cotenant.nullgpu.history import RequestHistory
from cotenant.nullgpu.wheels import NullGpuError

_CHILD = Path(__file__).parent / "child.py"
_LOG_TAIL = 2000
UUID = "GPU-42424242-4242-4242-4242-424242424242"
"""Of the first null GPU, also in csrc/null_gpu.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What PyTorch counted in a process on the null GPU.

    Attributes:
        peak_allocated_bytes, peak_reserved_bytes: `torch.cuda.max_memory_allocated`, `max_memory_reserved`.
        steps: optimizer steps that were seen.
        ended: `steps`, `script` (it ended by itself) or `raised`.
        error: the exception of a script that raised, else empty.
        torch: its version.
        history: every allocation and free; empty unless recorded.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    steps: int
    ended: str
    error: str
    torch: str
    history: RequestHistory


def environment_of(
    libraries: NullGpuLibraries,
    spec: GpuSpec,
    *,
    env: Mapping[str, str],
    total_bytes: int | None = None,
    limit_bytes: int | None = None,
    log: int = 0,
) -> dict[str, str]:
    """Variables with which a process of `libraries.wheels.python` finds the null GPU `spec` and no other.

    `env` has the process's other variables: libraries that they name are found behind those of the null GPU. The
    visible device is named by the UUID of the null GPU, so that a driver that is loaded by its path finds none.

    torch's libraries find the wheels by DT_RPATH, which comes before LD_LIBRARY_PATH: only a library that is already
    loaded under the same name is taken instead, hence LD_PRELOAD.
    """
    folder = libraries.preload[0].parent
    return {
        "LD_PRELOAD": _joined(*map(str, libraries.preload), env.get("LD_PRELOAD")),
        "LD_LIBRARY_PATH": _joined(
            str(folder), str(libraries.wheels.libraries["cudnn"].parent), env.get("LD_LIBRARY_PATH")
        ),
        "COTENANT_NULL_GPU": device_text(spec, total_bytes=total_bytes, limit_bytes=limit_bytes),
        "COTENANT_NULL_GPU_LOG": str(log),
        "CUDA_VISIBLE_DEVICES": UUID,
        # Triton links its launcher to the driver that `ldconfig` knows, unless it is named (triton/knobs.py).
        "TRITON_LIBCUDA_PATH": str(folder),
    }


def _joined(*parts: str | None) -> str:
    return ":".join(part for part in parts if part)


def run_script(
    libraries: NullGpuLibraries,
    spec: GpuSpec,
    command: Sequence[str],
    *,
    steps: int = 3,
    record: bool = False,
    workdir: Path | None = None,
    env: Mapping[str, str] | None = None,
    total_bytes: int | None = None,
    timeout_s: float = 600.0,
    prelude: str = "",
) -> TrainingRun:
    """Run `command` (a script and its arguments) until `steps` optimizer steps are done.

    The script runs for real: it reads and writes files and uses the network as it likes. `record` keeps every
    allocation. `prelude`: a function to call before the script, as `module:function`, from the environment of `python`
    or PYTHONPATH. The process and all that it started end with this call.

    Raises:
        NullGpuError: the process crashed or did not end within `timeout_s`; says the last lines that it printed.
    """
    with tempfile.TemporaryDirectory(prefix="cotenant-null-gpu-") as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log.txt"
        request = {
            "answer": str(answer),
            "command": list(command),
            "steps": steps,
            "record": record,
            "prelude": prelude,
        }
        others = os.environ if env is None else env
        environment = {**others, **environment_of(libraries, spec, env=others, total_bytes=total_bytes)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [libraries.wheels.python, str(_CHILD), json.dumps(request)],
                cwd=workdir,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end_session(process)
        last_words = log.read_text(errors="replace")[-_LOG_TAIL:].strip()
        if not answer.exists():
            how = f"did not end within {timeout_s:g} s" if code is None else f"ended with code {code}"
            raise NullGpuError(f"the script on the null GPU {how}: {last_words}")
        return read_answer(answer)


def read_answer(path: Path) -> TrainingRun:
    """What the process on the null GPU wrote at its end (`child.py`)."""
    found = json.loads(path.read_text())
    lists = {name: tuple(members) for name, members in found["history"].items()}
    return TrainingRun(**{**found, "history": RequestHistory(**lists)})


def _end_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
