"""Starts the tracing process for a script and reads its answer. Needs no torch: the process has the job's Python."""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError, TraceError, UsageError
from cotenant.core.ports import TraceOptions
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import format_bytes, format_duration
from cotenant.osutil.cache_folder import cache_folder
from cotenant.osutil.env_tags import kill_tagged
from cotenant.tracing.patches import null_packages
from cotenant.tracing.process import launchers, serialization
from cotenant.tracing.process.forkserver_client import ForkServerClient, ScriptTimeout
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.work_clock import WorkLimit
from cotenant.tracing.sensors import nvidia_smi

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_LOG_TAIL_BYTES = 4000
_TAG = "COTENANT_TRACE"  # in the environment of all that a script starts
_POLL_S = 0.5  # between looks at the limit; the end of the process is noticed at once

# A trace uses no hub, no experiment tracker and no GPU, and has the script's errors. Variables that the user sets stay.
_OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
_QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HYDRA_FULL_ERROR": "1",  # else it prints what the script raised, and exits
    "TQDM_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """Files that a run leaves beside its answer.

    Attributes:
        has_compiled: the compiler was started for code of the script.
        uninstalled: the package whose absence ended the script, if a null object can replace it; else empty.
    """

    has_compiled: bool
    uninstalled: str


def trace_script(
    program: Program,
    *,
    gpu: Mapping[str, Any],
    workdir: str,
    env: Mapping[str, str],
    timeout_s: float = 120.0,
    show_output: bool = False,
    options: TraceOptions | None = None,
    forkserver: ForkServerClient | None = None,
    null_gpu: Mapping[str, str] | None = None,
) -> MemoryTrace:
    """Run `program` on a simulated GPU.

    It runs again without packages that only report where it fails for want of one, and once more with eager code where
    it fails with compiled code.

    `gpu`: name, total_bytes, nvml_total_bytes, capability (major, minor), sm_count, count. `forkserver`: runs the
    script if it can, unless the output is to be shown. `null_gpu`: variables with which the CUDA build of the
    interpreter runs on a null GPU; without them, CUDA tensors have no data and nothing is launched.

    Raises:
        TraceError: see its kinds; `log_tail` has the end of the script's output.
        UsageError: one of `options` cannot be parsed.
    """
    options = options or TraceOptions()
    run = functools.partial(
        _run_once, program, gpu=gpu, workdir=workdir, env=env, timeout_s=timeout_s, show_output=show_output,
        forkserver=forkserver, null_gpu=null_gpu,
    )  # fmt: skip
    found, marks = run(options)
    while marks.uninstalled and marks.uninstalled not in options.null_packages:
        options = replace(options, null_packages=(*options.null_packages, marks.uninstalled))
        found, marks = run(options)
    failed = isinstance(found, TraceError) or found.partial
    if failed and marks.has_compiled and options.compiled_code == "auto":
        found = _without_compiler(found, run(replace(options, compiled_code="eager"))[0])
    if isinstance(found, TraceError):
        raise found
    notes = [null_packages.warning_for(package) for package in options.null_packages]
    notes += [] if program.launcher else _warnings_of_devices(env.get("CUDA_VISIBLE_DEVICES", ""), gpu["count"])
    return replace(found, warnings=(*notes, *found.warnings))


def _warnings_of_devices(named: str, gpus: int) -> list[str]:
    """What to warn of where the job's `CUDA_VISIBLE_DEVICES` names more GPUs than the script finds."""
    count = len([name for name in named.split(",") if name.strip()])
    text = (
        f"`CUDA_VISIBLE_DEVICES={named}` names {count} GPUs, and the script found {gpus}: give `--gpus {count}` if it "
        "divides its batches among them"
    )
    return [text] if count > gpus else []


def _without_compiler(found: TraceError | MemoryTrace, eager: TraceError | MemoryTrace) -> TraceError | MemoryTrace:
    """Of a run with compiled code that failed, or was not traced to its end, and one without: what to answer."""
    if isinstance(found, MemoryTrace) and (isinstance(eager, TraceError) or eager.partial):
        return found
    if isinstance(eager, TraceError):
        return eager
    why = found.message if isinstance(found, TraceError) else found.warnings[-1]
    note = f"with compiled code the script could not be traced ({why}), so that all of it was traced eagerly"
    return replace(eager, warnings=(note, *eager.warnings))


