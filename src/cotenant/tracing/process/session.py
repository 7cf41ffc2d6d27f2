"""The tracing process: runs a script unchanged on a simulated GPU, records its memory, and writes an answer file.

The process ends by `os._exit`: autograd's device threads cannot be joined (torch/csrc/autograd/engine.cpp,
`Engine::~Engine`), and nothing of the script should run after the answer.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.ports import TraceOptions
from cotenant.core.trace import MemoryTrace, TraceHeader
from cotenant.core.units import format_duration
from cotenant.tracing.data import missing_folders
from cotenant.tracing.data.made_up_warnings import shortened
from cotenant.tracing.errors import Untraceable
from cotenant.tracing.patches import null_packages, torch_import
from cotenant.tracing.patches.registry import PatchContext, PatchTable
from cotenant.tracing.process import deadline, garbage_collection, launcher_env, package_hints, serialization
from cotenant.tracing.process.provenance import with_provenance
from cotenant.tracing.process.run_program import run_program
from cotenant.tracing.process.script_traceback import describe, print_script_traceback
from cotenant.tracing.process.serialization import COMPILED, EXITED, RENEWED, UNINSTALLED, USAGE
from cotenant.tracing.sandbox import overlay_hooks, restrictions
from cotenant.tracing.sandbox.overlay import Overlay, cache_folders, make_scratch

if TYPE_CHECKING:
    from cotenant.tracing.recorder import TraceRecorder

NO_STEP_HINT = "does the script need options to train, after `--`? run it with `--show-output` to see its whole output"
_TIMEOUT_HINT = "raise the limit with `--timeout`, or shorten what the script does before it trains"
_answer_lock = threading.Lock()  # the end of the script and the deadline: the first one answers


def main(request_path: str, answer_path: str) -> NoReturn:
    """Trace the program of a request file; the answer file gets a trace or an error."""
    answer = Path(answer_path)
    try:
        request = json.loads(Path(request_path).read_text())
        if request.get("null_gpu"):
            _run_on_null_gpu(request, answer)
        session = TracingSession(request, answer)
    except TraceError as error:
        answer_error(answer, error)
    except UsageError as error:
        answer_error(answer, as_trace_error(error))
    session.run(session.script)


def _run_on_null_gpu(request: dict[str, Any], answer: Path) -> NoReturn:
    overlay = enter_sandbox(options_of(request), request.get("scratch"), answer)
    patches = PatchTable(overlay_hooks.patches(overlay))
    patches.apply()
    _usable_torch()
    from cotenant.tracing.cuda_build.session import CudaBuildSession

    CudaBuildSession(request, answer, patches, overlay).run()


def as_trace_error(error: UsageError) -> TraceError:
    """An error about an option that only this process parses; `trace_script` raises it as a `UsageError`."""
    return TraceError(USAGE, error.message, hint=error.hint)


def answer_error(answer: Path, error: TraceError) -> NoReturn:
    """Write an error as the answer; the process ends here."""
    _answer_lock.acquire()
    serialization.save(answer, {"error": serialization.error_to_dict(error)})
    _leave()


def answer_trace(answer: Path, trace: MemoryTrace) -> NoReturn:
    """Write a trace as the answer; the process ends here."""
    _answer_lock.acquire()
    trace = replace(trace, warnings=shortened(trace.warnings))
    serialization.save(answer, {"trace": serialization.trace_to_dict(trace)})
    _leave()


def _leave() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _usable_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise TraceError(
            "missing-torch",
            f"`{sys.executable}` cannot import torch: {error}",
            hint="name the Python that runs the job with `--python`, or `pip install cotenant[torch]`",
        ) from error
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 4):
        raise TraceError(
            "unsupported", f"torch {torch.__version__} is too old to be traced", hint="torch 2.4 or newer is needed"
        )
    return torch


class TracingSession:
    """One script, from the patches before it starts to the answer."""

    def __init__(
        self, request: dict[str, Any], answer: Path, *, recorder: Callable[[], TraceRecorder] | None = None
    ) -> None:
        self.request = request
        self.answer = answer
        self.options = options_of(request)
        renewed = answer.with_name(RENEWED)
        deadline.start_deadline(request.get("deadline"), self._too_late, self._events, self._steps, renewed)
        self.overlay = enter_sandbox(self.options, request.get("scratch"), answer)
        self.patches = PatchTable([*overlay_hooks.patches(self.overlay), *torch_import.patches()])
        self.patches.apply()
        torch = _usable_torch()
        from cotenant.tracing.device.cuda_api import FakeGpuSpec
        from cotenant.tracing.device.memory_limit import MemoryLimit
        from cotenant.tracing.distributed.nccl_groups import NcclGroups
        from cotenant.tracing.mode import TraceMode
        from cotenant.tracing.patches.catalog import all_patches
        from cotenant.tracing.recorder import TraceRecorder
        from cotenant.tracing.training.training_observer import TrainingObserver

        program, wanted = request.get("program", {}), request["gpu"]
        launch = launcher_env.apply_launcher(request.get("launcher", ()), program, wanted["count"])
        if launch.more_args:
            program["args"] = [*launch.more_args, *program["args"]]
        gpu = FakeGpuSpec(**{**_tuples(wanted), "count": launch.local})
        self.recorder = (recorder or TraceRecorder)()
        self.recorder.header = replace(header_of(torch, gpu.name, gpu.capability, gpu.count), processes=launch.total)
        if launch.warning:
            self.recorder.warn(launch.warning)
        allocator_bytes = gpu.allocator_bytes or gpu.total_bytes
        self.recorder.limit = MemoryLimit(self.recorder, allocator_bytes, gpu.count, gpu.total_bytes)
        self.observer = TrainingObserver(self.recorder, steps=self.options.steps, finish=self.finish)
        self.mode = TraceMode(self.recorder)
        self.mode.groups = NcclGroups(self.recorder)
        context = PatchContext(
            options=self.options,
            gpu=gpu,
            recorder=self.recorder,
            mode=self.mode,
            observer=self.observer,
            overlay=self.overlay,
            groups=self.mode.groups,
            compiled_mark=answer.with_name(COMPILED),
        )
        self.patches.add(all_patches(context))
        self.patches.apply()
        self.mode.composites.update(self.patches.composites())

    def script(self) -> None:
        """Run the program of the request as Python itself does."""
        program = self.request["program"]
        if self.options.synthetic_data:
            missing_folders.make_missing(self.overlay, program["args"])
        launcher_env.show_visible_devices(self.request.get("visible_devices"))
        run_program(program)
        if "multiprocessing" in sys.modules:
            from cotenant.tracing.distributed.multiprocessing import run_waiting_processes

            run_waiting_processes()

    def run(self, body: Callable[[], object]) -> NoReturn:
        """Call `body` and answer with its trace; the process ends here."""
        from cotenant.tracing.device import libtorch_patch

        header, warnings = self.recorder.header, list(self.recorder.warnings)
        try:
            with self.mode:
                with self.observer.not_training():
                    libtorch_patch.start_autograd_threads()
                    self.mode.grad_accumulation.learn()
                self.recorder.reset(header)
                for warning in warnings:
                    self.recorder.warn(warning)
                garbage_collection.collect_rarely()
                body()
        except SystemExit as stop:
            if stop.code not in (None, 0):
                self._failed(f"{EXITED}: {exit_text(stop.code)}")
            self._ended()
        except BaseException as error:  # noqa: BLE001 - whatever a script raises goes into the answer
            self._raised(error)
        self._ended()

    def finish(self) -> NoReturn:
        """The trace is complete: answer and end the process, wherever the script is."""
        self._answer(partial=False)

    def _events(self) -> int:
        recorder: TraceRecorder | None = getattr(self, "recorder", None)
        return recorder.event_count if recorder is not None else 0

    def _steps(self) -> int:
        recorder: TraceRecorder | None = getattr(self, "recorder", None)
        return recorder.steps if recorder is not None else 0

    def _too_late(self, timeout_s: float, place: str | None) -> NoReturn:
        """Answer before the timeout, from a thread of its own, while the script still runs."""
        recorder: TraceRecorder | None = getattr(self, "recorder", None)  # None while torch is being imported
        limit, at = format_duration(timeout_s), f"; it was at {place}" if place else ""
        if recorder is not None and recorder.steps:
            if self.observer.progress.has_trained:
                recorder.warn(f"the work after training was not traced to its end within {limit} (`--timeout`){at}")
                self._answer(partial=False)
            self._failed(f"the script was stopped {limit} after it started (`--timeout`){at}")
        why = ", without an optimizer step" if recorder is not None and recorder.cuda_used else ""
        message = f"the script had not finished {limit} after it started{why}{at}"
        from cotenant.tracing.data.missing_data_hints import made_up_files

        made = made_up_files()
        waits = f"{made} had to be made up: does the script wait for more of it? make it available; or " if made else ""
        answer_error(self.answer, TraceError("timeout", message, hint=f"{waits}{_TIMEOUT_HINT}"))

    def _ended(self) -> NoReturn:
        if self.recorder.steps:
            self._answer(partial=False)
        from cotenant.tracing.distributed.multiprocessing import raised

        if raised:
            self._raised(raised[0])
        from cotenant.tracing.data.missing_data_hints import empty_listing_hint

        progress = self.observer.progress
        hint = progress.empty_loader_reason or empty_listing_hint(self.options.synthetic_data)
        if not hint and self.recorder.library_calls.all() and progress.warn_without_training():
            self._answer(partial=False)
        if not self.recorder.cuda_used:
            error = without_gpu(serialization.ENDED_WITHOUT_GPU, hint)
        else:
            error = TraceError("no-step", "the script ended without an optimizer step", hint=hint or NO_STEP_HINT)
        answer_error(self.answer, error)

    def _raised(self, error: BaseException) -> NoReturn:
        mark_uninstalled(error, self.answer)
        print_script_traceback(error)
        from cotenant.tracing.data.missing_data_hints import absent_path, missing_data_hint, missing_part_hint

        message = describe(error) + ("" if absent_path(error) else self.mode.host_reads.suspect(error))
        if self.observer.progress.has_trained:
            self.observer.progress.warn_after_training(error, message)
            self._answer(partial=False)
        if "fork-based multiprocessing" in str(error):
            # Autograd's device threads do not survive a fork (PyTorch 2.4 to 2.13).
            # Source: torch/csrc/autograd/python_engine.cpp, `PythonEngine::get_python_engine`.
            self._failed(
                "this process has trained on a GPU before, so its functions cannot be traced",
                "unsupported",
                "estimate the function before anything is trained on a GPU, or estimate a script",
            )
        if isinstance(error, Untraceable):
            self._failed(
                describe(error), "unsupported", "report it to the authors of cotenant, or try another `--estimator`"
            )
        hint = missing_part_hint(error) or package_hints.environment_hint(error)
        hint = hint or missing_data_hint(error, self.options.synthetic_data)
        kind = "import" if isinstance(error, (ImportError, SyntaxError)) else "raised"
        self._failed(f"the script raised {type(error).__name__}: {message}", kind, hint)

    def _failed(self, sentence: str, kind: str = "raised", hint: str | None = None) -> NoReturn:
        if self.recorder.steps:
            count = self.recorder.steps
            self.recorder.warn(f"{sentence}, after {count} optimizer step{'s' if count != 1 else ''}")
            self._answer(partial=True)
        answer_error(
            self.answer,
            TraceError(kind, sentence, hint=hint or "run it with `--show-output` to see its whole output"),
        )

    def _answer(self, *, partial: bool) -> NoReturn:
        if not self.recorder.cuda_used:
            # Its optimizer steps were on the CPU: an answer of 0 B plus a CUDA context would be wrong.
            answer_error(self.answer, without_gpu("the script trains without putting anything on a GPU"))
        progress = self.observer.progress
        header = replace(self.recorder.header, libraries=library_versions(), epoch_end=progress.epoch_end)
        self.recorder.header = with_provenance(header)
        progress.conditional_work.warn()
        for sentence in self.overlay.warnings():
            self.recorder.warn(sentence)
        gc.disable()  # nothing of the trace is garbage, and collections would take half of the time
        answer_trace(self.answer, self.recorder.trace(partial=partial))


def mark_uninstalled(error: BaseException, answer: Path) -> None:
    """Name the package whose absence ended the script, where `trace_script` can go on without it."""
    package = null_packages.replaceable(error)
    if package:
        answer.with_name(UNINSTALLED).write_text(package)


def enter_sandbox(options: TraceOptions, scratch: str | None, answer: Path) -> Overlay:
    """Keep this process from changing files and from the network, as the options say; the overlay of its files.

    `scratch`: the folder for what the process writes; None: beside the answer.
    """
    folder = Path(scratch or answer.parent / "scratch")
    has_synthetic_data = bool(options.synthetic_data)
    free = (*serialization.output_paths(answer), str(answer.with_name(UNINSTALLED)))
    overlay = Overlay(str(folder), captures_all=options.sandbox, free=free)
    if options.sandbox:
        make_scratch(folder)
        sys.dont_write_bytecode = True
        writable = [str(answer.parent), "/proc", *restrictions.device_paths(), *cache_folders(os.environ)]
        has_landlock = restrictions.restrict_writes(writable)
        restrictions.restrict_calls(
            programs=not has_landlock,
            network=not options.allow_network,
            has_synthetic_data=has_synthetic_data,
        )
    elif not options.allow_network:
        restrictions.restrict_calls(programs=False, network=True, has_synthetic_data=has_synthetic_data)
    null_packages.provide(options.null_packages)
    return overlay


def options_of(request: dict[str, Any]) -> TraceOptions:
    """The options of a request."""
    return TraceOptions(**_tuples(request["options"]))


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """The lists of JSON as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def without_gpu(sentence: str, hint: str | None = None) -> TraceError:
    """The error of a script that uses no GPU."""
    by_option = "does it choose its device by an option, such as `-- --device cuda`?"
    return TraceError("no-cuda", sentence, hint=hint or by_option)


def exit_text(code: object) -> str:
    """The code of a `SystemExit`."""
    return f"exit code {code}" if isinstance(code, int) else str(code)


def header_of(torch: Any, gpu: str, capability: tuple[int, int], count: int) -> TraceHeader:
    """A header with the versions and settings of this process, which sees `count` GPUs of the model `gpu`."""
    return TraceHeader(
        torch_version=torch.__version__,
        torch_folder=str(Path(torch.__file__).parent),
        cuda_version=torch.version.cuda,
        python_version=".".join(map(str, sys.version_info[:3])),
        gpu=gpu,
        capability=capability,
        gpus=count,
        alloc_conf=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        cublas_workspace_config=os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    )


def library_versions() -> dict[str, str]:
    """Versions of the libraries that the script imported."""
    versions = {}
    for name in ("transformers", "timm", "torchvision", "lightning", "accelerate", "peft", "deepspeed"):
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "?"))
    return versions