def _run_once(
    program: Program,
    options: TraceOptions,
    *,
    gpu: Mapping[str, Any],
    workdir: str,
    env: Mapping[str, str],
    timeout_s: float,
    show_output: bool,
    forkserver: ForkServerClient | None,
    null_gpu: Mapping[str, str] | None,
) -> tuple[TraceError | MemoryTrace, _Marks]:
    """The trace, or why there is none, and what the run left beside it. Parameters: as of `trace_script`.

    Raises:
        UsageError: one of `options` cannot be parsed.
    """
    gpus = _gpus_of(program, gpu["count"])
    request = {
        "program": program.to_request(),
        "launcher": list(program.launcher),
        "gpu": dict(gpu),
        "options": asdict(options),
        "deadline": {"at_s": time.monotonic() + timeout_s, "timeout_s": timeout_s},
        "null_gpu": null_gpu is not None,
        "visible_devices": _visible_devices(env, gpus),
    }
    with tempfile.TemporaryDirectory(prefix="cotenant-trace-") as folder:
        paths = {name: Path(folder, name) for name in ("request", "answer", "log")}
        paths["request"].write_text(json.dumps(request))
        offline = {} if options.allow_network else _OFFLINE
        device_env = {"CUDA_VISIBLE_DEVICES": ""} if null_gpu is None else null_gpu
        sensors = nvidia_smi.install(Path(folder, "bin"), gpu, gpus)
        path = f"{sensors}{os.pathsep}{env.get('PATH', os.defpath)}"
        caches = _library_caches(env)
        child_env = {**_QUIET, **offline, **caches, **env, **device_env, "PATH": path, "PYTHONUNBUFFERED": "1"}
        child_env[_TAG] = folder
        command = [program.python, str(_BOOTSTRAP), str(paths["request"]), str(paths["answer"])]
        try:
            answer = _answer_of(
                command, paths, workdir, child_env, timeout_s, show_output=show_output, forkserver=forkserver
            )
        except TraceError as error:
            return error, _marks_beside(paths["answer"])
        return answer, _marks_beside(paths["answer"])


def _library_caches(env: Mapping[str, str]) -> dict[str, str]:
    """Where libraries store what they have compiled, instead of beside their sources, where a script may not write.

    numba would compile librosa's functions in each trace, which takes 10 s of CPU time.
    """
    folder = cache_folder("numba", env)
    if folder is None:
        return {}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return {"NUMBA_CACHE_DIR": str(folder)}
    return {}


def _marks_beside(answer: Path) -> _Marks:
    uninstalled = ""
    with suppress(OSError, ValueError):
        uninstalled = answer.with_name(serialization.UNINSTALLED).read_text()
    return _Marks(has_compiled=answer.with_name(serialization.COMPILED).exists(), uninstalled=uninstalled)


def _answer_of(
    command: list[str],
    paths: Mapping[str, Path],
    workdir: str,
    env: dict[str, str],
    timeout_s: float,
    *,
    show_output: bool,
    forkserver: ForkServerClient | None,
) -> MemoryTrace:
    """The trace of one run.

    Raises:
        TraceError, UsageError: as `trace_script`.
    """
    code = None
    if forkserver is not None and not show_output:
        code = _run_in_forkserver(forkserver, command, paths, workdir, env, timeout_s)
    if code is None:
        paths["answer"].unlink(missing_ok=True)
        code = _run_in_new_process(command, workdir, env, paths["log"], timeout_s, show_output=show_output)
    log = _tail(paths["log"])
    if not paths["answer"].exists():
        raise _crash_error(code, log, on_null_gpu="COTENANT_NULL_GPU" in env)
    try:
        return _read_answer(paths["answer"], log)
    except (TraceError, UsageError):
        raise
    except (CotenantError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError) as error:
        hint = "did the script write to files that are not its own?"
        text = f"the tracing process left an answer that cannot be read: {type(error).__name__}"
        raise TraceError("crashed", text, hint=hint, log_tail=log) from error


def _read_answer(path: Path, log: str) -> MemoryTrace:
    answer = json.loads(path.read_text())
    if "error" in answer:
        error = answer["error"]
        if error["kind"] == serialization.USAGE:
            raise UsageError(error["message"], hint=error["hint"])
        hint = error["hint"]
        if error["message"].startswith(serialization.EXITED):
            hint = _last_line(log) or hint
        elif error["message"] == serialization.ENDED_WITHOUT_GPU:  # it may say that data are to be prepared first
            hint = "; ".join(filter(None, (hint, _last_line(log)))).replace("?;", "?")
        raise TraceError(error["kind"], error["message"], hint=hint, log_tail=log)
    return serialization.trace_from_dict(answer["trace"])


def _gpus_of(program: Program, count: int) -> int:
    """GPUs that the machine shows: as many as the launcher starts processes, else `count`."""
    if not program.launcher:
        return count
    name, *options = program.launcher
    try:
        return max(1, launchers.plan_launch(name, options, count).local)
    except UsageError:  # the tracing process raises it, too
        return count


def _visible_devices(env: Mapping[str, str], gpus: int) -> str | None:
    """`CUDA_VISIBLE_DEVICES` for the script: the GPUs that it finds, if the variable is set for the job at all."""
    return ",".join(map(str, range(gpus))) if env.get("CUDA_VISIBLE_DEVICES") else None


def _run_in_new_process(
    command: list[str], workdir: str, env: dict[str, str], log: Path, timeout_s: float, *, show_output: bool
) -> int:
    began_s = time.monotonic()
    with log.open("wb") as sink:
        output = None if show_output else sink
        try:
            process = subprocess.Popen(
                command,
                cwd=workdir,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=2 if show_output else output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise TraceError(
                "crashed", f"cannot start `{command[0]}`: {(error.strerror or str(error)).lower()}"
            ) from error
        limit = WorkLimit(began_s, timeout_s, process.pid, log.with_name(serialization.RENEWED))
        try:
            while not limit.is_over():
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_S)
            raise _timeout_error(timeout_s, log)
        finally:
            _kill_group(process)
            kill_tagged({_TAG: env[_TAG]})  # what it started in sessions of their own


def _run_in_forkserver(
    forkserver: ForkServerClient,
    command: list[str],
    paths: Mapping[str, Path],
    workdir: str,
    env: dict[str, str],
    timeout_s: float,
) -> int | None:
    """The exit code of the script in a fork of the fork server; None if the script needs a new process."""
    fork_request = paths["request"].with_name("fork-request")
    files = {name: str(path) for name, path in paths.items()}
    fork_request.write_text(json.dumps({**files, "workdir": workdir, "env": env}))
    try:
        return forkserver.run(command[:2], fork_request, workdir=workdir, env=env, timeout_s=timeout_s)
    except ScriptTimeout:
        raise _timeout_error(timeout_s, paths["log"]) from None


def _timeout_error(timeout_s: float, log: Path) -> TraceError:
    return TraceError(
        "timeout",
        f"the script had not finished {format_duration(timeout_s)} after it started",
        hint="raise the limit with `--timeout`, or shorten what the script does before it trains",
        log_tail=_tail(log),
    )


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group: the process, if it still runs, and everything that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _crash_error(code: int, log: str, *, on_null_gpu: bool) -> TraceError:
    if code == 3 and "Python 3.10" in log:
        return TraceError("unsupported", log.strip().splitlines()[-1], hint="name the job's own Python with `--python`")
    hint = _last_line(log)
    if on_null_gpu and code == -signal.SIGSEGV:
        hint = "nothing is at the addresses of the null GPU's memory: did the script read or write there from the CPU?"
    if code == -signal.SIGKILL:
        used = format_bytes(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
        hint = (
            f"did the kernel end it for want of host memory? the largest process so far had {used}; tensors on the CPU "
            f"are real in an estimate{f'; {hint}' if hint else ''}"
        )
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return TraceError("crashed", f"the tracing process ended by {how} without an answer", hint=hint, log_tail=log)


def _last_line(log: str) -> str | None:
    lines = [line for line in log.splitlines() if line.strip()]
    return f"the last line of its output: {lines[-1].strip()[:300]}" if lines else None


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")
